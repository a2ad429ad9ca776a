"""Causal attention of several prompts side by side, each with itself alone.

A program takes one query head and a block of queries of one prompt, counted from the prompt's own start, and goes
through the prompt's keys in blocks from its start: no bit depends on the prompts beside it.

Shapes: T tokens of all prompts, P prompts, Q blocks of queries, Hq query heads, H KV heads, D head dim.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vase_cli.kernels._shared_memory import stages_that_fit

_LOG2_E = 1.4426950408889634


class _Config(NamedTuple):
    """Queries and keys that a program takes at a time, and how it reads them."""

    queries: int
    keys: int
    stages: int = 2  # blocks of keys on their way from memory
    warps: int = 8


def block_of(queries: Tensor) -> int:
    """The size of the blocks of queries for :func:`prompt_attention`."""
    return _config(queries).queries


def prompt_attention(queries: Tensor, keys: Tensor, values: Tensor, blocks: Tensor, scale: float, out: Tensor) -> None:
    """Attend with each query to the tokens of its prompt up to its own.

    Args:
        queries: (T, Hq, D), D a power of two from 16 to 256; bf16, fp16 or fp32. All are contiguous.
        keys, values: (T, H, D).
        blocks: (Q, 3) int32: the first query of a block of :func:`block_of`, where its prompt begins and ends.
        scale: factor on q·k.
        out: (T, Hq, D), written.
    """
    tokens, query_heads, head_dim = queries.shape
    heads = keys.shape[1]
    block_q, block_k, stages, warps = _config(queries)
    token_bytes = head_dim * queries.element_size()
    stages = stages_that_fit(stages, 2 * block_k * token_bytes, queries.device, block_q * token_bytes)
    tile = ([tokens, heads * head_dim], [heads * head_dim, 1], [block_k, head_dim])
    _attend[(query_heads, blocks.shape[0])](
        queries, keys, values, TensorDescriptor(keys, *tile), TensorDescriptor(values, *tile), blocks, out,
        scale * _LOG2_E, query_heads, heads, head_dim, block_q, block_k, stages, num_warps=warps,
    )  # fmt: skip


def _config(queries: Tensor) -> _Config:
    """By head dim and dtype alone: a block's size is part of the order of the sums."""
    head_dim = queries.shape[-1]
    if queries.dtype == torch.float32 or head_dim > 128:
        return _Config(32, 32, 1, 4)
    return _Config(128, 64, 3)


@triton.jit
def _attend(
    queries, keys, values, key_tiles, value_tiles, blocks, out, scale, query_heads: tl.constexpr, heads: tl.constexpr,
    head_dim: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    head, block = tl.program_id(0), tl.program_id(1)
    first = tl.load(blocks + 3 * block)
    start = tl.load(blocks + 3 * block + 1)
    end = tl.load(blocks + 3 * block + 2)
    kv_head = head // (query_heads // heads)
    dims = tl.arange(0, head_dim)
    query_at = first + tl.arange(0, block_q)
    places = query_at[:, None].to(tl.int64) * (query_heads * head_dim) + head * head_dim + dims[None, :]
    query = tl.load(queries + places, mask=(query_at < end)[:, None], other=0.0)
    maximum = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    weighted = tl.zeros([block_q, head_dim], tl.float32)
    offsets = tl.arange(0, block_k)
    columns = kv_head * head_dim + dims[None, :]
    seen_by_all = start + (first - start) // block_k * block_k
    for at in tl.range(start, seen_by_all, block_k, num_stages=stages):
        key = key_tiles.load([at, kv_head * head_dim])
        value = value_tiles.load([at, kv_head * head_dim])
        scores = tl.dot(query, key.T, input_precision="ieee") * scale
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        shrink = tl.exp2(maximum - new_maximum)
        exponentials = tl.exp2(scores - new_maximum[:, None])
        total = total * shrink + tl.sum(exponentials, axis=1)
        weighted = tl.dot(exponentials.to(value.dtype), value, weighted * shrink[:, None], input_precision="ieee")
        maximum = new_maximum
    for at in tl.range(seen_by_all, tl.minimum(first + block_q, end), block_k, num_stages=1):
        tile = (at + offsets)[:, None].to(tl.int64) * (heads * head_dim) + columns
        inside = (at + offsets < end)[:, None]
        key = tl.load(keys + tile, mask=inside, other=0.0)
        value = tl.load(values + tile, mask=inside, other=0.0)
        scores = tl.dot(query, key.T, input_precision="ieee") * scale
        scores = tl.where(query_at[:, None] >= (at + offsets)[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        shrink = tl.exp2(maximum - new_maximum)
        exponentials = tl.exp2(scores - new_maximum[:, None])
        total = total * shrink + tl.sum(exponentials, axis=1)
        weighted = tl.dot(exponentials.to(value.dtype), value, weighted * shrink[:, None], input_precision="ieee")
        maximum = new_maximum
    tl.store(out + places, (weighted / total[:, None]).to(out.dtype.element_ty), mask=(query_at < end)[:, None])
