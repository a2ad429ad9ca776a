"""The kernels of a decoder layer against what transformers does, on a GPU or in Triton's interpreter."""

import pytest
import torch
from helpers.kernels import DEVICE, INTERPRETING, MARKS, draw
from torch.nn.functional import silu

pytestmark = MARKS
HALVES = [torch.float16] if INTERPRETING else [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, *HALVES]
UNIT = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Relative distance of one number to the next, or what sums in another order may differ by."""


def empty_like(states: torch.Tensor) -> torch.Tensor:
    return torch.full_like(states, torch.nan)


def assert_same_but_for_the_last_bit(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Nearly all numbers are equal; where a sum came out on the other side of a rounding, one is the next one."""
    assert got.dtype == expected.dtype
    difference = (got.double() - expected.double()).abs()
    assert (difference <= 2 * UNIT[got.dtype] * expected.double().abs() + 1e-6).all()
    if got.dtype != torch.float32:
        assert (difference > 0).double().mean() < 0.02


def normed(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Qwen3RMSNorm of transformers."""
    exact = states.float()
    return weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + eps)).to(states.dtype)


@pytest.mark.parametrize("width", [32, 1000, 1536])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_is_that_of_transformers(dtype: torch.dtype, width: int):
    from vase_cli.kernels.decoder import rms_norm

    states, weight = draw(5, width, dtype=dtype), draw(width, seed=1, dtype=dtype)
    states[2] *= 1e-4
    out = empty_like(states)
    rms_norm(states, weight, 1e-6, out)
    assert_same_but_for_the_last_bit(out, normed(states, weight, 1e-6))


@pytest.mark.parametrize("width", [32, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_adding_rounds_before_it_norms(dtype: torch.dtype, width: int):
    from vase_cli.kernels.decoder import rms_norm

    residual, delta, weight = (draw(*shape, dtype=dtype) for shape in ((5, width), (5, width), (width,)))
    delta *= 0.01
    expected = residual + delta
    out = empty_like(residual)
    rms_norm(residual, weight, 1e-5, out, delta)
    assert torch.equal(residual, expected)
    assert_same_but_for_the_last_bit(out, normed(expected, weight, 1e-5))


@pytest.mark.parametrize("width", [7, 48, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_multiply_activates_the_first_half(dtype: torch.dtype, width: int):
    from vase_cli.kernels.decoder import silu_multiply

    gate_up = draw(3, 2 * width, dtype=dtype) * 4
    out = empty_like(gate_up[:, :width].contiguous())
    silu_multiply(gate_up, out)
    assert_same_but_for_the_last_bit(out, silu(gate_up[:, :width]) * gate_up[:, width:])


def turned(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """apply_rotary_pos_emb of transformers: states (B, heads, D), cos and sin (B, D)."""
    half = states.shape[-1] // 2
    rotated = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * cos[:, None].to(states.dtype) + rotated * sin[:, None].to(states.dtype)


class Step:
    """What rotate_and_append works on: rows that hold 3, 0, 6 and 4 of 7 tokens, the second idle."""

    def __init__(
        self, query_heads: int, heads: int, head_dim: int, *, bias: bool, norms: bool, ring: bool, dtype: torch.dtype
    ) -> None:
        width = (query_heads + 2 * heads) * head_dim
        self.qkv = draw(4, width, seed=1, dtype=dtype)
        self.bias = draw(width, seed=2, dtype=dtype) if bias else None
        angles = draw(40, head_dim // 2, seed=3) * 3
        self.cos, self.sin = (torch.cat((part, part), dim=-1) for part in (angles.cos(), angles.sin()))
        self.positions = torch.tensor([3, 0, 39, 12], device=DEVICE)
        self.q_weight, self.k_weight = (draw(head_dim, seed=seed, dtype=dtype) if norms else None for seed in (4, 5))
        self.lengths = torch.tensor([3, 0, 6, 4], dtype=torch.int32, device=DEVICE)
        self.active = torch.tensor([1, 0, 1, 1], dtype=torch.int32, device=DEVICE)
        self.keys, self.values = (draw(4, 7, heads, head_dim, seed=seed, dtype=dtype) for seed in (6, 7))
        self.ring = draw(4, 5, query_heads, head_dim, seed=8, dtype=dtype) if ring else None
        self.out = empty_like(draw(4, query_heads, head_dim, dtype=dtype))

    def run(self, row_starts: torch.Tensor | None = None) -> None:
        from vase_cli.kernels.decoder import rotate_and_append

        rotate_and_append(
            self.qkv, self.bias, self.cos, self.sin, self.positions, self.q_weight, self.k_weight, 1e-6,
            self.keys, self.values, self.lengths, self.active, self.ring, self.out, row_starts,
        )  # fmt: skip

    def expected(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (B, Hq, D), keys and values (B, H, D) of the new tokens."""
        rows, query_heads, head_dim = self.out.shape
        heads = self.keys.shape[2]
        states = self.qkv if self.bias is None else self.qkv + self.bias
        queries, keys, values = states.view(rows, -1, head_dim).split([query_heads, heads, heads], dim=1)
        if self.q_weight is not None and self.k_weight is not None:
            queries, keys = normed(queries, self.q_weight, 1e-6), normed(keys, self.k_weight, 1e-6)
        cos, sin = self.cos[self.positions], self.sin[self.positions]
        return turned(queries, cos, sin), turned(keys, cos, sin), values


@pytest.mark.parametrize(("query_heads", "heads", "head_dim"), [(4, 2, 16), (6, 6, 64), (5, 1, 128), (32, 8, 128)])
@pytest.mark.parametrize(("bias", "norms", "ring"), [(False, True, True), (True, False, False), (True, True, True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_rotated_and_appended(
    dtype: torch.dtype, bias: bool, norms: bool, ring: bool, query_heads: int, heads: int, head_dim: int
):
    step = Step(query_heads, heads, head_dim, bias=bias, norms=norms, ring=ring, dtype=dtype)
    keys, values = step.keys.clone(), step.values.clone()
    old_ring = None if step.ring is None else step.ring.clone()
    step.run()
    new_queries, new_keys, new_values = step.expected()
    assert_close_after_rotation(step.out, new_queries)
    for row, (length, position) in enumerate(zip(step.lengths.tolist(), step.positions.tolist(), strict=True)):
        if step.active[row]:
            assert_close_after_rotation(step.keys[row, length], new_keys[row])
            assert torch.equal(step.values[row, length], new_values[row])
            keys[row, length], values[row, length] = step.keys[row, length], new_values[row]
            if old_ring is not None:
                old_ring[row, position % 5] = step.out[row]
    assert torch.equal(step.keys, keys) and torch.equal(step.values, values)
    if step.ring is not None:
        assert torch.equal(step.ring, old_ring)


def assert_close_after_rotation(got: torch.Tensor, expected: torch.Tensor) -> None:
    """A rotation adds numbers that may nearly cancel: the distance counts against the state's size."""
    assert got.dtype == expected.dtype
    largest = expected.double().abs().amax(dim=-1, keepdim=True)
    assert ((got.double() - expected.double()).abs() <= UNIT[got.dtype] * largest).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_appended_to_a_row_of_any_length(dtype: torch.dtype):
    """Rows of 5, 1, 6 and 7 slots, the third of them full, with slots of nobody behind the last."""
    step, uniform = (Step(8, 2, 64, bias=True, norms=True, ring=False, dtype=dtype) for _ in range(2))
    lengths, starts = [5, 1, 6, 7], [0, 5, 6, 12, 19]
    flat = [torch.cat([part[row, :slots] for row, slots in enumerate(lengths)]) for part in (step.keys, step.values)]
    step.keys, step.values = (torch.cat((part, part[:3])) for part in flat)
    before = [part.clone() for part in (step.keys, step.values)]
    step.run(torch.tensor(starts, device=DEVICE))
    uniform.run()
    assert torch.equal(step.out, uniform.out)
    for got, old, expected in zip((step.keys, step.values), before, (uniform.keys, uniform.values), strict=True):
        for row, length in ((0, 3), (3, 4)):
            old[starts[row] + length] = expected[row, length]
        assert torch.equal(got, old)


def test_a_full_row_is_left_alone():
    step = Step(4, 2, 16, bias=False, norms=True, ring=True, dtype=torch.float32)
    step.lengths[2] = 7
    before = [part[2:].clone() for part in (step.keys, step.values, step.ring)]
    step.run()
    assert torch.equal(step.keys[2], before[0][0]) and torch.equal(step.values[2], before[1][0])
    assert torch.equal(step.keys[3, 0], before[0][1, 0]) and torch.equal(step.ring[2], before[2][0])
    assert step.out.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_bit_of_a_row_depends_on_its_neighbors(dtype: torch.dtype):
    step, other = (Step(8, 2, 64, bias=True, norms=True, ring=False, dtype=dtype) for _ in range(2))
    other.qkv[[0, 1, 3]] = torch.nan
    other.active[:2] = torch.tensor([0, 1], dtype=torch.int32)
    step.run()
    other.run()
    assert torch.equal(step.out[2], other.out[2])
    assert torch.equal(step.keys[2], other.keys[2]) and torch.equal(step.values[2], other.values[2])


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.double() @ weight.double().T


def multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from vase_cli.kernels.linear import linear

    out = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=x.dtype, device=DEVICE)
    linear(x, weight, out)
    return out


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 33, 64])
@pytest.mark.parametrize(("columns", "inner"), [(160, 512), (100, 200), (64, 16)])
@pytest.mark.parametrize("dtype", HALVES)
def test_linear_agrees_with_float64(dtype: torch.dtype, columns: int, inner: int, rows: int):
    x, weight = draw(rows, inner, seed=rows, dtype=dtype), draw(columns, inner, seed=1, dtype=dtype)
    expected = exact_product(x, weight)
    error = (multiplied(x, weight).double() - expected).norm() / expected.norm()
    assert error < UNIT[dtype] / 2


@pytest.mark.parametrize("rows", [9, 19])
def test_no_bit_of_a_product_depends_on_the_other_rows(rows: int):
    dtype = HALVES[0]
    x, weight = draw(rows, 256, seed=3, dtype=dtype), draw(96, 256, seed=1, dtype=dtype)
    others = draw(rows, 256, seed=4, dtype=dtype)
    others[0] = torch.nan
    others[7] = x[7]
    assert torch.equal(multiplied(others, weight)[7], multiplied(x, weight)[7])


def test_linear_serves_few_rows_of_contiguous_half_precision():
    from vase_cli.kernels.linear import MAX_ROWS, serves

    x, weight = draw(MAX_ROWS, 32, dtype=torch.bfloat16), draw(48, 32, dtype=torch.bfloat16)
    assert serves(x, weight) and serves(x[:1], weight)
    assert not serves(draw(MAX_ROWS + 1, 32, dtype=torch.bfloat16), weight)
    assert not serves(x.float(), weight.float()) and not serves(x, weight.half())
    assert not serves(x, draw(32, 48, dtype=torch.bfloat16).T)
