"""A model's forward in few, large operations, for devices that run Triton kernels.

The weights are transformers' own: the projections of queries, keys and values become one matrix, those of gate and
up another, and the model's parameters become views of them, so that nothing is held twice. Between the matrix
products stand kernels that do what transformers does in five to ten launches each. Only families whose layers are
known to be made so are taken, and each model is compared with transformers' own forward before it is used.

Shapes: T tokens of prompts, B rows in a decode step, V vocabulary, E width of the residual
stream, M width of the MLP, Hq query heads, H KV heads, D head dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vase_cli.attention.base import PromptPack
from vase_cli.models.experts import Choice, Router, is_mixture, is_stacked, mixture, recorded_choices, take_router
from vase_cli.models.prefill import Heads, PromptForward, product, run, serves_packs, through_layers
from vase_cli.models.step import DecodeStep, ForwardStep

FAMILIES = frozenset(
    {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen3MoeForCausalLM"}
)
_PROBE_TOKENS = 24
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class _Layer:
    """One layer's weights: norms (E,), projections (outputs, inputs); a router's experts have theirs stacked."""

    input_norm: Tensor
    mlp_norm: Tensor
    projection: Tensor
    bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    gate_up: Tensor
    down: Tensor
    router: Router | None


class FusionError(Exception):
    """Why a model keeps transformers' own forward, in one line."""


