"""The scores that eviction methods are made of, read straight from the storage of the cache.

Letters: R storage rows, S slots of a row, N work items (one layer of one sequence), C candidates (the first
tokens in text order), H KV heads, D head dim, a power of two from 16 to 256. States are (R, S, H, D) in
bfloat16, float16 or float32, their last dimension contiguous; ``rows`` (N,) int64 names the storage row of each
item; ``slots`` (R, H, S) int32 is the slot of each token in text order, None where that is the token's index.
Results are (N, H, C) float32 in text order. An item's result depends neither on N nor on the other items: each
program belongs to one item, and all sums are cut up by fixed numbers of candidates.

The definitions, and the twins in plain torch, are in ``eviction/_scores`` and ``randomness``.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
from vase_cli.kernels._window import Tiles, WindowTiles, order_of, slots_of, span_of, stages_of, window_attention

__all__ = [
    "LeverageTiles",
    "Tiles",
    "WindowTiles",
    "leverage",
    "redundancy",
    "token_gumbel",
    "value_range",
    "window_attention",
]

_TILE_BYTES = 16_384
_SUMMED = 512
"""Candidates in one part of the sum of unit keys, unless that makes more than 64 parts."""
_KNOWN = 512
"""Candidates of which a program first looks whether all value ranges are known."""
_ELEMENTS = 1024
"""Elements of a program that works on each element by itself."""


class LeverageTiles(NamedTuple):
    """How leverage is cut up: candidates of a tile and of a program, warps, tiles in flight.

    ``pieces`` bfloat16 numbers stand for one float32 of the projection: 3 hold all its bits, 2 all but 2^-18 of it.
    """

    candidates: int
    span: int
    warps: int
    stages: int
    pieces: int = 3


def value_range(
    values: Tensor,
    rows: Tensor,
    slots: Tensor | None,
    candidates: int,
    *,
    known: Tensor | None = None,
    newest: int = 0,
) -> Tensor:
    """Maximum minus minimum of each candidate's value state; NaN where an element or the difference is not finite.

    Args:
        values: (R, S, H, D).
        rows: (N,) int64.
        slots: (R, H, S) int32 or None.
        candidates: C.
        known: (R, H, S) float32, contiguous, by storage slot: ranges found before, negative where none was. Those are
            taken and the others added, so that a value state is read once; each of ``rows`` is then named once. None
            reads all.
        newest: the last so many candidates are read whatever ``known`` says.

    Returns:
        (N, H, C) float32.
    """
    items, heads, head_dim = rows.shape[0], values.shape[2], values.shape[3]
    ranges = torch.empty((items, heads, candidates), dtype=torch.float32, device=values.device)
    tile = _tile(values)
    block = tile if known is None else max(tile, _KNOWN)
    blocks = triton.cdiv(candidates, block)
    _value_range[(items * blocks * heads,)](
        values, rows, *order_of(slots, rows), ranges, known, *values.stride()[:3], values.shape[1], candidates, newest,
        blocks, heads=heads, head_dim=head_dim, indirect=slots is not None, tile=tile, block=block,
    )  # fmt: skip
    return ranges


def leverage(
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    slots: Tensor | None,
    candidates: int,
    projection: Tensor,
    *,
    tiles: LeverageTiles | None = None,
) -> Tensor:
    """``|k P|² |v P|²`` of each candidate; NaN where it is not finite.

    Args:
        keys: (R, S, H, D).
        values: (R, S, H, D).
        rows: (N,) int64.
        slots: (R, H, S) int32 or None.
        candidates: C.
        projection: P, (N, D, r) float32, r at most 64.
        tiles: other tiles than the usual ones, to measure them.

    Returns:
        (N, H, C) float32.
    """
    items, heads, head_dim = rows.shape[0], keys.shape[2], keys.shape[3]
    rank = projection.shape[2]
    tile, span, warps, stages, pieces = tiles or _leverage_tiles(keys)
    scores = torch.empty((items, heads, candidates), dtype=torch.float32, device=keys.device)
    spans = triton.cdiv(candidates, span)
    _leverage[(items * spans * heads,)](
        keys, values, rows, *order_of(slots, rows), projection, scores, *keys.stride()[:3], *values.stride()[:3],
        *projection.stride(), candidates, spans,
        heads=heads, head_dim=head_dim, indirect=slots is not None, tile=tile, span=span,
        rank=rank, columns=max(16, triton.next_power_of_2(rank)), pieces=pieces if keys.dtype == torch.bfloat16 else 0,
        num_warps=warps, num_stages=stages_of(stages, slots is not None),
    )  # fmt: skip
    return scores


def redundancy(keys: Tensor, rows: Tensor, slots: Tensor | None, candidates: int) -> Tensor:
    """Softmax over the candidates of the mean cosine similarity of a key to the others; sums to 1 over C.

    NaN in the whole head where a key is not finite. Reads the keys twice.
    """
    items, heads, head_dim = rows.shape[0], keys.shape[2], keys.shape[3]
    tile = _tile(keys)
    summed = span_of(_SUMMED, candidates, 64)
    parts, blocks = triton.cdiv(candidates, summed), triton.cdiv(candidates, tile)
    key_sums = torch.empty((items, heads, parts, head_dim), dtype=torch.float32, device=keys.device)
    weight_sums = torch.empty((items, heads, blocks), dtype=torch.float32, device=keys.device)
    weights = torch.empty((items, heads, candidates), dtype=torch.float32, device=keys.device)
    order = order_of(slots, rows)
    shape = {"heads": heads, "head_dim": head_dim, "indirect": slots is not None, "tile": tile}
    _sum_unit_keys[(items * parts * heads,)](
        keys, rows, *order, key_sums, *keys.stride()[:3], candidates, parts, **shape, summed=summed
    )
    _weigh_similarity[(items * blocks * heads,)](
        keys, rows, *order, key_sums, weights, weight_sums, *keys.stride()[:3], candidates, parts, blocks, **shape,
        padded_parts=triton.next_power_of_2(parts),
    )  # fmt: skip
    _divide_by_sum[(items * heads * triton.cdiv(candidates, _ELEMENTS),)](
        weights, weight_sums, candidates, blocks, triton.cdiv(candidates, _ELEMENTS),
        padded_blocks=triton.next_power_of_2(blocks), elements=_ELEMENTS,
    )  # fmt: skip
    return weights


def token_gumbel(
    keys: Tensor,
    layers: Tensor,
    text_tokens: Tensor,
    positions: Tensor,
    rows: Tensor,
    candidates: int,
    weights: Tensor | None = None,
) -> Tensor:
    """The noise of each candidate: ``SequenceNoise(keys, layers).gumbel(text_tokens, head, position)``.

    The uniform numbers have the bits of ``randomness.uniform``; their logarithms are as precise as torch's.

    Args:
        keys: (N,) int64, the stream key of each item's sequence.
        layers: (N,) int64, the layer of each item.
        text_tokens: (N,) int64, the length of each item's text.
        positions: (R, H, S) int32, text positions in text order.
        rows: (N,) int64.
        candidates: C.
        weights: (N, H, C) float32, not negative, whose logarithms are added; None for none.

    Returns:
        (N, H, C) float32, standard Gumbel noise.
    """
    items, heads = rows.shape[0], positions.shape[1]
    noise = torch.empty((items, heads, candidates), dtype=torch.float32, device=positions.device)
    blocks = triton.cdiv(candidates, _ELEMENTS)
    _token_gumbel[(items * heads * blocks,)](
        keys, layers, text_tokens, positions, rows, None if weights is None else weights.contiguous(), noise,
        *positions.stride()[:2], candidates, blocks, heads=heads, elements=_ELEMENTS,
    )  # fmt: skip
    return noise


def protect(scores: Tensor, mask: Tensor, checked: Tensor | None) -> Tensor:
    """``scores`` with ``inf`` where ``mask`` is set; NaN where they, or ``checked``, are NaN. All (N, H, C)."""
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    elements = scores.numel()
    _protect[(triton.cdiv(elements, _ELEMENTS),)](
        scores.contiguous(),
        mask.contiguous(),
        None if checked is None else checked.contiguous(),
        out,
        elements,
        block=_ELEMENTS,
    )
    return out


def protect_sinks(scores: Tensor, positions: Tensor, rows: Tensor, sinks: int) -> Tensor:
    """``scores``, (N, H, C), with ``inf`` at the text positions below ``sinks``, NaN kept.

    Args:
        scores: (N, H, C) float32 in text order.
        positions: (R, H, S) int32, text positions in text order.
        rows: (N,) int64.
        sinks: how many.

    Returns:
        (N, H, C) float32.
    """
    items, heads, candidates = scores.shape
    out = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    blocks = triton.cdiv(candidates, _ELEMENTS)
    _protect_sinks[(items * heads * blocks,)](
        scores.contiguous(), positions, rows, out, *positions.stride()[:2], sinks, candidates, blocks,
        heads=heads, elements=_ELEMENTS,
    )  # fmt: skip
    return out


def sequence_uniforms(keys: Tensor, layers: Tensor, text_tokens: Tensor | None, count: int) -> Tensor:
    """``randomness.uniform(key, layer[, text_tokens], number)`` for the first ``count`` numbers of each item.

    Args:
        keys: (N,) int64, the stream key of each item's sequence.
        layers: (N,) int64, the layer of each item.
        text_tokens: (N,) int64, the length of each item's text; None leaves it out.
        count: how many.

    Returns:
        (N, count) float32, uniform in (0, 1).
    """
    uniforms = torch.empty((keys.shape[0], count), dtype=torch.float32, device=keys.device)
    grid = (keys.shape[0], triton.cdiv(count, _ELEMENTS))
    _sequence_uniforms[grid](keys, layers, text_tokens, uniforms, count, elements=_ELEMENTS)
    return uniforms


def _tile(states: Tensor) -> int:
    """Candidates whose states are one tile of memory traffic."""
    return _TILE_BYTES // (states.shape[3] * states.element_size())


def _leverage_tiles(states: Tensor) -> LeverageTiles:
    if states.dtype != torch.bfloat16:
        return LeverageTiles(32, 1024, 4, 1)
    return LeverageTiles(64, 512, 4, 3, pieces=2)


@triton.jit
def _value_range(
    values, rows, slots, slot_row, slot_head, ranges, known, value_row, value_token, value_head, tokens, candidates,
    newest, blocks, heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    item, number, head = _program(blocks, heads)
    row = tl.load(rows + item)
    slot_at = slots + row * slot_row + head * slot_head
    value_at = values + row * value_row + head * value_head
    out = ranges + (item * heads + head).to(tl.int64) * candidates
    first = number * block
    end = candidates
    if known is not None:
        known_at = known + (row * heads + head) * tokens
        member = first + tl.arange(0, block)
        found = tl.load(known_at + slots_of(slot_at, member, candidates, indirect, False))
        missing = (member < candidates) & ((found < 0.0) | (member >= candidates - newest))
        tl.store(out + member, found, mask=(member < candidates) & (missing == 0))
        if tl.max(missing.to(tl.int32), axis=0) == 0:
            end = first
    for start in tl.range(first, tl.minimum(first + block, end), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, False)
        unread = token < candidates
        if known is not None:
            unread = unread & ((tl.load(known_at + slot) < 0.0) | (token >= candidates - newest))
        if tl.max(unread.to(tl.int32), axis=0) > 0:
            states = tl.load(_states_at(value_at, slot, value_token, head_dim), mask=unread[:, None], other=0.0)
            states = states.to(tl.float32)
            # a maximum passes over NaN, the sum does not
            spread = tl.max(states, axis=1) - tl.min(states, axis=1) + tl.sum(states * 0.0, axis=1)
            spread = _nan_unless_finite(spread)
            if known is not None:
                tl.store(known_at + slot, spread, mask=unread)
            tl.store(out + token, spread, mask=unread)


@triton.jit
def _leverage(
    keys, values, rows, slots, slot_row, slot_head, projection, scores,
    key_row, key_token, key_head, value_row, value_token, value_head,
    projection_item, projection_dim, projection_column, candidates, spans,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr, span: tl.constexpr,
    rank: tl.constexpr, columns: tl.constexpr, pieces: tl.constexpr,
):  # fmt: skip
    item, number, head = _program(spans, heads)
    row = tl.load(rows + item)
    column = tl.arange(0, columns)[None, :]
    entries = projection + item.to(tl.int64) * projection_item + column * projection_column
    slot_at = slots + row * slot_row + head * slot_head
    key_at = keys + row * key_row + head * key_head
    value_at = values + row * value_row + head * value_head
    out = scores + (item * heads + head).to(tl.int64) * candidates
    if pieces > 0:
        dims = tl.arange(0, head_dim)
        whole = tl.load(entries + dims[:, None] * projection_dim, mask=column < rank, other=0.0)
        high = whole.to(tl.bfloat16)
        rest = whole - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    for start in tl.range(number * span, tl.minimum(number * span + span, candidates), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, False)
        if pieces > 0:
            key = tl.load(_states_at(key_at, slot, key_token, head_dim))
            value = tl.load(_states_at(value_at, slot, value_token, head_dim))
            product = _projected(key, high, middle, low, pieces) * _projected(value, high, middle, low, pieces)
        else:
            key = tl.zeros([tile, columns], tl.float32)
            value = tl.zeros([tile, columns], tl.float32)
            for first in range(0, head_dim, 16):
                dims = first + tl.arange(0, 16)
                chunk = tl.load(entries + dims[:, None] * projection_dim, mask=column < rank, other=0.0)
                states = tl.load(key_at + slot.to(tl.int64)[:, None] * key_token + dims[None, :]).to(tl.float32)
                key = tl.dot(states, chunk, key, input_precision="ieee")
                states = tl.load(value_at + slot.to(tl.int64)[:, None] * value_token + dims[None, :]).to(tl.float32)
                value = tl.dot(states, chunk, value, input_precision="ieee")
            product = tl.sum(key * key, axis=1) * tl.sum(value * value, axis=1)
        tl.store(out + token, _nan_unless_finite(product), mask=token < candidates)


@triton.jit
def _sum_unit_keys(
    keys, rows, slots, slot_row, slot_head, key_sums, key_row, key_token, key_head, candidates, parts,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr, summed: tl.constexpr,
):  # fmt: skip
    item, part, head = _program(parts, heads)
    row = tl.load(rows + item)
    slot_at = slots + row * slot_row + head * slot_head
    key_at = keys + row * key_row + head * key_head
    total = tl.zeros([tile, head_dim], tl.float32)
    for start in tl.range(part * summed, tl.minimum(part * summed + summed, candidates), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, False)
        key = tl.load(_states_at(key_at, slot, key_token, head_dim)).to(tl.float32)
        unit = key * _inverse_norm(tl.sum(key * key, axis=1))[:, None]
        total += tl.where((token < candidates)[:, None], unit, 0.0)
    out = key_sums + ((item * heads + head).to(tl.int64) * parts + part) * head_dim
    tl.store(out + tl.arange(0, head_dim), tl.sum(total, axis=0))


@triton.jit
def _weigh_similarity(
    keys, rows, slots, slot_row, slot_head, key_sums, weights, weight_sums, key_row, key_token, key_head,
    candidates, parts, blocks,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr,
    padded_parts: tl.constexpr,
):  # fmt: skip
    item, block, head = _program(blocks, heads)
    row = tl.load(rows + item)
    item_head = (item * heads + head).to(tl.int64)
    token = block * tile + tl.arange(0, tile)
    slot = slots_of(slots + row * slot_row + head * slot_head, token, candidates, indirect, False)
    key = tl.load(_states_at(keys + row * key_row + head * key_head, slot, key_token, head_dim)).to(tl.float32)
    part = tl.arange(0, padded_parts)[:, None]
    part_at = key_sums + (item_head * parts + part) * head_dim + tl.arange(0, head_dim)[None, :]
    key_sum = tl.sum(tl.load(part_at, mask=part < parts, other=0.0), axis=0)
    square = tl.sum(key * key, axis=1)
    inverse = _inverse_norm(square)
    similarity = tl.sum(key * key_sum[None, :], axis=1) * inverse - square * inverse * inverse
    # a mean of cosines lies between -1 and 1: the exponential needs no shift
    weight = tl.where(token < candidates, tl.exp(similarity / candidates), 0.0)
    tl.store(weights + item_head * candidates + token, weight, mask=token < candidates)
    tl.store(weight_sums + item_head * blocks + block, tl.sum(weight))


@triton.jit
def _divide_by_sum(
    weights, weight_sums, candidates, blocks, chunks, padded_blocks: tl.constexpr, elements: tl.constexpr
):
    program = tl.program_id(0)
    item_head = (program // chunks).to(tl.int64)
    block = tl.arange(0, padded_blocks)
    total = tl.sum(tl.load(weight_sums + item_head * blocks + block, mask=block < blocks, other=0.0))
    token = program % chunks * elements + tl.arange(0, elements)
    at = weights + item_head * candidates + token
    tl.store(at, tl.load(at, mask=token < candidates) / total, mask=token < candidates)


@triton.jit
def _token_gumbel(
    keys, layers, text_tokens, positions, rows, weights, noise, position_row, position_head, candidates, blocks,
    heads: tl.constexpr, elements: tl.constexpr,
):  # fmt: skip
    item, block, head = _program(blocks, heads)
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
    item, block, head = _program(blocks, heads)
    row = tl.load(rows + item)
    token = block * elements + tl.arange(0, elements)
    valid = token < candidates
    position = tl.load(positions + row * position_row + head * position_head + token, mask=valid, other=0)
    at = (item * heads + head).to(tl.int64) * candidates + token
    score = tl.load(scores + at, mask=valid)
    score = tl.where((position < sinks) & (score == score), float("inf"), score)
    tl.store(out + at, score, mask=valid)


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
def _program(blocks, heads: tl.constexpr):
    """Item, block of candidates and head of a program; heads are neighbours in time, as they are in memory."""
    program = tl.program_id(0)
    return program // heads // blocks, program // heads % blocks, program % heads


@triton.jit
def _states_at(head_at, slot, token_stride, head_dim: tl.constexpr):
    """(slots, D) addresses of one head's states."""
    return head_at + slot.to(tl.int64)[:, None] * token_stride + tl.arange(0, head_dim)[None, :]


@triton.jit
def _projected(states, high, middle, low, pieces: tl.constexpr):
    """The squared norm of bfloat16 states times a projection given as the sum of bfloat16 parts."""
    if pieces == 3:
        product = tl.dot(states, low)
        product = tl.dot(states, middle, product)
    else:
        product = tl.dot(states, middle)
    product = tl.dot(states, high, product)
    return tl.sum(product * product, axis=1)


@triton.jit
def _inverse_norm(square):
    """1 / max(norm, 1e-12), as ``torch.nn.functional.normalize`` has it."""
    return 1.0 / tl.maximum(tl.sqrt(square), 1e-12)


@triton.jit
def _nan_unless_finite(scores):
    return tl.where(tl.abs(scores) < float("inf"), scores, float("nan"))
