"""What stands between the matrix products of a decoder layer, each in one launch: norms, rotation, activation.

All round where transformers rounds, so that only the order of a sum can differ from it: a norm's states go back to the
model's dtype before the weight, and every product and sum of a rotation is rounded, its cosines and sines too. A bias
alone is added to a product that is rounded already.

Shapes: B rows (one token each), E width of the residual stream, M width of the MLP, S cached tokens a row can hold,
W window, P positions, Hq query heads, H KV heads, D head dim.
"""

import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, delta: Tensor | None = None) -> None:
    """Divide each row of x, (B, E), by its root mean square, and scale by the weight, (E,), into out, (B, E).

    ``eps`` is added to the mean square. ``delta``, (B, E), is added to ``x`` first, in place; all are contiguous.
    """
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _norm_row[(rows,)](x, delta, weight, eps, out, width, block, num_warps=min(16, max(1, block // 512)))


def rotate_and_append(
    qkv: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    text_positions: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    active: Tensor,
    ring: Tensor | None,
    out: Tensor,
    row_starts: Tensor | None = None,
) -> None:
    """Turn one token's projections into a rotated query, and append its rotated key and its value to the row.

    Args:
        qkv: (B, (Hq + 2H) D), contiguous: the query heads, the key heads, the value heads.
        bias: ((Hq + 2H) D,), added first; None for none.
        cos, sin: (P, D), any float dtype, rotations by position.
        text_positions: (B,) int64, below P.
        q_weight, k_weight, eps: (D,), RMS norm of each query or key head before the rotation; None for none.
        keys, values: (B, S, H, D), contiguous; written at slot ``lengths``. With ``row_starts`` they are (N, H, D).
        lengths: (B,) int32, tokens each row holds already.
        active: (B,) int32; of a row with 0, and of one that is full, nothing but ``out`` is written.
        ring: (B, W, Hq, D), contiguous; the query is also written at the position modulo W. None for none.
        out: (B, Hq, D), contiguous, written: the queries. D is a power of two, at least 16.
        row_starts: (B + 1,) int64, the slot where each row begins, and where the last one ends; None for rows of S.
    """
    rows, query_heads, head_dim = out.shape
    capacity, heads = keys.shape[-3:-1]
    block = max(1, 512 // head_dim)
    query_blocks, head_blocks = triton.cdiv(query_heads, block), triton.cdiv(heads, block)
    _rotate_and_append[(rows, query_blocks + 2 * head_blocks)](
        qkv, bias, cos, sin, text_positions, q_weight, k_weight, eps, keys, values, lengths, active, ring, out,
        row_starts, capacity, 1 if ring is None else ring.shape[1], query_heads=query_heads, heads=heads,
        head_dim=head_dim, block=block, query_blocks=query_blocks, head_blocks=head_blocks, num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip


def silu_multiply(gate_up: Tensor, out: Tensor) -> None:
    """Activate and multiply: ``gate_up`` (B, 2M), the gate and then its input, to ``out`` (B, M); contiguous."""
    rows, width = out.shape
    _silu_multiply[(rows, triton.cdiv(width, 1024))](gate_up, out, width, 1024, num_warps=4)


@triton.jit
def _norm_row(x, delta, weight, eps, out, width: tl.constexpr, block: tl.constexpr):
    place = tl.arange(0, block)
    inside = place < width
    start = tl.program_id(0).to(tl.int64) * width
    scale = tl.load(weight + place, mask=inside, other=0.0)
    states = tl.load(x + start + place, mask=inside, other=0.0)
    if delta is not None:
        change = tl.load(delta + start + place, mask=inside, other=0.0)
        states = (states.to(tl.float32) + change.to(tl.float32)).to(states.dtype)
        tl.store(x + start + place, states, mask=inside)
    exact = states.to(tl.float32)
    normed = exact * tl.rsqrt(tl.sum(exact * exact) / width + eps)
    scaled = normed.to(states.dtype).to(tl.float32) * scale.to(tl.float32)
    tl.store(out + start + place, scaled.to(states.dtype), mask=inside)


@triton.jit
def _rounded(exact, dtype: tl.constexpr):
    return exact.to(dtype).to(tl.float32)


@triton.jit
def _load_halves(states, bias, start, head, inside, head_dim: tl.constexpr):
    """The two halves of some heads in float32, the bias added: each (block, D / 2)."""
    dtype: tl.constexpr = states.dtype.element_ty
    place = head[:, None] * head_dim + tl.arange(0, head_dim // 2)[None, :]
    low = tl.load(states + start + place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(states + start + place + head_dim // 2, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        low = _rounded(low + tl.load(bias + place, mask=inside, other=0.0).to(tl.float32), dtype)
        high = _rounded(high + tl.load(bias + place + head_dim // 2, mask=inside, other=0.0).to(tl.float32), dtype)
    return low, high


@triton.jit
def _norm_and_rotate(low, high, weight, eps, cos, sin, position, head_dim: tl.constexpr, dtype: tl.constexpr):
    """Both halves after the norm, if there is a weight, and the rotation."""
    lane = tl.arange(0, head_dim // 2)
    if weight is not None:
        mean_square = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / head_dim
        factor = tl.rsqrt(mean_square + eps)[:, None]
        low_weight = tl.load(weight + lane).to(tl.float32)[None, :]
        high_weight = tl.load(weight + head_dim // 2 + lane).to(tl.float32)[None, :]
        low = _rounded(_rounded(low * factor, dtype) * low_weight, dtype)
        high = _rounded(_rounded(high * factor, dtype) * high_weight, dtype)
    place = position * head_dim + lane
    low_cos = _rounded(tl.load(cos + place), dtype)[None, :]
    low_sin = _rounded(tl.load(sin + place), dtype)[None, :]
    high_cos = _rounded(tl.load(cos + place + head_dim // 2), dtype)[None, :]
    high_sin = _rounded(tl.load(sin + place + head_dim // 2), dtype)[None, :]
    rotated_low = _rounded(low * low_cos, dtype) - _rounded(high * low_sin, dtype)
    rotated_high = _rounded(high * high_cos, dtype) + _rounded(low * high_sin, dtype)
    return rotated_low.to(dtype), rotated_high.to(dtype)


@triton.jit
def _store_halves(target, start, head, inside, low, high, head_dim: tl.constexpr):
    place = start + head[:, None] * head_dim + tl.arange(0, head_dim // 2)[None, :]
    tl.store(target + place, low, mask=inside)
    tl.store(target + place + head_dim // 2, high, mask=inside)


@triton.jit
def _rotate_and_append(
    qkv, bias, cos, sin, text_positions, q_weight, k_weight, eps, keys, values, lengths, active, ring, out, row_starts,
    capacity, window, query_heads: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr,
    query_blocks: tl.constexpr, head_blocks: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(text_positions + row)
    length = tl.load(lengths + row)
    first_slot = row * capacity
    if row_starts is not None:
        first_slot = tl.load(row_starts + row)
        capacity = tl.load(row_starts + row + 1) - first_slot
    appends = (tl.load(active + row) != 0) & (length < capacity)
    states = row * (query_heads + 2 * heads) * head_dim
    slot = (first_slot + length) * heads * head_dim
    if part < query_blocks:
        head = part * block + tl.arange(0, block)
        inside = (head < query_heads)[:, None]
        low, high = _load_halves(qkv, bias, states, head, inside, head_dim)
        turned_low, turned_high = _norm_and_rotate(low, high, q_weight, eps, cos, sin, position, head_dim, dtype)
        _store_halves(out, row * query_heads * head_dim, head, inside, turned_low, turned_high, head_dim)
        if ring is not None:
            place = (row * window + position % window) * query_heads * head_dim
            _store_halves(ring, place, head, inside & appends, turned_low, turned_high, head_dim)
    elif part < query_blocks + head_blocks:
        head = (part - query_blocks) * block + tl.arange(0, block)
        inside = (head < heads)[:, None] & appends
        low, high = _load_halves(qkv, bias, states, query_heads + head, inside, head_dim)
        turned_low, turned_high = _norm_and_rotate(low, high, k_weight, eps, cos, sin, position, head_dim, dtype)
        _store_halves(keys, slot, head, inside, turned_low, turned_high, head_dim)
    else:
        head = (part - query_blocks - head_blocks) * block + tl.arange(0, block)
        inside = (head < heads)[:, None] & appends
        low, high = _load_halves(qkv, bias, states, query_heads + heads + head, inside, head_dim)
        _store_halves(values, slot, head, inside, low.to(dtype), high.to(dtype), head_dim)


@triton.jit
def _silu_multiply(gate_up, out, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < width
    gate = tl.load(gate_up + row * 2 * width + place, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + place, mask=inside, other=0.0)
    exact = gate.to(tl.float32)
    activated = (exact / (1.0 + tl.exp(-exact))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + place, (activated * up.to(tl.float32)).to(gate.dtype), mask=inside)
