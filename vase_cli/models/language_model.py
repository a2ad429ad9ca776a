"""A loaded model and its forward, which reaches the static cache.

The model is transformers' own. It reaches the static cache through ``AttentionInterface``: every layer calls
:func:`_attention`, which hands its states to the forward step that travels as a keyword argument. Families
that use the interface work without code of their own (Qwen3, Qwen2, Llama, Mistral, Qwen3-MoE).

Shapes: B rows, T tokens, V vocabulary, Hq query heads, H KV heads, D head dim.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from vase_cli.attention.base import PromptPack
from vase_cli.errors import ModelError, first_line
from vase_cli.models.compiled import CompiledForward, attend
from vase_cli.models.describe import ModelFacts
from vase_cli.models.fused import FusedForward, fuse
from vase_cli.models.prefill import PromptForward
from vase_cli.models.step import DecodeStep, ForwardStep

INTERFACE = "vase"
_STEP = "vase_step"
MOST_RESERVED_TOKENS = 2**17
"""The fused forward holds the rotations of as many positions as the model is made for, up to these."""


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
        raise RuntimeError(f"a model with attention '{INTERFACE}' was called without {_STEP}")
    if attention_mask is not None:
        raise RuntimeError("rows are packed from slot 0 with their own lengths: no attention mask may come here")
    unserved = {"sliding_window": sliding_window, "softcap": kwargs.get("softcap"), "s_aux": kwargs.get("s_aux")}
    for name, setting in unserved.items():
        if setting is not None:
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


AttentionInterface.register(INTERFACE, _attention)
AttentionMaskInterface.register(INTERFACE, _no_mask)


class _Probe:
    """A forward step that only counts which layers call it, and with which shapes."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.shapes: set[tuple[int, int, int]] = set()
        self.usual_scale = True

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        self.layers.append(layer)
        self.usual_scale &= math.isclose(scale, queries.shape[-1] ** -0.5, rel_tol=1e-6)
        self.shapes |= {(queries.shape[2], states.shape[2], states.shape[3]) for states in (keys, values)}
        return queries.new_zeros((*queries.shape[:3], values.shape[3]))


class LanguageModel:
    """A loaded model that the static cache can serve.

    Attributes:
        facts, device: figures of the model, and where its weights are.
        model: transformers' own module, with these weights.
        eos_token_ids: every id that ends a text, from the generation config.
        usual_scale: whether every layer's scores are q·k / sqrt(D).
    """

    def __init__(
        self, facts: ModelFacts, model: PreTrainedModel, eos_token_ids: frozenset[int], device: torch.device, where: str
    ) -> None:
        """Run the model once, to see that all its layers reach the cache; else a ModelError, ``where`` first."""
        self.facts = facts
        self.device = device
        self.eos_token_ids = eos_token_ids
        self.model = model
        self._fused: FusedForward | None = None
        self._compiled: CompiledForward | None = None
        self.usual_scale = self._check_layers(where)

    def fuse(self) -> None:
        """Use the fused forward from here on; FusionError says why not, and transformers' own forward stays."""
        self._fused = fuse(self.model, self.forward)

    @property
    def compiled(self) -> bool:
        """Whether decode steps run through ``torch.compile``."""
        return self._compiled is not None

    def compile(self, on: bool = True) -> None:
        """Run decode steps through ``torch.compile``, in place of the fused forward, or no longer."""

        def forward(token_ids: Tensor, positions: Tensor) -> Tensor:
            return self._logits(token_ids, positions)

        self._compiled = CompiledForward(forward) if on else None

    def reserve(self, tokens: int) -> None:
        """Be ready for texts of so many tokens, and of as many as the model is made for: that takes little."""
        if self._fused is not None:
            self._fused.reserve(max(tokens, min(self.facts.max_tokens or 0, MOST_RESERVED_TOKENS)))

    @property
    def packs(self) -> bool:
        """Whether :meth:`prefill` takes several prompts: no bit of one depends on the others then."""
        return self._fused is not None and self._fused.packs

    def prefill(self, token_ids: Tensor, pack: PromptPack, step: ForwardStep) -> PromptForward:
        """The prompts of a pack, (T,) int64; without the fused forward it does not pause."""
        if self._fused is not None:
            return (yield from self._fused.prefill_layers(token_ids, pack, step))
        return self.forward(token_ids[None], pack.positions[None], step)

    def decode(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """One token of every row, (B,) int64, to logits, (B, V)."""
        if self._compiled is not None:
            return self._compiled(tokens[:, None], step.text_positions[:, None], step)
        if self._fused is not None:
            return self._fused.decode(tokens, step)
        return self.forward(tokens[:, None], step.text_positions[:, None], step)

    def forward(self, token_ids: Tensor, positions: Tensor, step: ForwardStep) -> Tensor:
        """Run the model: token ids and text positions, (B, T) int64, to the logits of the last token, (B, V)."""
        return self._logits(token_ids, positions, **{_STEP: step})

    def _logits(self, token_ids: Tensor, positions: Tensor, **step: ForwardStep) -> Tensor:
        out = self.model(input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=1, **step)
        logits: Tensor = out.logits[:, -1]
        return logits

    @torch.inference_mode()
    def _check_layers(self, where: str) -> bool:
        """One forward of two tokens: every layer must call the cache once, with the config's shape; ``usual_scale``."""
        shape, probe = self.facts.shape, _Probe()
        tokens = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        try:
            self.forward(tokens, torch.arange(2, device=self.device)[None], probe)
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except Exception as error:  # a family's own code, which may ask for what this forward does not give
            raise ModelError(f"{where}: its forward does not run on the static cache ({first_line(error)})") from error
        if probe.shapes - {(shape.heads, shape.kv_heads, shape.head_dim)}:
            heads = f"its heads are {sorted(probe.shapes)}, its config says {shape}"
            raise ModelError(f"{where}: {heads}: it cannot be served")
        for layer in range(shape.layers):
            if probe.layers.count(layer) != 1:
                problem = f"layer {layer} does not use transformers' attention interface once"
                raise ModelError(f"{where}: {problem}: it cannot be served")
        return probe.usual_scale
