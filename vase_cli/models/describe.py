"""Find a model and read what its config says, before a weight is read.

Letters: V vocabulary.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from vase_cli.config.schema import ModelEntry, ModelShape
from vase_cli.errors import ModelError, first_line, quiet_hub_client

_DIGEST_BYTES = 2**20
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


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
    return facts_of(entry, read_config(entry) if config is None else config, dtype, device)


def make_config(name: str, values: Mapping[str, object]) -> PreTrainedConfig:
    """A config of these values, ``model_type`` among them; nothing is read.

    Raises:
        ModelError: an unknown family, or values that it refuses; starts with ``name``.
    """
    try:
        with quiet():
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


def read_config(entry: ModelEntry) -> PreTrainedConfig:
    """The config of a model folder or hub id; ModelError in one line as in :func:`describe`."""
    where = location(entry)
    if entry.path is not None and not (entry.path / "config.json").is_file():
        raise ModelError(f"{entry.path}: no config.json there; give a model folder, a hub id or a zoo name")
    with quiet(), loading_errors(entry):
        return AutoConfig.from_pretrained(where, revision=entry.revision, trust_remote_code=False)


def facts_of(entry: ModelEntry, config: PreTrainedConfig, dtype: str | None, device: torch.device) -> ModelFacts:
    """The facts that a config states, as :func:`describe` returns them."""
    where = location(entry)
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
    with quiet(), loading_errors(entry), torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    skeleton.tie_weights()
    parameters = {id(parameter): parameter.numel() for parameter in skeleton.parameters()}
    embedding, head = skeleton.get_input_embeddings(), skeleton.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    name = _resolve_dtype(dtype, entry, config, device)
    element_bytes = DTYPES[name].itemsize
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
    return stored if stored in DTYPES else "float32"


def location(entry: ModelEntry) -> str:
    """The folder or the hub id of a model."""
    return str(entry.path) if entry.path is not None else str(entry.hub_id)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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
def loading_errors(entry: ModelEntry) -> Iterator[None]:
    """Turn what loading raises for a bad folder, an unreachable hub or a damaged file into one line."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    where = location(entry)
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
