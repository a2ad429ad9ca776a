"""Load a model's weights, or draw them, and check that the static cache can serve it."""

import math

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError, first_line
from vase_cli.models.describe import DTYPES, facts_of, loading_errors, location, quiet, read_config
from vase_cli.models.language_model import INTERFACE, LanguageModel
from vase_cli.models.tokenizer import ChatTokenizer


def load(entry: ModelEntry, tokenizer: ChatTokenizer, dtype: str | None, device: torch.device) -> LanguageModel:
    """Load the weights; ``dtype`` as in :func:`describe`.

    Raises:
        ModelError: one line, as in :func:`describe`; also for weights that are missing, cut or of another shape.
    """
    config = read_config(entry)
    facts = facts_of(entry, config, dtype, device)
    where = location(entry)
    with quiet(), loading_errors(entry):
        model, info = AutoModelForCausalLM.from_pretrained(
            where,
            revision=entry.revision,
            config=config,
            dtype=DTYPES[facts.dtype],
            attn_implementation=INTERFACE,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            trust_remote_code=False,
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{where}: the weights lack {len(missing)} tensors, {missing[0]} first: fetch the model again")
    if mismatched := sorted(info["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise ModelError(f"{where}: {name} is {tuple(stored)} in the weights, {tuple(expected)} by the config")
    model = model.eval().to(device)
    language_model = LanguageModel(facts, model, _eos_token_ids(model, tokenizer, where), device)
    _check_layers(language_model, where)
    return language_model


def initialize(entry: ModelEntry, config: PreTrainedConfig, dtype: str | None, device: torch.device) -> LanguageModel:
    """A model as before its training: weights drawn on the device from its generator, no end-of-text token.

    Raises:
        ModelError: a model that cannot be served.
    """
    facts = facts_of(entry, config, dtype, device)
    with quiet(), device:
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[facts.dtype], attn_implementation=INTERFACE)
    language_model = LanguageModel(facts, model.eval(), frozenset(), device)
    _check_layers(language_model, entry.name)
    return language_model


class _Probe:
    """A forward step that only counts which layers call it, and with which shapes."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.shapes: set[tuple[int, int, int]] = set()
        self.usual_scale = True

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        self.layers.append(layer)
        self.usual_scale &= math.isclose(scale, queries.shape[-1] ** -0.5, rel_tol=1e-6)
        self.shapes.add((queries.shape[2], keys.shape[2], keys.shape[3]))
        self.shapes.add((queries.shape[2], values.shape[2], values.shape[3]))
        return queries.new_zeros((*queries.shape[:3], values.shape[3]))


@torch.inference_mode()
def _check_layers(model: LanguageModel, where: str) -> None:
    """One forward of two tokens: every layer must reach the cache, with the shape the config says."""
    shape = model.facts.shape
    probe = _Probe()
    tokens = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
    try:
        model.forward(tokens, torch.arange(2, device=model.device)[None], probe)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    except Exception as error:  # a family's own code, which may ask for what this forward does not give
        raise ModelError(f"{where}: its forward does not run on the static cache ({first_line(error)})") from error
    if probe.shapes - {(shape.heads, shape.kv_heads, shape.head_dim)}:
        raise ModelError(f"{where}: its heads are {sorted(probe.shapes)}, its config says {shape}: it cannot be served")
    for layer in range(shape.layers):
        if probe.layers.count(layer) != 1:
            raise ModelError(
                f"{where}: layer {layer} does not use transformers' attention interface once: it cannot be served"
            )
    model.usual_scale = probe.usual_scale


def _eos_token_ids(model: PreTrainedModel, tokenizer: ChatTokenizer, where: str) -> frozenset[int]:
    generation: GenerationConfig | None = model.generation_config
    for source in (generation, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(each, int) for each in listed):
            raise ModelError(f"{where}: eos_token_id {ids!r} is not a token id or a list of them")
        if listed:
            return frozenset(listed)
    raise ModelError(f"{where}: no eos_token_id in generation_config.json, config.json or the tokenizer")
