"""Find a model and read what its config says, before a weight is read.

Shapes: V vocabulary.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from vase_cli.config.schema import ModelEntry, ModelShape
from vase_cli.errors import ModelError, first_line, quiet_log

_MOST_LAYERS = 1000  # more would take minutes to lay out, and are a fault of the config
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class ModelFacts:
    """Figures of a model, known before its weights are read."""

    shape: ModelShape
    vocabulary: int  # V
    hidden: int  # width of the residual stream
    mlp: int  # width of the MLP (of all experts that one token uses)
    weights_bytes: int  # of all parameters in ``dtype``, each counted once
    parameters: int  # elements of all parameters, each counted once
    dtype: str  # of the loaded weights
    max_tokens: int | None  # the longest text that positions are configured for; None if the config has none
    embedding_bytes: int = 0  # of ``weights_bytes``, those of an embedding that is not also the head
    experts_per_token: int = 0  # K, of a mixture of experts; 0 for a dense model

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and states."""
        return DTYPES[self.dtype]


def read_config(entry: ModelEntry) -> PreTrainedConfig:
    """The config of a model folder or hub id; ModelError in one line as in :func:`describe`."""
    if entry.path is not None and not (entry.path / "config.json").is_file():
        raise ModelError(f"{entry.path}: no config.json there; give a model folder, a hub id or a zoo name")
    with quiet(), loading_errors(entry):
        written, _ = PreTrainedConfig.get_config_dict(location(entry), revision=entry.revision)
    if "auto_map" in written and (kind := str(written.get("model_type"))) not in CONFIG_MAPPING:
        problem = f"model type '{kind}' needs code that comes with the model, which is never run"
        raise ModelError(f"{location(entry)}: {problem}: take a model of a type that transformers has")
    with quiet(), loading_errors(entry):
        return AutoConfig.from_pretrained(location(entry), revision=entry.revision, trust_remote_code=False)


def describe(
    entry: ModelEntry, dtype: str | None, device: torch.device, config: PreTrainedConfig | None = None
) -> ModelFacts:
    """Read a model's config and refuse what the cache cannot serve; no weight is read.

    The entry's ``shape`` and ``architecture`` are checked against the config, the model's own or the one given.
    ``dtype`` None or "auto" is the checkpoint's own on a GPU, and float32 on a CPU.
    ModelError for a model that is not found, gated, offline, unreadable, or not to be served.
    """
    config = read_config(entry) if config is None else config
    where = location(entry)
    _refuse_unserved(config, where)
    with loading_errors(entry):
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        shape = ModelShape(int(config.num_hidden_layers), heads, kv_heads, head_dim)
        max_tokens = _max_tokens(config)
        for key in ("hidden_size", "intermediate_size", "vocab_size"):
            if (size := getattr(config, key, None)) is not None and not int(size) > 0:
                raise ValueError(f"{key} is {size}")
    guessed = entry.path is not None and entry.origins.get("shape") == str(entry.path / "config.json")
    if entry.shape is not None and not guessed and entry.shape != shape:
        differs = f"the config says {shape}, the zoo entry {entry.name} says {entry.shape}"
        raise ModelError(f"{where}: {differs}: not the same model")
    if entry.architecture is not None:
        entry.architecture.check(config, where)
    with quiet(), loading_errors(entry), torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, attn_implementation="eager")  # not the config's own wish
    skeleton.tie_weights()
    parameters = {id(parameter): parameter.numel() for parameter in skeleton.parameters()}
    embedding, head = skeleton.get_input_embeddings(), skeleton.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    dtype = _resolve_dtype(dtype, entry, config, device)
    element_bytes = DTYPES[dtype].itemsize
    total = sum(parameters.values())
    return ModelFacts(
        shape=shape,
        vocabulary=int(config.vocab_size),
        hidden=int(config.hidden_size),
        mlp=_mlp_width(config),
        experts_per_token=int(getattr(config, "num_experts_per_tok", None) or 0),
        weights_bytes=total * element_bytes,
        parameters=total,
        dtype=dtype,
        max_tokens=max_tokens,
        embedding_bytes=0 if tied else embedding.weight.numel() * element_bytes,
    )


def _max_tokens(config: PreTrainedConfig) -> int | None:
    """The longest text that positions are made for; YaRN extends what the model was trained with by its factor."""
    configured: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if configured is None or rope.get("rope_type") != "yarn":
        return configured and int(configured)
    return max(
        configured, int((rope.get("factor") or 1.0) * (rope.get("original_max_position_embeddings") or configured))
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
    if config.num_hidden_layers > _MOST_LAYERS:
        raise ModelError(
            f"{where}: {config.num_hidden_layers:,} layers; no model has over {_MOST_LAYERS:,}: check config.json"
        )
    sliding = getattr(config, "sliding_window", None) is not None
    layer_types = getattr(config, "layer_types", None) or (["sliding_attention"] if sliding else [])
    for layer, layer_type in enumerate(layer_types):
        if layer_type != "full_attention":
            raise ModelError(f"{where}: layer {layer} is {layer_type}; the static cache serves full attention only")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # one set for all layers, or one for each type of layer
        kind = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if kind in ("dynamic", "longrope"):
            problem = f"rope type {kind} changes old positions as a text grows"
            raise ModelError(f"{where}: {problem}; kept keys would be wrong")


def _resolve_dtype(asked: str | None, entry: ModelEntry, config: PreTrainedConfig, device: torch.device) -> str:
    """The dtype asked for; else the model's own, but float32 on a CPU, where half precision may be slow.

    The checkpoint decides on CUDA alone: what other devices compute in it, only the zoo entry can know.
    """
    if asked not in (None, "auto"):
        return str(asked)
    if device.type == "cpu":
        return "float32"
    if entry.dtype != "auto":
        return entry.dtype
    if device.type != "cuda":
        return "float32"
    stored = str(config.dtype or "float32").removeprefix("torch.")
    return stored if stored in DTYPES else "float32"


def location(entry: ModelEntry) -> str:
    """The folder or the hub id of a model."""
    return str(entry.path) if entry.path is not None else str(entry.hub_id)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' and the hub client's progress bars and warnings: we check what matters, and say it."""
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with quiet_log("huggingface_hub"):  # it warns on every retry of a connection that is down
            yield
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


@contextlib.contextmanager
def loading_errors(entry: ModelEntry) -> Iterator[None]:
    """Turn any error over a bad folder, an unreachable hub or a damaged file into one line."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    where = location(entry)
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(f"{where} is gated: accept its terms on the hub, then run `hf auth login`") from error
    except (OSError, HfHubHTTPError) as error:
        hint = "check the files" if entry.path else "check the name and the network, or give a folder with --model"
        raise ModelError(f"{where} cannot be loaded ({first_line(error)}): {hint}") from error
    except Exception as error:  # transformers and a family's own code raise what they like over a bad file
        raise ModelError(f"{where} cannot be loaded ({first_line(error)}): check its files") from error
