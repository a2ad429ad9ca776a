"""The only contact with transformers: find and load a model, reach its attention, fill its chat template.

The model is transformers' own. It reaches the static cache through ``AttentionInterface``: every layer calls
:func:`_attention`, which hands its states to the forward step that travels as a keyword argument. Families
that use the interface work without code of their own (Qwen3, Qwen2, Llama, Mistral, Qwen3-MoE).

Letters: B rows, T tokens, V vocabulary, Hq query heads, H KV heads, D head dim.
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vase_cli.compiled import CompiledForward, attend
from vase_cli.config import ModelEntry, ModelShape
from vase_cli.errors import ModelError, first_line, quiet_hub_client
from vase_cli.forward import DecodeStep, ForwardStep
from vase_cli.fused import FusedForward, fuse

_INTERFACE = "vase"
_STEP = "vase_step"
_DIGEST_BYTES = 2**20
_MOST_RESERVED_TOKENS = 2**17
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of every layer: states (B, heads, T, D) in, (B, T, Hq, D) out."""
    step: ForwardStep | None = kwargs.get(_STEP)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    compiling = torch.compiler.is_compiling()
    if step is None and not compiling:
        raise RuntimeError(f"a model with attention '{_INTERFACE}' was called without {_STEP}")
    if attention_mask is not None:
        raise RuntimeError("rows are packed from slot 0 with their own lengths: no attention mask may come here")
    unserved = {"sliding_window": sliding_window, "softcap": kwargs.get("softcap"), "s_aux": kwargs.get("s_aux")}
    for name, given in unserved.items():
        if given is not None:
            raise ModelError(f"layer {layer} of this model uses {name}, which the static cache cannot serve")
    causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ModelError(f"layer {layer} of this model attends to later tokens, as in an encoder: it cannot be served")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if step is None:
        return attend(query, key, value, layer, scale), None
    return step.attend(layer, query, key, value, scale), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The mask function of the interface: lengths travel with the cache, a mask is never built."""


AttentionInterface.register(_INTERFACE, _attention)
AttentionMaskInterface.register(_INTERFACE, _no_mask)


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights are read.

    Attributes:
        shape: layers and heads.
        vocabulary: V.
        hidden: width of the residual stream.
        mlp: width of the MLP (of all experts that one token uses).
        weights_bytes: parameters in ``dtype``, each counted once.
        parameters: elements of all parameters, each counted once.
        dtype: what the weights are loaded as.
        max_tokens: the longest text the model's position encoding is configured for; None if not said.
        embedding_bytes: of ``weights_bytes``, those of an embedding that is not also the head.
    """

    shape: ModelShape
    vocabulary: int
    hidden: int
    mlp: int
    weights_bytes: int
    parameters: int
    dtype: str
    max_tokens: int | None
    embedding_bytes: int = 0


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it; ``thought_open`` says that it ends inside an open ``<think>``."""

    token_ids: tuple[int, ...]
    thought_open: bool


def describe(
    entry: ModelEntry, dtype: str | None, device: torch.device, config: PreTrainedConfig | None = None
) -> ModelFacts:
    """Read a model's config and refuse what the cache cannot serve; no weight is read.

    Args:
        entry: the model; its ``shape`` and ``architecture`` are checked against the config where they are set.
        dtype: a name from the command line or recipe; None or "auto" is the checkpoint's own on a GPU, and
            float32 on a CPU.
        device: where it will run.
        config: from :func:`make_config`, in place of the model's own file.

    Raises:
        ModelError: not found, gated, offline, unreadable, or not to be served.
    """
    return _facts(entry, _config(entry) if config is None else config, dtype, device)


def make_config(name: str, values: Mapping[str, object]) -> PreTrainedConfig:
    """A config of these values, ``model_type`` among them; nothing is read.

    Raises:
        ModelError: an unknown family, or values that it refuses; starts with ``name``.
    """
    try:
        with _quiet():
            return AutoConfig.for_model(**values)
    except Exception as error:  # a family's own code
        raise ModelError(f"{name}: no such model can be built ({first_line(error)})") from error


def weights_digest(entry: ModelEntry) -> str | None:
    """Names the weights of a model folder, so that retrained weights are another run; None for the hub's.

    BLAKE2 of each safetensors file's name, size, and first and last mebibyte: gigabytes are not read for it.
    """
    if entry.path is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(set(entry.path.glob("*.safetensors")) - set(entry.path.glob("*.thresholds.safetensors"))):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_DIGEST_BYTES))
            file.seek(max(0, size - _DIGEST_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


class ChatTokenizer:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be turned into a prompt."""
        return bool(self._tokenizer.chat_template)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-text id; the generation config may name more."""
        end: int | None = self._tokenizer.eos_token_id
        return end

    def encode_text(self, text: str) -> Prompt:
        """A prompt taken as it is, without a chat template."""
        return Prompt(tuple(self._tokenizer(text)["input_ids"]), text.rfind("<think>") > text.rfind("</think>"))

    def encode_chat(self, user: str, *, system: str | None, think: bool) -> Prompt:
        """A user message, and a system message if given, through the chat template.

        Raises:
            ModelError: the tokenizer has no chat template, or it refuses the messages.
        """
        if not self.has_chat_template:
            raise ModelError("this model's tokenizer has no chat template: use --raw to give the prompt as it is")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": user})
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
            )
        except Exception as error:  # the template is a program that came with the model
            raise ModelError(f"the model's chat template refused the messages: {first_line(error)}") from error
        token_ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        # Only the template can open a thought: a message may speak of <think> as it likes.
        return Prompt(tuple(token_ids), text.rstrip().endswith("<think>"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens (``<think>`` is text)."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens too."""
        return [str(self._tokenizer.decode([one], clean_up_tokenization_spaces=False)) for one in token_ids]


