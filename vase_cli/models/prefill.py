"""The fused forward of prompts, several of them in a pack, layer by layer.

With kernels for the matrix products no bit of a prompt depends on the others of its pack, nor on its place in it.
Elsewhere products are the vendor's, whose order of a sum may change with the number of rows: a prompt is alone then.

Shapes: T tokens, P prompts, V vocabulary, E width of the residual stream, M width of the MLP, Hq query heads,
H KV heads, D head dim.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vase_cli.attention.base import PromptPack
from vase_cli.models.experts import mixture
from vase_cli.models.step import ForwardStep

if TYPE_CHECKING:
    from vase_cli.models.fused import _Layer

PromptForward = Generator[None, None, Tensor]
"""A forward that pauses behind each layer, and returns the logits of each prompt's last token, (P, V)."""

MLP_TOKENS_AT_ONCE = 8192  # the MLP of a long prompt runs in pieces of so many tokens: its activations are the widest


class Heads(NamedTuple):
    """What attention takes beside the weights; cosines and sines are (positions, D)."""

    query_heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    cos: Tensor
    sin: Tensor


def run(forward: PromptForward) -> Tensor:
    """The logits of a forward, without a pause."""
    while True:
        try:
            next(forward)
        except StopIteration as end:
            logits: Tensor = end.value
            return logits


def serves_packs(layers: Sequence["_Layer"], lm_head: Tensor) -> bool:
    """Whether kernels compute all products of a model."""
    from vase_cli.kernels.products import serves

    weights = [lm_head]
    for layer in layers:
        weights += [layer.projection, layer.output]
        if layer.router is None:  # a mixture has kernels of its own for all
            weights += [layer.gate_up, layer.down]
    return all(serves(weight) for weight in weights)


def product(states: Tensor, weight: Tensor) -> Tensor:
    """States (T, inputs) times a weight (outputs, inputs)."""
    from vase_cli.kernels.products import multiply, serves

    if not serves(weight):
        return torch.nn.functional.linear(states, weight)
    out = states.new_empty((states.shape[0], weight.shape[0]))
    multiply(states, weight, out)
    return out


def through_layers(
    residual: Tensor,
    layers: Sequence["_Layer"],
    norm: Tensor,
    heads: Heads,
    pack: PromptPack,
    step: ForwardStep,
) -> Generator[None, None, Tensor]:
    """The embedded tokens of a pack, (T, E), to the normed last states of each prompt, (P, E); a pause a layer."""
    from vase_cli.kernels.decoder import rms_norm, rotate_and_append

    tokens, device = residual.shape[0], residual.device
    positions = pack.positions
    first = torch.zeros(tokens, dtype=torch.int32, device=device)
    active = torch.ones(tokens, dtype=torch.int32, device=device)
    normed = torch.empty_like(residual)
    rms_norm(residual, layers[0].input_norm, heads.eps, normed)
    for number, layer in enumerate(layers):
        # Each token is a row of a cache of one slot: its rotated key and its value lie there alone.
        queries = residual.new_empty((tokens, heads.query_heads, heads.head_dim))
        states = residual.new_empty((2, tokens, 1, heads.kv_heads, heads.head_dim))
        rotate_and_append(
            product(normed, layer.projection), layer.bias, heads.cos, heads.sin, positions, layer.query_norm,
            layer.key_norm, heads.eps, states[0], states[1], first, active, None, queries,
        )  # fmt: skip
        attended = step.attend(number, queries[None], states[0, :, 0][None], states[1, :, 0][None], heads.scale)[0]
        delta = product(attended.reshape(tokens, -1), layer.output)
        del queries, states, attended
        if number == len(layers) - 1:
            last = pack.last
            residual, delta, normed = residual[last], delta[last], normed[: len(pack.bounds) - 1]
        rms_norm(residual, layer.mlp_norm, heads.eps, normed, delta)
        del delta
        delta = _mlp(normed, layer)
        following = layers[number + 1].input_norm if number + 1 < len(layers) else norm
        rms_norm(residual, following, heads.eps, normed, delta)
        del delta
        yield
    return normed


def _mlp(normed: Tensor, layer: "_Layer") -> Tensor:
    from vase_cli.kernels.decoder import silu_multiply
    from vase_cli.kernels.products import multiply_gated, serves

    pieces = []
    for piece in normed.split(MLP_TOKENS_AT_ONCE):
        if layer.router is not None:
            pieces.append(mixture(piece, layer.router, layer.gate_up, layer.down))
            continue
        activated = piece.new_empty((piece.shape[0], layer.down.shape[1]))
        if serves(layer.gate_up):
            multiply_gated(piece, layer.gate_up, activated)
        else:
            silu_multiply(torch.nn.functional.linear(piece, layer.gate_up), activated)
        pieces.append(product(activated, layer.down))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
