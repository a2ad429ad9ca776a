"""Attention of one query token per row over a static cache, split along the keys.

The tokens of a row are divided among a fixed number of programs; each leaves its part of the output, weighted by its
own softmax, and a second kernel joins the parts. How a row is divided depends on its own length and on the cache's
shape alone, so that no bit of a row depends on its neighbors.

Shapes: B rows, S cached tokens a row can hold, Hq query heads, H KV heads, G = Hq // H, D head dim.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634
_TILE_BYTES = 16 * 1024
_PROCESSORS_OFF_GPU = 4


class AttentionConfig(NamedTuple):
    """How the work is divided: programs that share the tokens of one row and KV head, and how each reads them."""

    splits: int
    block: int  # tokens that are read at a time; a power of two, at least 16
    stages: int = 3  # blocks on their way from memory at a time
    warps: int = 4


def attention_config(
    rows: int, capacity: int, heads: int, head_dim: int, element_bytes: int, processors: int, *, even: bool = False
) -> AttentionConfig:
    """The division for B rows of S tokens, H KV heads of dim D, on a GPU with so many multiprocessors.

    Two or three programs stand on a multiprocessor at a time. Some rounds of them even out what rows of different
    lengths take. Where rows are ``even``, as those that are cut, one round of them is faster, and a multiprocessor with
    one program reads further ahead. Below 128 tokens a program costs more to start than it does.
    """
    programs = rows * heads
    wanted = 2 * processors // programs if even else triton.cdiv(8 * processors, programs)
    splits = max(1, min(wanted, triton.cdiv(capacity, 128), 128))
    block = max(16, min(128, _TILE_BYTES // (head_dim * element_bytes)))
    stages = 4 if even and splits == 1 and programs < 8 * processors else 3
    return AttentionConfig(splits, block, stages)


def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    seq_lens: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None = None,
    candidates: int = 0,
    text_positions: Tensor | None = None,
    row_starts: Tensor | None = None,
    longest_row: int | None = None,
    config: AttentionConfig | None = None,
) -> None:
    """Attend with one query of each row to the tokens that the row holds.

    Args:
        queries: (B, Hq, D), D a power of two from 16 to 256; bf16, fp16 or fp32.
        keys, values: (B, S, H, D), contiguous, of the same dtype; one row has fewer than 2^31 elements. With
            ``row_starts`` they are (N, H, D), the N slots of all rows.
        seq_lens: (B,) int32, tokens from slot 0 on that each row attends to.
        scale: factor on q·k.
        out: (B, Hq, D), written; zeros where a row holds nothing.
        lse, candidates, text_positions: see :class:`vase_cli.attention.base.LSEOut`; an empty row writes nothing.
        row_starts, longest_row: see :class:`vase_cli.attention.base.RowPlaces`; None for rows of S slots. The bits of
            a row are those that it has in rows of ``longest_row`` slots.
        config: how the work is divided; None is :func:`attention_config`.
    """
    rows, query_heads, head_dim = queries.shape
    heads = keys.shape[-2]
    capacity = keys.shape[1] if longest_row is None else longest_row
    if config is None:
        processors = _processors(queries.device)
        sizes = (rows, capacity, heads, head_dim, keys.element_size())
        config = attention_config(*sizes, processors, even=lse is not None)  # which a method that cuts asks for
    splits, block, stages, warps = config
    group = query_heads // heads
    if splits > 1:
        parts = torch.empty((rows, query_heads, splits, head_dim), dtype=torch.float32, device=queries.device)
        weights = torch.empty((3, rows, query_heads, splits), dtype=torch.float32, device=queries.device)
    else:
        parts, weights = out, seq_lens
    window = 1 if lse is None else lse.shape[1]
    _attend[(heads, splits, rows)](
        queries, keys, values, seq_lens, parts, weights, lse, text_positions, row_starts, scale * _LOG2_E,
        capacity, rows, candidates, window, heads=heads, group=group, group_rows=max(16, triton.next_power_of_2(group)),
        head_dim=head_dim, splits=splits, block=block, stages=stages, num_warps=warps,
    )  # fmt: skip
    if splits > 1:
        _join[(query_heads, rows)](
            parts, weights, seq_lens, out, lse, text_positions, rows, window, query_heads=query_heads,
            head_dim=head_dim, splits=splits, padded_splits=triton.next_power_of_2(splits), block=block, num_warps=4,
        )  # fmt: skip


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _PROCESSORS_OFF_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _attend(
    queries, keys, values, seq_lens, parts, weights, lse, text_positions, row_starts, scale, capacity, rows, candidates,
    window, heads: tl.constexpr, group: tl.constexpr, group_rows: tl.constexpr, head_dim: tl.constexpr,
    splits: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tokens = tl.load(seq_lens + row)
    span = tl.cdiv(tl.cdiv(tokens, splits), block) * block
    first = split * span
    if splits > 1 and first >= tokens:
        return
    last = tl.minimum(first + span, tokens)

    dims = tl.arange(0, head_dim)
    members = tl.arange(0, group_rows)
    query_heads = row * heads * group + head * group + members
    is_query = (members < group)[:, None]
    places = query_heads[:, None] * head_dim + dims[None, :]
    query = tl.load(queries + places, mask=is_query, other=0.0)

    offsets = tl.arange(0, block)
    first_slot = row.to(tl.int64) * capacity
    if row_starts is not None:
        first_slot = tl.load(row_starts + row)
    row_start = first_slot * heads * head_dim + head * head_dim
    tile = offsets[:, None] * (heads * head_dim) + dims[None, :]
    maximum = tl.full([group_rows], float("-inf"), tl.float32)
    total = tl.zeros([group_rows], tl.float32)
    candidates_maximum = tl.full([group_rows], float("-inf"), tl.float32)
    candidates_total = tl.zeros([group_rows], tl.float32)
    weighted = tl.zeros([group_rows, head_dim], tl.float32)
    for start in tl.range(first, last, block, num_stages=stages):
        at = row_start + start * (heads * head_dim)
        is_token = start + offsets < last
        key = tl.load(keys + at + tile, mask=is_token[:, None], other=0.0, eviction_policy="evict_first")
        value = tl.load(values + at + tile, mask=is_token[:, None], other=0.0, eviction_policy="evict_first")
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        shrink = tl.exp2(maximum - new_maximum)
        exponentials = tl.exp2(scores - new_maximum[:, None])
        total = total * shrink + tl.sum(exponentials, axis=1)
        if lse is not None:
            # Their own maximum: the window's tokens may outweigh all of them by more than float32 can hold.
            scores = tl.where((start + offsets < candidates)[None, :], scores, float("-inf"))
            top = tl.maximum(candidates_maximum, tl.max(scores, axis=1))
            base = tl.where(top == float("-inf"), 0.0, top)
            candidates_total *= tl.exp2(candidates_maximum - base)
            candidates_total += tl.sum(tl.exp2(scores - base[:, None]), axis=1)
            candidates_maximum = top
        weighted = tl.dot(exponentials.to(value.dtype), value, weighted * shrink[:, None], input_precision="ieee")
        maximum = new_maximum

    if splits == 1:
        if tokens == 0:
            total += 1.0
        tl.store(parts + places, (weighted / total[:, None]).to(parts.dtype.element_ty), mask=is_query)
        if lse is not None:
            place = tl.load(text_positions + row) % window
            at = (row * window + place) * heads * group + head * group + members
            tl.store(lse + at, candidates_maximum + tl.log2(candidates_total), mask=(members < group) & (tokens > 0))
    else:
        part = query_heads * splits + split
        tl.store(parts + part[:, None].to(tl.int64) * head_dim + dims[None, :], weighted, mask=is_query)
        tl.store(weights + part, maximum, mask=members < group)
        plane = rows * heads * group * splits
        tl.store(weights + plane + part, total, mask=members < group)
        if lse is not None:
            tl.store(weights + 2 * plane + part, candidates_maximum + tl.log2(candidates_total), mask=members < group)


@triton.jit
def _join(
    parts, weights, seq_lens, out, lse, text_positions, rows, window, query_heads: tl.constexpr,
    head_dim: tl.constexpr, splits: tl.constexpr, padded_splits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1)
    query = row * query_heads + head
    totals = weights + rows * query_heads * splits
    everything = tl.arange(0, padded_splits)
    # Loads do not wait for how many parts are used: what the others hold is put aside afterwards.
    maxima = tl.load(weights + query * splits + everything, mask=everything < splits, other=float("-inf"))
    if lse is not None:
        place = tl.load(text_positions + row) % window
        logs_at = totals + rows * query_heads * splits + query * splits + everything
        logs = tl.load(logs_at, mask=everything < splits, other=float("-inf"))
    tokens = tl.load(seq_lens + row)
    span = tl.cdiv(tl.cdiv(tokens, splits), block) * block
    used = tl.cdiv(tokens, tl.maximum(span, 1))
    maximum = tl.max(tl.where(everything < used, maxima, float("-inf")))
    dims = tl.arange(0, head_dim)
    total = tl.zeros([8], tl.float32)
    weighted = tl.zeros([8, head_dim], tl.float32)
    for start in range(0, splits, 8):
        index = start + tl.arange(0, 8)
        part = query * splits + index
        places = part[:, None].to(tl.int64) * head_dim + dims[None, :]
        part_maximum = tl.load(weights + part, mask=index < splits, other=float("-inf"))
        part_total = tl.load(totals + part, mask=index < splits, other=0.0)
        some = tl.load(parts + places, mask=(index < splits)[:, None], other=0.0)
        factor = tl.where(index < used, tl.exp2(part_maximum - maximum), 0.0)
        total += factor * tl.where(index < used, part_total, 0.0)
        weighted += factor[:, None] * tl.where((index < used)[:, None], some, 0.0)
    total_of_all = tl.sum(total)
    if tokens == 0:
        total_of_all += 1.0
    if lse is not None:
        logs = tl.where(everything < used, logs, float("-inf"))
        top = tl.max(logs, axis=0)
        log_sum = top + tl.log2(tl.sum(tl.exp2(logs - top)))
        tl.store(lse + (row * window + place) * query_heads + head, log_sum, mask=tokens > 0)
    result = tl.sum(weighted, axis=0) / total_of_all
    tl.store(out + query * head_dim + dims, result.to(out.dtype.element_ty))
