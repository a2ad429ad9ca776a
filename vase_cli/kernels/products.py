"""Matrix products whose rows do not depend on one another, for prompts in packs.

Every element of the output is added up over the inputs in one order, in float32, by one kind of instruction: no split
of that sum, and tiles that divide the output alone. So a row of the result has the same bits whatever other rows
there are, how many, and in whatever tile it stands.

Shapes: M rows of the input, N outputs, K inputs.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vase_cli.kernels._shared_memory import stages_that_fit


class Tile(NamedTuple):
    """A part of the output that one program makes at a time, and how it reads; none of it changes a bit."""

    rows: int
    columns: int
    inner: int = 64
    stages: int = 3  # of the inputs on their way from memory
    warps: int = 8
    persistent: bool = True  # programs make one tile after the other, and read for the next one while they write


_LARGE = Tile(128, 256, stages=4)
_NARROW = Tile(64, 128, 64, 4, 4, persistent=False)
_SQUARE = Tile(64, 64, 128, 4, 4, persistent=False)
_SMALL = Tile(64, 32, 128, 6, 4, persistent=False)
_GATED_LARGE = Tile(128, 64, 64, 3, 4, persistent=False)
_GATED = Tile(128, 128, 64, 3, 8, persistent=False)
_GATED_SMALL = Tile(64, 64, 64, 4, 4, persistent=False)


def serves(weight: Tensor) -> bool:
    """Whether products with a weight (N, K) are computed here: contiguous bf16 or fp16, N and K multiples of 8."""
    halves = weight.dtype in (torch.bfloat16, torch.float16)
    return halves and weight.is_contiguous() and all(size % 8 == 0 for size in weight.shape)


def multiply(x: Tensor, weight: Tensor, out: Tensor, tile: Tile | None = None) -> None:
    """out = x weightᵀ: x (M, K) and a weight (N, K) that :func:`serves` takes, to (M, N); contiguous, of one dtype.

    ``tile`` None chooses one by the number of rows.
    """
    rows, inner = x.shape
    columns = weight.shape[0]
    tile = tile or _fitting(_tile(rows, columns, x.device), 1, x.device)
    _multiply[(_programs(tile, rows, columns, x.device),)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inner]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.inner]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.columns // 2]),
        rows, columns, inner, *tile[:4], tile.persistent, num_warps=tile.warps,
    )  # fmt: skip


def multiply_gated(x: Tensor, weight: Tensor, out: Tensor, tile: Tile | None = None) -> None:
    """out = silu(x gateᵀ) * (x upᵀ): the weight is (2N, K), the gate's rows before the others, out (M, N).

    Gate, its activation and the other product are rounded as if each was written. Else as :func:`multiply`.
    """
    rows, inner = x.shape
    columns = out.shape[1]
    tile = tile or _fitting(_gated_tile(rows, x.device), 2, x.device)
    _multiply_gated[(_programs(tile, rows, columns, x.device),)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.inner]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.inner]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
        rows, columns, inner, *tile[:4], tile.persistent, num_warps=tile.warps,
    )  # fmt: skip


def _tile(rows: int, columns: int, device: torch.device) -> Tile:
    """The fastest of those tried on an H200 for an 8B model's shapes: the largest that leaves no processor without."""
    if device.type != "cuda":
        return Tile(16, 32, 32, warps=4)
    processors = _processors(device)
    for tile, share in ((_LARGE, 0.6), (_NARROW, 1.0), (_SQUARE, 0.7)):
        tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
        if tiles >= share * processors and (rows > 128 or tile is not _LARGE):
            return tile
    return _SMALL


def _gated_tile(rows: int, device: torch.device) -> Tile:
    if device.type != "cuda":
        return Tile(16, 16, 32, warps=4)
    if rows <= 64:
        return _GATED_SMALL
    return _GATED if 1024 < rows <= 4096 else _GATED_LARGE


def _fitting(tile: Tile, weights: int, device: torch.device) -> Tile:
    """The tile, for a product with one weight or two, with no more stages than shared memory has room for."""
    held_bytes = 2 * tile.rows * tile.columns // (3 - weights)  # what is written at a time, half of it or all
    stage_bytes = 2 * (tile.rows + weights * tile.columns) * tile.inner
    return tile._replace(stages=stages_that_fit(tile.stages, stage_bytes, device, held_bytes))


def _programs(tile: Tile, rows: int, columns: int, device: torch.device) -> int:
    tiles: int = triton.cdiv(rows, tile.rows) * triton.cdiv(columns, tile.columns)
    return min(tiles, _processors(device)) if tile.persistent else tiles


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _place(tile, rows, columns, block_m: tl.constexpr, block_n: tl.constexpr):
    """First row and column of a tile: a few rows of tiles at a time, column by column, that share the weight."""
    group: tl.constexpr = 8
    row_tiles, column_tiles = tl.cdiv(rows, block_m), tl.cdiv(columns, block_n)
    first = tile // (group * column_tiles) * group
    together = tl.minimum(row_tiles - first, group)
    within = tile % (group * column_tiles)
    return (first + within % together) * block_m, within // together * block_n


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x, weight, out, rows, columns, inner, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    stages: tl.constexpr, flatten: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, block_m) * tl.cdiv(columns, block_n)
    steps = tl.cdiv(inner, block_k)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=flatten):
        row, column = _place(tile, rows, columns, block_m, block_n)
        total = tl.zeros([block_m, block_n], tl.float32)
        for step in tl.range(0, steps, num_stages=stages):
            some = x.load([row, step * block_k])
            weights = weight.load([column, step * block_k])
            total = tl.dot(some, weights.T, total)
        low, high = tl.split(tl.permute(tl.reshape(total, [block_m, 2, block_n // 2]), [0, 2, 1]))
        out.store([row, column], low.to(out.dtype))
        out.store([row, column + block_n // 2], high.to(out.dtype))


@triton.jit(do_not_specialize=["rows"])
def _multiply_gated(
    x, weight, out, rows, columns, inner, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
    stages: tl.constexpr, flatten: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(rows, block_m) * tl.cdiv(columns, block_n)
    steps = tl.cdiv(inner, block_k)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=flatten):
        row, column = _place(tile, rows, columns, block_m, block_n)
        gate = tl.zeros([block_m, block_n], tl.float32)
        up = tl.zeros([block_m, block_n], tl.float32)
        for step in tl.range(0, steps, num_stages=stages):
            some = x.load([row, step * block_k])
            gate_weights = weight.load([column, step * block_k])
            up_weights = weight.load([columns + column, step * block_k])
            gate = tl.dot(some, gate_weights.T, gate)
            up = tl.dot(some, up_weights.T, up)
        exact = gate.to(out.dtype).to(tl.float32)
        activated = (exact / (1.0 + tl.exp(-exact))).to(out.dtype).to(tl.float32)
        out.store([row, column], (activated * up.to(out.dtype).to(tl.float32)).to(out.dtype))
