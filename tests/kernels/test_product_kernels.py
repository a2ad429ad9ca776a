"""Matrix products and attention of packs against float64, and no row that another one changes."""

import pytest
import torch
from helpers.kernels import DEVICE, HALF, INTERPRETING, MARKS, draw

pytestmark = MARKS
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
ROWS = [1, 5, 33, 100] if INTERPRETING else [1, 5, 33, 64, 65, 100, 300, 777, 1500, 5000]
SHAPES = [(56, 72)] if INTERPRETING else [(56, 72), (512, 136), (1536, 2048)]


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from vase_cli.kernels.products import multiply

    out = torch.full((states.shape[0], weight.shape[0]), torch.nan, dtype=states.dtype, device=DEVICE)
    multiply(states, weight, out)
    return out


def gated(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from vase_cli.kernels.products import multiply_gated

    out = torch.full((states.shape[0], weight.shape[0] // 2), torch.nan, dtype=states.dtype, device=DEVICE)
    multiply_gated(states, weight, out)
    return out


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_products_agree_with_float64(columns: int, inner: int, rows: int):
    states, weight = draw(rows, inner, dtype=HALF), draw(columns, inner, seed=1, dtype=HALF)
    assert error(product(states, weight), states.double() @ weight.double().T) < TOLERANCE[HALF]


@pytest.mark.parametrize("kind", [product, gated])
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_no_row_of_a_product_depends_on_the_others(kind, columns: int, inner: int):
    states, weight = draw(max(ROWS), inner, dtype=HALF), draw(2 * columns, inner, seed=1, dtype=HALF)
    together = kind(states, weight)
    step = 16 if INTERPRETING else 1  # NumPy's products depend on a row's place in a tile, tensor cores' do not
    for rows in ROWS:
        for start in {0, (max(ROWS) - rows) // 3 // step * step, (max(ROWS) - rows) // step * step}:
            part = slice(start, start + rows)
            assert torch.equal(kind(states[part].clone(), weight), together[part]), (rows, start)


def test_a_row_that_is_not_finite_stays_by_itself():
    states, weight = draw(40, 72, dtype=HALF), draw(112, 72, seed=1, dtype=HALF)
    expected = product(states, weight), gated(states, weight)
    states[7] = torch.nan
    for got, clean in zip((product(states, weight), gated(states, weight)), expected, strict=True):
        assert got[7].isnan().all()
        got[7] = clean[7]
        assert torch.equal(got, clean)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("columns", "inner"), SHAPES)
def test_gate_and_input_in_one_round_as_one_by_one(columns: int, inner: int, rows: int):
    from vase_cli.kernels.decoder import silu_multiply

    states, weight = draw(rows, inner, dtype=HALF), draw(2 * columns, inner, seed=1, dtype=HALF)
    out = torch.full((rows, columns), torch.nan, dtype=HALF, device=DEVICE)
    silu_multiply(product(states, weight), out)
    torch.testing.assert_close(gated(states, weight), out, rtol=2 * TOLERANCE[HALF], atol=1e-3)


def test_weights_of_another_kind_are_left_to_others():
    from vase_cli.kernels.products import serves

    assert serves(draw(56, 72, dtype=HALF))
    assert not serves(draw(56, 72))
    assert not serves(draw(52, 72, dtype=HALF)) and not serves(draw(56, 76, dtype=HALF))
    assert not serves(draw(72, 56, dtype=HALF).T)


def attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: list[int], scale: float
) -> torch.Tensor:
    from vase_cli.attention.base import PromptPack
    from vase_cli.kernels.prompt_attention import block_of, prompt_attention

    out = torch.full_like(queries, torch.nan)
    blocks = PromptPack(lengths, DEVICE).blocks(block_of(queries))
    prompt_attention(queries, keys, values, blocks, scale, out)
    return out


def exact(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One prompt in float64."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * scale
    unseen = torch.ones(scores.shape[1:], dtype=torch.bool, device=DEVICE).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -torch.inf).softmax(dim=-1), values)


LENGTHS = [3, 130, 1, 64, 200] if INTERPRETING else [3, 130, 1, 64, 65, 128, 1000, 2049, 20]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(16, HALF), (64, torch.float32)]
    if INTERPRETING
    else [(d, t) for d in (16, 64, 128, 256) for t in (HALF, torch.float32)],
)
def test_attention_of_a_pack_is_that_of_each_prompt(head_dim: int, dtype: torch.dtype, group: int):
    heads = (2 * group, 2, 2)
    states = [draw(sum(LENGTHS), count, head_dim, seed=seed, dtype=dtype) for seed, count in enumerate(heads)]
    together = attention(*states, LENGTHS, 0.1)
    start = 0
    for length in LENGTHS:
        prompt = [part[start : start + length].clone() for part in states]
        out = together[start : start + length]
        assert error(out, exact(*prompt, 0.1)) < TOLERANCE[dtype]
        assert torch.equal(attention(*prompt, [length], 0.1), out)
        start += length


def test_attention_of_a_prompt_sees_nothing_of_its_neighbors():
    states = [draw(120, count, 16, seed=seed, dtype=HALF) for seed, count in enumerate((4, 2, 2))]
    clean = attention(*states, [40, 37, 43], 0.25)
    for part in states:
        part[40:77] = torch.nan
    out = attention(*states, [40, 37, 43], 0.25)
    assert torch.equal(out[:40], clean[:40]) and torch.equal(out[77:], clean[77:]) and out[40:77].isnan().all()
