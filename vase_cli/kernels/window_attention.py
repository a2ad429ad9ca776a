"""Attention of the last queries to each candidate, without ever writing a (queries x candidates) matrix.

Shapes as in ``_candidates``; W window, Hq query heads, G = Hq // H. The Q = G * W queries that read a KV head are one
list; query j is token j // G, head j % G.

Two passes over the keys. The first leaves log2(sum(exp2(score))) of each query, in parts of a fixed number of
candidates, unless the decode steps have left it already; the second recomputes the scores and sums
exp2(score - log sum) over the queries. Scores are in units of log 2, so that the scale of the softmax and the base
of the exponential are one multiplication.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._candidates import order_of, slots_of, span_of, stages_of


class Tiles(NamedTuple):
    """How one pass is cut up: queries and candidates of a tile, candidates of a program, warps, tiles in flight."""

    queries: int
    candidates: int
    span: int
    warps: int
    stages: int


def window_attention(
    queries: Tensor, keys: Tensor, rows: Tensor, slot_mapping: Tensor | None, candidates: int, lse: Tensor | None = None
) -> Tensor:
    """:meth:`TorchOps.window_attention`; queries, in any order, and keys are of one dtype.

    ``lse``, contiguous, is what the first pass would find, from ``kernels.attention.decode_attention``.
    """
    _, window, query_heads, head_dim = queries.shape
    items, heads = rows.shape[0], keys.shape[2]
    group = query_heads // heads
    first, second = _tiles(keys.dtype, head_dim)
    first = first._replace(span=span_of(first.span, candidates, 32))
    parts, spans = triton.cdiv(candidates, first.span), triton.cdiv(candidates, second.span)
    weights = torch.empty((items, heads, candidates), dtype=torch.float32, device=keys.device)
    order, slot_row, slot_head = order_of(slot_mapping, rows)
    strides = (*queries.stride()[:3], *keys.stride()[:3], slot_row, slot_head)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    shape = {"heads": heads, "group": group, "query_count": group * window, "head_dim": head_dim}
    given = lse is not None
    if lse is None:
        lse = torch.empty((items, heads, parts, group * window), dtype=torch.float32, device=keys.device)
        cut = _cut(first, group * window, candidates, slot_mapping is not None)
        _lse_of_parts[(items * parts * heads * cut["query_blocks"],)](
            queries, keys, rows, order, lse, *strides, candidates, parts, scale, **shape, **cut
        )
    cut = _cut(second, group * window, candidates, slot_mapping is not None)
    _weights[(items * spans * heads,)](
        queries, keys, rows, order, lse, weights, *strides, candidates, parts, spans, scale, **shape, **cut,
        padded_parts=triton.next_power_of_2(parts), given=given,
    )  # fmt: skip
    return weights


def _tiles(dtype: torch.dtype, head_dim: int) -> tuple[Tiles, Tiles]:
    """The tiles of both passes; they depend on nothing but the dtype and the head dim."""
    if dtype == torch.float32:
        queries = 32 if head_dim <= 128 else 16
        return Tiles(queries, 32, 2048, 4, 1), Tiles(queries, 32, 512, 4, 1)
    stages = 3 if head_dim <= 128 else 2
    return Tiles(128, 64, 2048, 8, stages), Tiles(128, 64, 1024, 4, 2)


def _cut(tiles: Tiles, queries: int, candidates: int, indirect: bool) -> dict[str, int]:
    """The compile-time numbers of a pass; few queries make small blocks."""
    block = min(tiles.queries, max(16, triton.next_power_of_2(queries)))
    return {
        "query_blocks": triton.cdiv(queries, block),
        "query_tile": block,
        "tile": tiles.candidates,
        "span": tiles.span,
        "even": candidates % tiles.candidates == 0,
        "indirect": indirect,
        "num_warps": tiles.warps,
        "num_stages": stages_of(tiles.stages, indirect),
    }


@triton.jit
def _lse_of_parts(
    queries, keys, rows, slot_mapping, lse,
    query_row, query_token, query_head, key_row, key_token, key_head, slot_row, slot_head,
    candidates, parts, scale,
    heads: tl.constexpr, group: tl.constexpr, query_count: tl.constexpr, head_dim: tl.constexpr,
    query_blocks: tl.constexpr, query_tile: tl.constexpr, tile: tl.constexpr, span: tl.constexpr,
    even: tl.constexpr, indirect: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    block = program % query_blocks
    head = program // query_blocks % heads
    part = program // (query_blocks * heads) % parts
    item = program // (query_blocks * heads) // parts
    row = tl.load(rows + item)
    dims = tl.arange(0, head_dim)
    query = block * query_tile + tl.arange(0, query_tile)
    query_at = queries + row * query_row + head * group * query_head
    query_at += (query // group * query_token + query % group * query_head)[:, None] + dims[None, :]
    query_states = tl.load(query_at, mask=(query < query_count)[:, None], other=0.0)
    key_at = keys + row * key_row + head * key_head + dims[None, :]
    slot_at = slot_mapping + row * slot_row + head * slot_head
    top = tl.full([query_tile], float("-inf"), tl.float32)
    total = tl.zeros([query_tile], tl.float32)
    for start in tl.range(part * span, tl.minimum(part * span + span, candidates), tile):
        token = start + tl.arange(0, tile)
        slot = slots_of(slot_at, token, candidates, indirect, even)
        key_states = tl.load(key_at + slot.to(tl.int64)[:, None] * key_token)
        scores = tl.dot(query_states, tl.trans(key_states), input_precision="ieee")
        if not even:
            scores = tl.where((token < candidates)[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
        terms = tl.exp2(scores * scale - new_top[:, None])
        total = total * tl.exp2(top - new_top) + tl.sum(terms, axis=1)
        top = new_top
    out = lse + ((item * heads + head).to(tl.int64) * parts + part) * query_count + query
    tl.store(out, top + tl.log2(total), mask=query < query_count)


@triton.jit
def _weights(
    queries, keys, rows, slot_mapping, lse, weights,
    query_row, query_token, query_head, key_row, key_token, key_head, slot_row, slot_head,
    candidates, parts, spans, scale,
    heads: tl.constexpr, group: tl.constexpr, query_count: tl.constexpr, head_dim: tl.constexpr,
    query_blocks: tl.constexpr, query_tile: tl.constexpr, tile: tl.constexpr, span: tl.constexpr,
    even: tl.constexpr, indirect: tl.constexpr, padded_parts: tl.constexpr, given: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = program % heads
    number = program // heads % spans
    item = program // heads // spans
    row = tl.load(rows + item)
    dims = tl.arange(0, head_dim)
    key_at = keys + row * key_row + head * key_head + dims[None, :]
    slot_at = slot_mapping + row * slot_row + head * slot_head
    item_head = (item * heads + head).to(tl.int64)
    out = weights + item_head * candidates
    for block in tl.static_range(query_blocks):
        query = block * query_tile + tl.arange(0, query_tile)
        query_at = queries + row * query_row + head * group * query_head
        query_at += (query // group * query_token + query % group * query_head)[:, None] + dims[None, :]
        query_states = tl.load(query_at, mask=(query < query_count)[:, None], other=0.0)
        if given:
            log_sum_at = lse + row * heads * query_count + query // group * heads * group
            log_sum_at += head * group + query % group
            log_sum = tl.load(log_sum_at, mask=query < query_count, other=1e30)
        else:
            part_at = lse + item_head * parts * query_count + query
            log_sum = _joined(part_at, query < query_count, parts, query_count, padded_parts)
        for start in tl.range(number * span, tl.minimum(number * span + span, candidates), tile):
            token = start + tl.arange(0, tile)
            slot = slots_of(slot_at, token, candidates, indirect, even)
            key_states = tl.load(key_at + slot.to(tl.int64)[:, None] * key_token)
            scores = tl.dot(key_states, tl.trans(query_states), input_precision="ieee")
            logs = scores * scale - log_sum[None, :]
            weight = tl.sum(tl.exp2(logs), axis=1) * (1.0 / query_count)
            if block == 0:
                weight = tl.where(tl.abs(tl.sum(logs, axis=1)) < float("inf"), weight, float("nan"))
            else:
                weight += tl.load(out + token, mask=token < candidates, other=0.0)
            tl.store(out + token, weight, mask=token < candidates)
        if query_blocks > 1:
            tl.debug_barrier()


@triton.jit
def _joined(part_at, valid, parts, query_count: tl.constexpr, padded_parts: tl.constexpr):
    """The log sum of each query over all parts; so large where there is no query that its weights are 0."""
    part = tl.arange(0, padded_parts)[:, None]
    logs = tl.load(part_at[None, :] + part * query_count, mask=(part < parts) & valid[None, :], other=float("-inf"))
    top = tl.max(logs, axis=0)
    joined = top + tl.log2(tl.sum(tl.exp2(logs - top[None, :]), axis=0))
    return tl.where(valid, joined, 1e30)