class LanguageModel:
    """A loaded model.

    Attributes:
        facts: see :class:`ModelFacts`.
        device: where the weights are.
        eos_token_ids: every id that ends a text, from the generation config.
        usual_scale: whether every layer's scores are q·k / sqrt(D).
    """

    def __init__(
        self, facts: ModelFacts, model: PreTrainedModel, eos_token_ids: frozenset[int], device: torch.device
    ) -> None:
        self.facts = facts
        self.device = device
        self.eos_token_ids = eos_token_ids
        self.usual_scale = False
        self._model = model
        self._fused: FusedForward | None = None
        self._compiled: CompiledForward | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and states."""
        return _DTYPES[self.facts.dtype]

    def fuse(self) -> str:
        """Use the fused forward from here on, see :mod:`vase_cli.fused`; why not, if it cannot be."""
        self._fused, reason = fuse(self._model, self.forward)
        return reason

    @property
    def compiled(self) -> bool:
        """Whether decode steps run through ``torch.compile``."""
        return self._compiled is not None

    def compile(self, on: bool = True) -> None:
        """Run decode steps through ``torch.compile``, in place of the fused forward, or no longer."""

        def forward(token_ids: Tensor, positions: Tensor) -> Tensor:
            out = self._model(input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=1)
            logits: Tensor = out.logits[:, -1]
            return logits

        self._compiled = CompiledForward(forward) if on else None

    def reserve(self, tokens: int) -> None:
        """Be ready for texts of so many tokens, and of as many as the model is made for: that takes little."""
        if self._fused is not None:
            self._fused.reserve(max(tokens, min(self.facts.max_tokens or 0, _MOST_RESERVED_TOKENS)))

    def prefill(self, token_ids: Tensor, step: ForwardStep) -> Tensor:
        """One prompt, (T,) int64, to the logits of its last token, (1, V)."""
        if self._fused is not None:
            return self._fused.prefill(token_ids, step)
        positions = torch.arange(token_ids.shape[0], device=token_ids.device)
        return self.forward(token_ids[None], positions[None], step)

    def decode(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """One token of every row, (B,) int64, to logits, (B, V)."""
        if self._compiled is not None:
            return self._compiled(tokens[:, None], step.text_positions[:, None], step)
        if self._fused is not None:
            return self._fused.decode(tokens, step)
        return self.forward(tokens[:, None], step.text_positions[:, None], step)

    def forward(self, token_ids: Tensor, positions: Tensor, step: ForwardStep) -> Tensor:
        """Run the model: token ids and text positions, (B, T) int64, to the logits of the last token, (B, V)."""
        out = self._model(
            input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=1, **{_STEP: step}
        )
        logits: Tensor = out.logits[:, -1]
        return logits


def load_tokenizer(entry: ModelEntry) -> ChatTokenizer:
    """Load the tokenizer alone: prompts are counted before weights are read.

    Raises:
        ModelError: one line, as in :func:`describe`.
    """
    with _quiet(), _one_line(entry):
        return ChatTokenizer(
            AutoTokenizer.from_pretrained(_where(entry), revision=entry.revision, trust_remote_code=False)
        )


def load(entry: ModelEntry, tokenizer: ChatTokenizer, dtype: str | None, device: torch.device) -> LanguageModel:
    """Load the weights; ``dtype`` as in :func:`describe`.

    Raises:
        ModelError: one line, as in :func:`describe`; also for weights that are missing, cut or of another shape.
    """
    config = _config(entry)
    facts = _facts(entry, config, dtype, device)
    where = _where(entry)
    with _quiet(), _one_line(entry):
        model, info = AutoModelForCausalLM.from_pretrained(
            where,
            revision=entry.revision,
            config=config,
            dtype=_DTYPES[facts.dtype],
            attn_implementation=_INTERFACE,
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
    facts = _facts(entry, config, dtype, device)
    with _quiet(), device:
        model = AutoModelForCausalLM.from_config(config, dtype=_DTYPES[facts.dtype], attn_implementation=_INTERFACE)
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


def _config(entry: ModelEntry) -> PreTrainedConfig:
    where = _where(entry)
    if entry.path is not None and not (entry.path / "config.json").is_file():
        raise ModelError(f"{entry.path}: no config.json there; give a model folder, a hub id or a zoo name")
    with _quiet(), _one_line(entry):
        return AutoConfig.from_pretrained(where, revision=entry.revision, trust_remote_code=False)


def _facts(entry: ModelEntry, config: PreTrainedConfig, dtype: str | None, device: torch.device) -> ModelFacts:
    where = _where(entry)
    _refuse_unserved(config, where)
    heads = int(config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    shape = ModelShape(
        layers=int(config.num_hidden_layers), heads=heads, kv_heads=int(kv_heads), head_dim=int(head_dim)
    )
    if entry.shape is not None and entry.shape != shape:
        raise ModelError(
            f"{where}: the config says {shape}, the zoo entry {entry.name} says {entry.shape}: not the same model"
        )
    if entry.architecture is not None and (difference := entry.architecture.difference(config)):
        raise ModelError(f"{where}: the config says {difference} the zoo entry {entry.name}: not the same model")
    with _quiet(), _one_line(entry), torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    skeleton.tie_weights()
    parameters = {id(parameter): parameter.numel() for parameter in skeleton.parameters()}
    embedding, head = skeleton.get_input_embeddings(), skeleton.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    name = _resolve_dtype(dtype, entry, config, device)
    element_bytes = _DTYPES[name].itemsize
    total = sum(parameters.values())
    return ModelFacts(
        shape=shape,
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        mlp=_mlp_width(config),
        weights_bytes=total * element_bytes,
        parameters=total,
        dtype=name,
        max_tokens=getattr(config, "max_position_embeddings", None),
        embedding_bytes=0 if tied else embedding.weight.numel() * element_bytes,
    )


def _mlp_width(config: PreTrainedConfig) -> int:
    dense = getattr(config, "intermediate_size", None) or 4 * config.hidden_size  # GPT-2's, where none is named
    expert = getattr(config, "moe_intermediate_size", None) or dense
    return int(max(dense, expert * (getattr(config, "num_experts_per_tok", None) or 0)))


def _refuse_unserved(config: PreTrainedConfig, where: str) -> None:
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{where}: {kind} is an encoder-decoder; the static cache serves decoder-only models")
    if config.get_text_config() is not config:
        raise ModelError(f"{where}: {kind} takes more than text; the static cache serves models of text only")
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(f"{where}: the weights are quantized; take the model in bfloat16, float16 or float32")
    if not hasattr(config, "num_attention_heads") or type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{where}: {kind} is not a decoder-only language model with attention")
    layer_types = getattr(config, "layer_types", None)
    for layer, layer_type in enumerate(layer_types or ()):
        if layer_type != "full_attention":
            raise ModelError(f"{where}: layer {layer} is {layer_type}; the static cache serves full attention only")
    if not layer_types and getattr(config, "sliding_window", None) is not None:
        raise ModelError(f"{where}: layer 0 is sliding_attention; the static cache serves full attention only")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # one set for all layers, or one for each type of layer
        kind = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if kind in ("dynamic", "longrope"):
            raise ModelError(
                f"{where}: rope type {kind} changes old positions as a text grows; kept keys would be wrong"
            )


def _resolve_dtype(asked: str | None, entry: ModelEntry, config: PreTrainedConfig, device: torch.device) -> str:
    """What was asked for; else float32 on a CPU, where half precision may be slow, and the model's own on a GPU."""
    if asked not in (None, "auto"):
        return str(asked)
    if device.type == "cpu":
        return "float32"
    if entry.dtype != "auto":
        return entry.dtype
    stored = str(config.dtype or "float32").removeprefix("torch.")
    return stored if stored in _DTYPES else "float32"


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


def _where(entry: ModelEntry) -> str:
    return str(entry.path) if entry.path is not None else str(entry.hub_id)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' and the hub client's progress bars and warnings: what matters is checked and said by us."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with quiet_hub_client():
            yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _one_line(entry: ModelEntry) -> Iterator[None]:
    """Turn what loading raises for a bad folder, an unreachable hub or a damaged file into one line."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    where = _where(entry)
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(f"{where} is gated: accept its terms on the hub, then run `hf auth login`") from error
    except (OSError, HfHubHTTPError) as error:
        hint = (
            "check the files"
            if entry.path is not None
            else "check the name and the network, or give a folder with --model"
        )
        raise ModelError(f"{where} cannot be loaded ({first_line(error)}): {hint}") from error
    except Exception as error:  # transformers and a family's own code raise what they like over a bad file
        raise ModelError(f"{where} cannot be loaded ({first_line(error)}): check its files") from error
