"""Load a model's weights."""

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError
from vase_cli.models.describe import ModelFacts, describe, loading_errors, location, quiet, read_config
from vase_cli.models.language_model import INTERFACE, LanguageModel
from vase_cli.models.rehearsal import rehearsal
from vase_cli.models.tokenizer import ChatTokenizer


def load(entry: ModelEntry, tokenizer: ChatTokenizer, dtype: str | None, device: torch.device) -> LanguageModel:
    """Load the weights; ``dtype`` and ModelError as in :func:`describe`, also for missing or misshapen weights."""
    config = read_config(entry)
    facts = describe(entry, dtype, device, config)
    where = location(entry)
    with rehearsal(config, facts, device):
        model = _read(entry, config, facts).eval().to(device)
    return LanguageModel(facts, model, _eos_token_ids(model, tokenizer, where), device, where)


def _read(entry: ModelEntry, config: PreTrainedConfig, facts: ModelFacts) -> PreTrainedModel:
    """The model on the CPU; ModelError unless its files hold exactly the tensors of the config."""
    where = location(entry)
    with quiet(), loading_errors(entry):
        model, info = AutoModelForCausalLM.from_pretrained(
            where,
            revision=entry.revision,
            config=config,
            dtype=facts.torch_dtype,
            attn_implementation=INTERFACE,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            trust_remote_code=False,
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{where}: the weights lack {len(missing)} tensors, {missing[0]} first: fetch the model again")
    if unexpected := sorted(info["unexpected_keys"]):
        problem = f"the weights hold {len(unexpected)} tensors that the config does not use, {unexpected[0]} first"
        raise ModelError(f"{where}: {problem}: they are of another model")
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise ModelError(f"{where}: {name} is {tuple(stored)} in the weights, {tuple(expected)} by the config")
    loaded: PreTrainedModel = model
    return loaded


def _eos_token_ids(model: PreTrainedModel, tokenizer: ChatTokenizer, where: str) -> frozenset[int]:
    """The end tokens that any of the generation config, the config and the tokenizer names."""
    generation: GenerationConfig | None = model.generation_config
    found: set[int] = set()
    for source in (generation, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(token_id, int) for token_id in listed):
            raise ModelError(f"{where}: eos_token_id {ids!r} is not a token id or a list of them")
        found |= set(listed)
    if not found:
        raise ModelError(f"{where}: no eos_token_id in generation_config.json, config.json or the tokenizer")
    return frozenset(found)
