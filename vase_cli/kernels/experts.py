"""Matrix products of each token with the experts that work on it, and with no other's weights.

In a decode step an expert has a few rows, and reading its weights takes all the time: they are streamed through as in
:mod:`vase_cli.kernels.linear`. In a prefill it has hundreds, and tiles as large as tensor cores like them. The shape of
a batch alone decides between the two. Every sum runs over the inputs in one order, and on an H200 tiles of all kinds
are multiplied by one kind of instruction: no bit of a token's result depends on the other tokens, nor on their number.

Shapes: T tokens, X experts, K experts of a token, P = T K pairs, N tiles, E width of the residual stream, M width of
an expert.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._shared_memory import stages_that_fit
from vase_cli.kernels.routing import Groups

_ROUTER_ROWS = 64
_FEW_TOKENS = 512


class Config(NamedTuple):
    """How a product is divided: columns of one program, inputs read at a time; powers of two, at least 16."""

    columns: int
    inner: int
    stages: int
    warps: int


class Division(NamedTuple):
    """How both products are divided: rows of a tile, a power of two of at least 16, and the rest of each product."""

    block: int
    gate_up: Config
    down: Config


def division(tokens: int, places: int, experts: int) -> Division:
    """The division for T tokens, K experts of each and X experts: the fastest of those tried on an H200."""
    rows = tokens * places / experts
    if rows <= 16:
        return Division(16 if rows <= 8 else 32, Config(64, 128, 3, 4), Config(64, 128, 3, 4))
    if rows <= 64:
        return Division(64, Config(64, 64, 4, 4), Config(128, 64, 4, 4))
    return Division(128, Config(128, 64, 4, 8), Config(256, 64, 4, 8))


def logits(states: Tensor, router: Tensor) -> Tensor:
    """Multiply ``states`` (T, E) with a router's weight, (X, E), both contiguous and of one dtype: (T, X)."""
    tokens, inner = states.shape
    experts = router.shape[0]
    out = torch.empty((tokens, experts), dtype=states.dtype, device=states.device)
    config = Config(16 if tokens <= _FEW_TOKENS else 64, 128, 4, 4)
    columns, depth, stages = _fitting(config, _ROUTER_ROWS, 1, experts, inner, states)
    grid = (triton.cdiv(tokens, _ROUTER_ROWS), triton.cdiv(experts, columns))
    _logits[grid](
        states, router, out, tokens, experts, inner, _ROUTER_ROWS, columns, depth, stages, num_warps=config.warps
    )
    return out


def gate_up(states: Tensor, weight: Tensor, groups: Groups, places: int, config: Config) -> Tensor:
    """Multiply each pair's token with its expert's gate and up, activate the gate (SiLU), and multiply the two.

    ``states`` (T, E) and ``weight`` (X, 2M, E), the gate's M rows first, are contiguous and of one dtype; gives (P, M)
    in the groups' order.
    """
    width, inner = weight.shape[1] // 2, weight.shape[2]
    out = torch.empty((groups.order.shape[0], width), dtype=states.dtype, device=states.device)
    columns, depth, stages = _fitting(config, groups.block, 2, width, inner, states)
    grid = (groups.tiles.shape[0] * triton.cdiv(width, columns),)
    _gate_up[grid](
        states, weight, groups.order, groups.tiles, out, width, inner, places, groups.block, columns, depth,
        stages, num_warps=config.warps,
    )  # fmt: skip
    return out


def down(activated: Tensor, weight: Tensor, groups: Groups, weights: Tensor, config: Config) -> Tensor:
    """Multiply what :func:`gate_up` gave with each expert's down, ``weight`` (X, E, M), and scale by the pair's weight.

    ``weights`` (T, K) are :func:`~vase_cli.kernels.routing.route`'s; gives (P, E) in the order of pairs, rounded before
    and after the weight.
    """
    width, inner = weight.shape[1:]
    out = torch.empty((groups.order.shape[0], width), dtype=activated.dtype, device=activated.device)
    columns, depth, stages = _fitting(config, groups.block, 1, width, inner, activated)
    grid = (groups.tiles.shape[0] * triton.cdiv(width, columns),)
    _down[grid](
        activated, weight, groups.order, groups.tiles, weights, out, width, inner, groups.block, columns, depth,
        stages, num_warps=config.warps,
    )  # fmt: skip
    return out