class FusedForward:
    """The forward of one model; see :func:`fuse`."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._eps = float(config.rms_norm_eps)
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._norm: Tensor = model.model.norm.weight
        self._lm_head: Tensor = model.lm_head.weight
        self._rotary = model.model.rotary_emb
        self._layers = [_take_layer(layer) for layer in model.model.layers]
        self._head_dim = self._layers[0].projection.shape[0] // (self._heads + 2 * self._kv_heads)
        self._scale = float(model.model.layers[0].self_attn.scaling)
        self._cos = self._sin = torch.empty(0)
        self.packs = serves_packs(self._layers, self._lm_head)  # whether several prompts may be prefilled together
        self._replaced: list[tuple[Tensor, Tensor]] = []
        self.reserve(_PROBE_TOKENS)

    def reserve(self, tokens: int) -> None:
        """Hold the rotations of texts of so many tokens: (tokens, D) cosines and sines, in the model's dtype."""
        if self._cos.shape[0] >= tokens:
            return
        positions = torch.arange(tokens, device=self._embedding.device)[None]
        cos, sin = self._rotary(torch.empty(0, dtype=torch.float32, device=positions.device), positions)
        dtype = self._embedding.dtype
        self._replaced.append((self._cos, self._sin))  # graphs captured before go on reading them
        self._cos, self._sin = cos[0].to(dtype).contiguous(), sin[0].to(dtype).contiguous()

    def prefill(self, token_ids: Tensor, step: ForwardStep) -> Tensor:
        """One prompt, (T,) int64, to the logits of its last token, (1, V)."""
        return run(self.prefill_layers(token_ids, PromptPack(token_ids.shape, token_ids.device), step))

    def prefill_layers(self, token_ids: Tensor, pack: PromptPack, step: ForwardStep) -> PromptForward:
        """Prompts, (T,) int64, see :class:`PromptForward`."""
        heads = Heads(self._heads, self._kv_heads, self._head_dim, self._eps, self._scale, self._cos, self._sin)
        residual = torch.nn.functional.embedding(token_ids, self._embedding)
        last = yield from through_layers(residual, self._layers, self._norm, heads, pack, step)
        return product(last, self._lm_head)

    def decode(self, tokens: Tensor, step: DecodeStep) -> Tensor:
        """One token of every row, (B,) int64, to logits, (B, V)."""
        from vase_cli.kernels.decoder import rotate_and_append

        cache = step.cache
        rows = tokens.shape[0]

        def attend(number: int, layer: _Layer, projected: Tensor) -> Tensor:
            queries = projected.new_empty((rows, self._heads, self._head_dim))
            ring = None if cache.queries is None else cache.queries[number]
            rotate_and_append(
                projected, layer.bias, self._cos, self._sin, step.text_positions, layer.query_norm, layer.key_norm,
                self._eps, cache.keys[number], cache.values[number], cache.lengths, step.active, ring, queries,
                cache.row_starts,
            )  # fmt: skip
            return step.attend_to_cache(number, queries, self._scale)

        return self._linear(self._through_layers(tokens, attend), self._lm_head)

    def prefill_as_chosen(self, token_ids: Tensor, step: ForwardStep, choices: dict[int, Choice]) -> Tensor:
        """As :meth:`prefill`, with the experts that transformers' routers chose, by layer."""
        own = self._layers
        self._layers = [_following(layer, choices.get(number)) for number, layer in enumerate(own)]
        try:
            return self.prefill(token_ids, step)
        finally:
            self._layers = own

    def routers_error(self, choices: dict[int, Choice]) -> float:
        """How far the router that differs most is off those choices, relatively; 0 without routers."""
        routers = [(number, layer.router) for number, layer in enumerate(self._layers) if layer.router is not None]
        return max((router.error(choices[number]) for number, router in routers), default=0.0)

    def _through_layers(self, token_ids: Tensor, attend: Callable[[int, _Layer, Tensor], Tensor]) -> Tensor:
        """The normed last states, (B, E)."""
        from vase_cli.kernels.decoder import rms_norm

        residual = torch.nn.functional.embedding(token_ids, self._embedding)
        normed = torch.empty_like(residual)
        rms_norm(residual, self._layers[0].input_norm, self._eps, normed)
        for number, layer in enumerate(self._layers):
            attended = attend(number, layer, self._linear(normed, layer.projection))
            delta = self._linear(attended.reshape(residual.shape[0], -1), layer.output)
            rms_norm(residual, layer.mlp_norm, self._eps, normed, delta)
            delta = self._mlp(normed, layer)
            following = self._layers[number + 1].input_norm if number + 1 < len(self._layers) else self._norm
            rms_norm(residual, following, self._eps, normed, delta)
        return normed

    def _mlp(self, normed: Tensor, layer: _Layer) -> Tensor:
        from vase_cli.kernels.decoder import silu_multiply

        if layer.router is not None:
            return mixture(normed, layer.router, layer.gate_up, layer.down)
        gate_up = self._linear(normed, layer.gate_up)
        activated = gate_up.new_empty((normed.shape[0], gate_up.shape[1] // 2))
        silu_multiply(gate_up, activated)
        return self._linear(activated, layer.down)

    def _linear(self, states: Tensor, weight: Tensor) -> Tensor:
        from vase_cli.kernels.linear import linear, serves

        if serves(states, weight):
            out = states.new_empty((states.shape[0], weight.shape[0]))
            linear(states, weight, out)
            return out
        return torch.nn.functional.linear(states, weight)


def fuse(model: Any, reference: Callable[[Tensor, Tensor, ForwardStep], Tensor]) -> FusedForward:
    """Rearrange the weights of transformers' model, and compare with its own forward, ``reference``.

    FusionError for a model that is not made as it must be, or whose fused forward disagrees with its own.
    """
    _check_fusible(model)
    with torch.inference_mode():
        step = _PlainStep()
        vocabulary = model.model.embed_tokens.weight.shape[0]
        positions = torch.arange(_PROBE_TOKENS, device=model.device)
        token_ids = positions * 7919 % vocabulary
        with recorded_choices(model) as choices:
            expected = reference(token_ids[None], positions[None], step).float()
    with torch.no_grad():
        forward = FusedForward(model)
    with torch.inference_mode():
        got = forward.prefill_as_chosen(token_ids, step, choices).float()
        error = float((got - expected).norm() / expected.norm())
        routers_error = forward.routers_error(choices)
    if not error <= _PROBE_TOLERANCE[model.dtype]:
        raise FusionError(f"the fused forward is {error:.1%} off transformers' own")
    if not routers_error <= _PROBE_TOLERANCE[model.dtype]:
        raise FusionError(f"a router is {routers_error:.1%} off transformers' own")
    return forward


class _PlainStep:
    """A forward step without a cache: causal attention of the one prompt."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        queries, keys, values = (states.transpose(1, 2) for states in (queries, keys, values))
        out = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=queries.shape[1] != keys.shape[1]
        )
        return out.transpose(1, 2)


def _check_fusible(model: Any) -> None:
    """Refuse a model with a ``FusionError`` unless its layers are made as the fused forward takes them to be."""
    name = type(model).__name__
    if name not in FAMILIES:
        raise FusionError(f"the layers of {name} are not known here")
    if model.config.hidden_act != "silu":
        raise FusionError(f"its MLP uses {model.config.hidden_act}")
    attention, mlps = model.model.layers[0].self_attn, [layer.mlp for layer in model.model.layers]
    head_dim = attention.head_dim
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        raise FusionError(f"its head dim is {head_dim}")
    if not all(is_stacked(mlp) for mlp in mlps if is_mixture(mlp)):
        raise FusionError("its experts are not stacked")
    dense = [part for mlp in mlps if not is_mixture(mlp) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    if any(part.bias is not None for part in (attention.o_proj, *dense)):
        raise FusionError("its projections have biases")
    if model.lm_head.bias is not None:
        raise FusionError("its lm_head has a bias")


def _take_layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    sparse = is_mixture(mlp)
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases = [projection.bias for projection in projections]
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        projection=_merge(projections),
        bias=None if biases[0] is None else torch.cat(biases),
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        output=attention.o_proj.weight,
        gate_up=mlp.experts.gate_up_proj if sparse else _merge([mlp.gate_proj, mlp.up_proj]),
        down=mlp.experts.down_proj if sparse else mlp.down_proj.weight,
        router=take_router(mlp) if sparse else None,
    )


def _following(layer: _Layer, choice: Choice | None) -> _Layer:
    if layer.router is None or choice is None:
        return layer
    return replace(layer, router=layer.router.following(choice))


def _merge(projections: list[nn.Linear]) -> Tensor:
    """One matrix of several, whose parameters become views of it."""
    merged = torch.cat([projection.weight for projection in projections])
    start = 0
    for projection in projections:
        rows = projection.weight.shape[0]
        projection.weight = nn.Parameter(merged[start : start + rows], requires_grad=False)
        start += rows
    return merged
