"""Matrix products of few rows with a large weight, as close to memory bandwidth as they come.

A decode step reads every weight once for a few rows; from 33 rows on the vendor's library is as fast. Each program
holds a few rows of the weight against all rows of the input and streams them with many loads on their way at a time.

Shapes: M rows of the input, N outputs, K inputs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 32


class _Config(NamedTuple):
    """How the work is divided: rows of the weight in one program, and inputs read at a time; powers of two."""

    block_n: int
    block_k: int
    stages: int = 4  # tiles on their way from memory at a time; 0: neither tensor cores nor shared memory, for one row
    warps: int = 4


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`linear` takes such tensors: few rows x (M, K) and weight (N, K), contiguous, bf16 or fp16."""
    return (
        x.shape[0] <= MAX_ROWS
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.dtype == weight.dtype
        and x.is_contiguous()
        and weight.is_contiguous()
    )


def _config(rows: int, columns: int, inner: int) -> _Config:
    """The division for M rows, N outputs and K inputs: the fastest of those tried on an H200 for an 8B model's shapes.

    At most 96 KB of shared memory, so that two programs stand on a multiprocessor at a time.
    """
    if rows == 1:
        return _Config(block_n=1 if columns <= 8192 else 2, block_k=2048 if inner >= 2048 else 1024, stages=0)
    if columns >= 16384:
        return _Config(block_n=64, block_k=128)
    if rows > 16:
        return _Config(block_n=32 if columns >= 4096 else 16, block_k=128, stages=5)
    if columns == 4096 and inner >= 4096:
        return _Config(block_n=32, block_k=512, stages=3)
    return _Config(block_n=32 if columns >= 4096 else 16, block_k=256)


def linear(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Multiply what :func:`serves` takes: out = x weightᵀ, (M, N), contiguous, of the same dtype, added in float32."""
    rows, inner = x.shape
    columns = weight.shape[0]
    block_n, block_k, stages, warps = _config(rows, columns, inner)
    tiles = triton.cdiv(columns, block_n)
    if stages == 0:
        _multiply_row[(tiles,)](x, weight, out, columns, inner, block_n, block_k, num_warps=warps)
        return
    _multiply[(tiles,)](
        x, weight, out, rows, columns, inner, block_m=max(16, triton.next_power_of_2(rows)), block_n=block_n,
        block_k=block_k, stages=stages, num_warps=warps,
    )  # fmt: skip


@triton.jit
def _multiply(
    x, weight, out, rows, columns: tl.constexpr, inner: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    column = tl.arange(0, block_n)
    row = tl.arange(0, block_m)
    depth = tl.arange(0, block_k)
    is_column = tile * block_n + column < columns
    is_row = row < rows
    weights = weight + tile.to(tl.int64) * block_n * inner + column[:, None] * inner + depth[None, :]
    inputs = x + row[:, None] * inner + depth[None, :]
    total = tl.zeros([block_n, block_m], tl.float32)
    for start in tl.range(0, inner, block_k, num_stages=stages):
        if inner % block_k == 0:
            weight_mask, input_mask = is_column[:, None], is_row[:, None]
        else:
            is_inside = (start + depth < inner)[None, :]
            weight_mask, input_mask = is_column[:, None] & is_inside, is_row[:, None] & is_inside
        if columns % block_n == 0 and inner % block_k == 0:
            some_weights = tl.load(weights + start, eviction_policy="evict_first")
        else:
            some_weights = tl.load(weights + start, mask=weight_mask, other=0.0, eviction_policy="evict_first")
        some_inputs = tl.load(inputs + start, mask=input_mask, other=0.0, eviction_policy="evict_last")
        total = tl.dot(some_weights, tl.trans(some_inputs), total)
    places = row[:, None] * columns + tile * block_n + column[None, :]
    tl.store(out + places, tl.trans(total).to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _multiply_row(
    x, weight, out, columns: tl.constexpr, inner: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr
):
    tile = tl.program_id(0)
    column = tl.arange(0, block_n)
    depth = tl.arange(0, block_k)
    is_column = tile * block_n + column < columns
    weights = weight + tile.to(tl.int64) * block_n * inner + column[:, None] * inner + depth[None, :]
    total = tl.zeros([block_n, block_k], tl.float32)
    for start in tl.range(0, inner, block_k):
        is_inside = start + depth < inner
        weight_mask = is_column[:, None] & is_inside[None, :]
        some_weights = tl.load(weights + start, mask=weight_mask, other=0.0, eviction_policy="evict_first")
        some_inputs = tl.load(x + start + depth, mask=is_inside, other=0.0, eviction_policy="evict_last")
        total += some_weights.to(tl.float32) * some_inputs.to(tl.float32)[None, :]
    result = tl.sum(total, axis=1)
    tl.store(out + tile * block_n + column, result.to(out.dtype.element_ty), mask=is_column)