def _fitting(config: Config, block: int, weights: int, width: int, inner: int, states: Tensor) -> tuple[int, int, int]:
    """Columns, inputs and stages of a program that multiplies a tile with some weights: no more than there is, or fits.

    Half the inputs where they take twice the bytes, and fewer stages on a device of little shared memory.
    """
    columns = max(16, min(config.columns, triton.next_power_of_2(width)))
    depth = max(16, min(config.inner * 2 // states.element_size(), triton.next_power_of_2(inner)))
    stage_bytes = (weights * columns + block) * depth * states.element_size()
    return columns, depth, stages_that_fit(config.stages, stage_bytes, states.device)


@triton.jit
def _product(weights, inputs, total, few: tl.constexpr):
    """Add inputs (rows, depth) times weights (columns, depth): (columns, rows) where rows are few, else its like."""
    exact: tl.constexpr = "ieee" if weights.dtype == tl.float32 else "tf32"
    if few:
        return tl.dot(weights, tl.trans(inputs), total, input_precision=exact)
    else:
        return tl.dot(inputs, tl.trans(weights), total, input_precision=exact)


@triton.jit
def _logits(
    states, router, out, tokens, experts: tl.constexpr, inner: tl.constexpr, block: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_row, is_column = row < tokens, column < experts
    place = tl.arange(0, depth)
    inputs = states + row.to(tl.int64)[:, None] * inner + place[None, :]
    weights = router + column[:, None] * inner + place[None, :]
    total = tl.zeros([block, columns], tl.float32)
    for start in tl.range(0, inner, depth, num_stages=stages):
        is_inside = (start + place < inner)[None, :]
        some_weights = tl.load(weights + start, mask=is_column[:, None] & is_inside, other=0.0)
        some_inputs = tl.load(inputs + start, mask=is_row[:, None] & is_inside, other=0.0)
        total = _product(some_weights, some_inputs, total, False)
    target = out + row.to(tl.int64)[:, None] * experts + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _gate_up(
    states, weight, order, tiles, out, width: tl.constexpr, inner: tl.constexpr, places: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    few: tl.constexpr = block < 64
    parts: tl.constexpr = (width + columns - 1) // columns
    tile = tiles + tl.program_id(0) // parts * 3
    part = tl.program_id(0) % parts
    first, end = tl.load(tile + 1), tl.load(tile + 2)
    if first == end:
        return
    expert = tl.load(tile).to(tl.int64)
    row = first + tl.arange(0, block)
    is_row = row < end
    token = tl.load(order + row, mask=is_row, other=0).to(tl.int64) // places
    column = part * columns + tl.arange(0, columns)
    is_column = column < width
    place = tl.arange(0, depth)
    gates = weight + expert * 2 * width * inner + column[:, None] * inner + place[None, :]
    inputs = states + token[:, None] * inner + place[None, :]
    gate = tl.zeros([columns, block] if few else [block, columns], tl.float32)
    up = tl.zeros([columns, block] if few else [block, columns], tl.float32)
    for start in tl.range(0, inner, depth, num_stages=stages):
        weight_mask, input_mask = is_column[:, None], is_row[:, None]
        if inner % depth != 0:
            is_inside = (start + place < inner)[None, :]
            weight_mask, input_mask = weight_mask & is_inside, input_mask & is_inside
        if width % columns == 0 and inner % depth == 0:
            some_gates = tl.load(gates + start, eviction_policy="evict_first" if few else "")
            some_ups = tl.load(gates + width * inner + start, eviction_policy="evict_first" if few else "")
        else:
            some_gates = tl.load(gates + start, mask=weight_mask, other=0.0)
            some_ups = tl.load(gates + width * inner + start, mask=weight_mask, other=0.0)
        some_inputs = tl.load(inputs + start, mask=input_mask, other=0.0)
        gate = _product(some_gates, some_inputs, gate, few)
        up = _product(some_ups, some_inputs, up, few)
    if few:
        gate, up = tl.trans(gate), tl.trans(up)
    dtype: tl.constexpr = out.dtype.element_ty
    exact = gate.to(dtype).to(tl.float32)
    activated = (exact / (1.0 + tl.exp(-exact))).to(dtype).to(tl.float32)
    target = out + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, (activated * up.to(dtype).to(tl.float32)).to(dtype), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _down(
    activated, weight, order, tiles, weights, out, width: tl.constexpr, inner: tl.constexpr, block: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    few: tl.constexpr = block < 64
    parts: tl.constexpr = (width + columns - 1) // columns
    tile = tiles + tl.program_id(0) // parts * 3
    part = tl.program_id(0) % parts
    first, end = tl.load(tile + 1), tl.load(tile + 2)
    if first == end:
        return
    expert = tl.load(tile).to(tl.int64)
    row = first + tl.arange(0, block)
    is_row = row < end
    column = part * columns + tl.arange(0, columns)
    is_column = column < width
    place = tl.arange(0, depth)
    downs = weight + expert * width * inner + column[:, None] * inner + place[None, :]
    inputs = activated + row.to(tl.int64)[:, None] * inner + place[None, :]
    total = tl.zeros([columns, block] if few else [block, columns], tl.float32)
    for start in tl.range(0, inner, depth, num_stages=stages):
        weight_mask, input_mask = is_column[:, None], is_row[:, None]
        if inner % depth != 0:
            is_inside = (start + place < inner)[None, :]
            weight_mask, input_mask = weight_mask & is_inside, input_mask & is_inside
        if width % columns == 0 and inner % depth == 0:
            some_weights = tl.load(downs + start, eviction_policy="evict_first" if few else "")
        else:
            some_weights = tl.load(downs + start, mask=weight_mask, other=0.0)
        some_inputs = tl.load(inputs + start, mask=input_mask, other=0.0)
        total = _product(some_weights, some_inputs, total, few)
    if few:
        total = tl.trans(total)
    dtype: tl.constexpr = out.dtype.element_ty
    pair = tl.load(order + row, mask=is_row, other=0).to(tl.int64)
    scale = tl.load(weights + pair, mask=is_row, other=0.0).to(tl.float32)
    scaled = total.to(dtype).to(tl.float32) * scale[:, None]
    target = out + pair[:, None] * width + column[None, :]
    tl.store(target, scaled.to(dtype), mask=is_row[:, None] & is_column[None, :])
