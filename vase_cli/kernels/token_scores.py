"""What is drawn for each candidate, and what is protected among their scores: no state is read.

Shapes as in ``_candidates``. The references in plain torch are in ``randomness`` and ``eviction/_scores``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._candidates import program_of
from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform

_ELEMENTS = 1024  # elements that one program works on


def token_gumbel(
    keys: Tensor,
    layers: Tensor,
    text_tokens: Tensor,
    positions: Tensor,
    rows: Tensor,
    candidates: int,
    weights: Tensor | None = None,
) -> Tensor:
    """``SequenceNoise(keys, layers).token_gumbel(text_tokens, positions, rows, candidates, weights)`` in one launch.

    The uniform numbers have the bits of ``randomness.uniform``; their logarithms are as precise as torch's.
    """
    items, heads = rows.shape[0], positions.shape[1]
    noise = torch.empty((items, heads, candidates), dtype=torch.float32, device=positions.device)
    blocks = triton.cdiv(candidates, _ELEMENTS)
    _token_gumbel[(items * heads * blocks,)](
        keys, layers, text_tokens, positions, rows, None if weights is None else weights.contiguous(), noise,
        *positions.stride()[:2], candidates, blocks, heads=heads, elements=_ELEMENTS,
    )  # fmt: skip
    return noise


def sequence_uniforms(keys: Tensor, layers: Tensor, text_tokens: Tensor | None, count: int) -> Tensor:
    """``randomness.uniform(key, layer[, text_tokens], number)`` for the first ``count`` numbers of each item.

    From (N,) int64 stream keys, layers and lengths of text, None leaves those out, to (N, count) float32.
    """
    uniforms = torch.empty((keys.shape[0], count), dtype=torch.float32, device=keys.device)
    grid = (keys.shape[0], triton.cdiv(count, _ELEMENTS))
    _sequence_uniforms[grid](keys, layers, text_tokens, uniforms, count, elements=_ELEMENTS)
    return uniforms


def protect(scores: Tensor, mask: Tensor, checked: Tensor | None) -> Tensor:
    """``scores`` with ``inf`` where ``mask`` is set; NaN where they, or ``checked``, are NaN. All (N, H, C)."""
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    checked = None if checked is None else checked.contiguous()
    _protect[(triton.cdiv(scores.numel(), _ELEMENTS),)](
        scores.contiguous(), mask.contiguous(), checked, out, scores.numel(), block=_ELEMENTS
    )
    return out


def protect_sinks(scores: Tensor, positions: Tensor, rows: Tensor, sinks: int) -> Tensor:
    """``scores``, (N, H, C), with ``inf`` where the text position, (R, H, S) int32, is below ``sinks``; NaN stays."""
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
    keys, layers, text_tokens, positions, rows, weights, noise, position_row, position_head, candidates, blocks,
    heads: tl.constexpr, elements: tl.constexpr,
):  # fmt: skip
    item, block, head = program_of(blocks, heads)
    row = tl.load(rows + item)
    token = block * elements + tl.arange(0, elements)
    valid = token < candidates
    position = tl.load(positions + row * position_row + head * position_head + token, mask=valid, other=0)
    state = mixed(tl.load(keys + item).to(tl.uint64))
    state = counted(state, tl.load(layers + item))
    state = counted(state, tl.load(text_tokens + item))
    state = counted(state, head)
    at = (item * heads + head).to(tl.int64) * candidates + token
    score = gumbel(uniform(counted(state, position)))
    if weights is not None:
        weight = tl.load(weights + at, mask=valid, other=1.0)
        score += tl.log(tl.where(weight < 1e-37, 1e-37, weight))
    tl.store(noise + at, score, mask=valid)


@triton.jit
def _sequence_uniforms(keys, layers, text_tokens, uniforms, count, elements: tl.constexpr):
    item = tl.program_id(0)
    number = tl.program_id(1) * elements + tl.arange(0, elements)
    state = mixed(tl.load(keys + item).to(tl.uint64))
    state = counted(state, tl.load(layers + item))
    if text_tokens is not None:
        state = counted(state, tl.load(text_tokens + item))
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
