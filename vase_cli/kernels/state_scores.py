"""Scores read straight from the keys and values in the cache's storage: range, leverage, redundancy.

Shapes as in ``_candidates``. The definitions, and the references in plain torch, are in ``ops``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._candidates import order_of, program_of, slots_of, span_of, stages_of, states_at

_TILE_BYTES = 16_384
_SUMMED = 512  # candidates in one part of the sum of unit keys, unless that makes more than 64 parts
_KNOWN = 512  # candidates of which a program first looks whether all value ranges are known
_ELEMENTS = 1024  # weights that one program divides


def value_range(
    values: Tensor, rows: Tensor, slot_mapping: Tensor | None, candidates: int, known: Tensor | None = None,
    newest: int = 0,
) -> Tensor:  # fmt: skip
    """:meth:`TorchOps.value_range`; where ``known``, which is contiguous, is given, each of ``rows`` is named once."""
    items, heads, head_dim = rows.shape[0], values.shape[2], values.shape[3]
    ranges = torch.empty((items, heads, candidates), dtype=torch.float32, device=values.device)
    tile = _tile(values)
    block = tile if known is None else max(tile, _KNOWN)
    blocks = triton.cdiv(candidates, block)
    _value_range[(items * blocks * heads,)](
        values, rows, *order_of(slot_mapping, rows), ranges, known, *values.stride()[:3], values.shape[1], candidates,
        newest, blocks, heads=heads, head_dim=head_dim, indirect=slot_mapping is not None, tile=tile, block=block,
    )  # fmt: skip
    return ranges


def leverage(
    keys: Tensor, values: Tensor, rows: Tensor, slot_mapping: Tensor | None, candidates: int, projection: Tensor
) -> Tensor:
    """:meth:`TorchOps.leverage` of at most 64 columns of the projection.

    For bfloat16 states each of its numbers is split into the sum of two, which hold all but 2^-18 of it.
    """
    items, heads, head_dim = rows.shape[0], keys.shape[2], keys.shape[3]
    rank = projection.shape[2]
    split = keys.dtype == torch.bfloat16
    tile, span, stages = (64, 512, 3) if split else (32, 1024, 1)
    scores = torch.empty((items, heads, candidates), dtype=torch.float32, device=keys.device)
    spans = triton.cdiv(candidates, span)
    _leverage[(items * spans * heads,)](
        keys, values, rows, *order_of(slot_mapping, rows), projection, scores, *keys.stride()[:3], *values.stride()[:3],
        *projection.stride(), candidates, spans,
        heads=heads, head_dim=head_dim, indirect=slot_mapping is not None, tile=tile, span=span,
        rank=rank, columns=max(16, triton.next_power_of_2(rank)), split=split,
        num_warps=4, num_stages=stages_of(stages, slot_mapping is not None),
    )  # fmt: skip
    return scores


def redundancy(keys: Tensor, rows: Tensor, slot_mapping: Tensor | None, candidates: int) -> Tensor:
    """:meth:`TorchOps.redundancy`, NaN in the whole head where a key is not finite. Reads the keys twice."""
    items, heads, head_dim = rows.shape[0], keys.shape[2], keys.shape[3]
    tile = _tile(keys)
    summed = span_of(_SUMMED, candidates, 64)
    parts, blocks = triton.cdiv(candidates, summed), triton.cdiv(candidates, tile)
    key_sums = torch.empty((items, heads, parts, head_dim), dtype=torch.float32, device=keys.device)
    weight_sums = torch.empty((items, heads, blocks), dtype=torch.float32, device=keys.device)
    weights = torch.empty((items, heads, candidates), dtype=torch.float32, device=keys.device)
    order = order_of(slot_mapping, rows)
    shape = {"heads": heads, "head_dim": head_dim, "indirect": slot_mapping is not None, "tile": tile}
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


def _tile(states: Tensor) -> int:
    """Candidates whose states are one tile of memory traffic."""
    return _TILE_BYTES // (states.shape[3] * states.element_size())


@triton.jit
def _value_range(
    values, rows, slot_mapping, slot_row, slot_head, ranges, known, value_row, value_token, value_head, tokens,
    candidates, newest, blocks, heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    item, number, head = program_of(blocks, heads)
    row = tl.load(rows + item)
    slot_at = slot_mapping + row * slot_row + head * slot_head
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
            states = tl.load(states_at(value_at, slot, value_token, head_dim), mask=unread[:, None], other=0.0)
            states = states.to(tl.float32)
            # a maximum passes over NaN, the sum does not
            spread = tl.max(states, axis=1) - tl.min(states, axis=1) + tl.sum(states * 0.0, axis=1)
            spread = _nan_unless_finite(spread)
            if known is not None:
                tl.store(known_at + slot, spread, mask=unread)
            tl.store(out + token, spread, mask=unread)


@triton.jit
def _leverage(
    keys, values, rows, slot_mapping, slot_row, slot_head, projection, scores,
    key_row, key_token, key_head, value_row, value_token, value_head,
    projection_item, projection_dim, projection_column, candidates, spans,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr, span: tl.constexpr,
    rank: tl.constexpr, columns: tl.constexpr, split: tl.constexpr,
):  # fmt: skip
    item, number, head = program_of(spans, heads)
    row = tl.load(rows + item)
    column = tl.arange(0, columns)[None, :]
    entries = projection + item.to(tl.int64) * projection_item + column * projection_column
    slot_at = slot_mapping + row * slot_row + head * slot_head
    key_at = keys + row * key_row + head * key_head
    value_at = values + row * value_row + head * value_head
    out = scores + (item * heads + head).to(tl.int64) * candidates
    if split:
        dims = tl.arange(0, head_dim)
        whole = tl.load(entries + dims[:, None] * projection_dim, mask=column < rank, other=0.0)
        high = whole.to(tl.bfloat16)
        low = (whole - high.to(tl.float32)).to(tl.bfloat16)
    for start in tl.range(number * span, tl.minimum(number * span + span, candidates), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, False)
        if split:
            key = tl.load(states_at(key_at, slot, key_token, head_dim))
            value = tl.load(states_at(value_at, slot, value_token, head_dim))
            product = _projected(key, high, low) * _projected(value, high, low)
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
    keys, rows, slot_mapping, slot_row, slot_head, key_sums, key_row, key_token, key_head, candidates, parts,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr, summed: tl.constexpr,
):  # fmt: skip
    item, part, head = program_of(parts, heads)
    row = tl.load(rows + item)
    slot_at = slot_mapping + row * slot_row + head * slot_head
    key_at = keys + row * key_row + head * key_head
    total = tl.zeros([tile, head_dim], tl.float32)
    for start in tl.range(part * summed, tl.minimum(part * summed + summed, candidates), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, False)
        key = tl.load(states_at(key_at, slot, key_token, head_dim)).to(tl.float32)
        unit = key * _inverse_norm(tl.sum(key * key, axis=1))[:, None]
        total += tl.where((token < candidates)[:, None], unit, 0.0)
    out = key_sums + ((item * heads + head).to(tl.int64) * parts + part) * head_dim
    tl.store(out + tl.arange(0, head_dim), tl.sum(total, axis=0))


@triton.jit
def _weigh_similarity(
    keys, rows, slot_mapping, slot_row, slot_head, key_sums, weights, weight_sums, key_row, key_token, key_head,
    candidates, parts, blocks,
    heads: tl.constexpr, head_dim: tl.constexpr, indirect: tl.constexpr, tile: tl.constexpr,
    padded_parts: tl.constexpr,
):  # fmt: skip
    item, block, head = program_of(blocks, heads)
    row = tl.load(rows + item)
    item_head = (item * heads + head).to(tl.int64)
    token = block * tile + tl.arange(0, tile)
    slot = slots_of(slot_mapping + row * slot_row + head * slot_head, token, candidates, indirect, False)
    key = tl.load(states_at(keys + row * key_row + head * key_head, slot, key_token, head_dim)).to(tl.float32)
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
def _projected(states, high, low):
    """The squared norm of bfloat16 states times a projection that is the sum of two of bfloat16."""
    product = tl.dot(states, high, tl.dot(states, low))
    return tl.sum(product * product, axis=1)


@triton.jit
def _inverse_norm(square):
    """1 / max(norm, 1e-12), as ``torch.nn.functional.normalize`` has it."""
    return 1.0 / tl.maximum(tl.sqrt(square), 1e-12)


@triton.jit
def _nan_unless_finite(scores):
    return tl.where(tl.abs(scores) < float("inf"), scores, float("nan"))
