"""What is drawn for each candidate, and what is protected among their scores: no state is read.

Shapes as in ``_candidates``. The references in plain torch are in ``ops``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._candidates import program_of
from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
from vase_cli.randomness import SequenceNoise

_ELEMENTS = 1024  # elements that one program works on


def token_gumbel(
    noise: SequenceNoise, seq_lens: Tensor, positions: Tensor, rows: Tensor, candidates: int,
    weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """:meth:`TorchOps.token_gumbel`: the bits of its uniform numbers, and logarithms as precise as torch's."""
    items, heads = rows.shape[0], positions.shape[1]
    drawn = torch.empty((items, heads, candidates), dtype=torch.float32, device=positions.device)
    blocks = triton.cdiv(candidates, _ELEMENTS)
    _token_gumbel[(items * heads * blocks,)](
        *noise, seq_lens, positions, rows, None if weights is None else weights.contiguous(), drawn,
        *positions.stride()[:2], candidates, blocks, heads=heads, elements=_ELEMENTS,
    )  # fmt: skip
    return drawn


def sequence_uniforms(noise: SequenceNoise, seq_lens: Tensor | None, count: int) -> Tensor:
    """:meth:`TorchOps.sequence_uniforms`."""
    items = noise.keys.shape[0]
    uniforms = torch.empty((items, count), dtype=torch.float32, device=noise.keys.device)
    _sequence_uniforms[(items, triton.cdiv(count, _ELEMENTS))](*noise, seq_lens, uniforms, count, elements=_ELEMENTS)
    return uniforms


def protect(scores: Tensor, mask: Tensor, checked: Tensor | None = None) -> Tensor:
    """:meth:`TorchOps.protect`."""
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    checked = None if checked is None else checked.contiguous()
    _protect[(triton.cdiv(scores.numel(), _ELEMENTS),)](
        scores.contiguous(), mask.contiguous(), checked, out, scores.numel(), block=_ELEMENTS
    )
    return out


def protect_sinks(scores: Tensor, positions: Tensor, rows: Tensor, sinks: int) -> Tensor:
    """:meth:`TorchOps.protect_sinks`."""
    items, heads, candidates = scores.shape
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    blocks = triton.cdiv(candidates, _ELEMENTS)
    _protect_sinks[(items * heads * blocks,)](
        scores.contiguous(), positions, rows, out, *positions.stride()[:2], sinks, candidates, blocks,
        heads=heads, elements=_ELEMENTS,
    )  # fmt: skip
    return out


@triton.jit
def _token_gumbel(
    keys, layers, seq_lens, positions, rows, weights, noise, position_row, position_head, candidates, blocks,
    heads: tl.constexpr, elements: tl.constexpr,
):  # fmt: skip
    item, block, head = program_of(blocks, heads)
    row = tl.load(rows + item)
    token = block * elements + tl.arange(0, elements)
    valid = token < candidates
    position = tl.load(positions + row * position_row + head * position_head + token, mask=valid, other=0)
    state = mixed(tl.load(keys + item).to(tl.uint64))
    state = counted(state, tl.load(layers + item))
    state = counted(state, tl.load(seq_lens + item))
    state = counted(state, head)
    at = (item * heads + head).to(tl.int64) * candidates + token
    score = gumbel(uniform(counted(state, position)))
    if weights is not None:
        weight = tl.load(weights + at, mask=valid, other=1.0)
        score += tl.log(tl.where(weight < 1e-37, 1e-37, weight))
    tl.store(noise + at, score, mask=valid)


@triton.jit
def _sequence_uniforms(keys, layers, seq_lens, uniforms, count, elements: tl.constexpr):
    item = tl.program_id(0)
    number = tl.program_id(1) * elements + tl.arange(0, elements)
    state = mixed(tl.load(keys + item).to(tl.uint64))
    state = counted(state, tl.load(layers + item))
    if seq_lens is not None:
        state = counted(state, tl.load(seq_lens + item))
    tl.store(uniforms + item.to(tl.int64) * count + number, uniform(counted(state, number)), mask=number < count)


@triton.jit
def _protect(scores, mask, checked, out, elements, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < elements
    score = tl.load(scores + at, mask=inside)
    named = tl.load(mask + at, mask=inside, other=0) != 0
    score = tl.where(named & (score == score), float("inf"), score)
    if checked is not None:
        other = tl.load(checked + at, mask=inside)
        score = tl.where(other == other, score, float("nan"))
    tl.store(out + at, score, mask=inside)


@triton.jit
def _protect_sinks(
    scores, positions, rows, out, position_row, position_head, sinks, candidates, blocks,
    heads: tl.constexpr, elements: tl.constexpr,
):  # fmt: skip
    item, block, head = program_of(blocks, heads)
    row = tl.load(rows + item)
    token = block * elements + tl.arange(0, elements)
    valid = token < candidates
    position = tl.load(positions + row * position_row + head * position_head + token, mask=valid, other=0)
    at = (item * heads + head).to(tl.int64) * candidates + token
    score = tl.load(scores + at, mask=valid)
    score = tl.where((position < sinks) & (score == score), float("inf"), score)
    tl.store(out + at, score, mask=valid)
