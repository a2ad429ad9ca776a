"""The split attention kernel against float64, on a GPU or in Triton's interpreter."""

import math

import pytest
import torch
from helpers.kernels import DEVICE, HALF, MARKS, draw

pytestmark = MARKS
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, held: list[int], splits: int | None, scale: float
) -> torch.Tensor:
    from vase_cli.kernels.attention import attention_config, decode_attention

    config = None
    if splits is not None:
        element_bytes = keys.element_size()
        config = attention_config(len(held), *keys.shape[1:], element_bytes, processors=1)._replace(splits=splits)
    out = torch.full_like(queries, torch.nan)
    lengths = torch.tensor(held, dtype=torch.int32, device=DEVICE)
    decode_attention(queries, keys, values, lengths, scale, out, config=config)
    return out


def exact(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, held: list[int], scale: float
) -> torch.Tensor:
    """All rows in float64, zeros where a row holds nothing."""
    group = queries.shape[1] // keys.shape[2]
    keys, values = (part.double().repeat_interleave(group, dim=2) for part in (keys, values))
    lengths = torch.tensor(held, device=DEVICE)
    unseen = torch.arange(keys.shape[1], device=DEVICE) >= lengths[:, None]
    scores = torch.einsum("bhd,bshd->bhs", queries.double(), keys) * scale
    weights = scores.masked_fill(unseen[:, None], -torch.inf).softmax(dim=-1).nan_to_num()
    return torch.einsum("bhs,bshd->bhd", weights, values)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    error = (got.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[got.dtype], f"relative error {error:.1e}"


def states(
    rows: int, slots: int, heads: int, group: int, head_dim: int, *, seed: int = 0, dtype: torch.dtype = HALF
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shapes = (rows, heads * group, head_dim), (rows, slots, heads, head_dim), (rows, slots, heads, head_dim)
    queries, keys, values = (draw(*shape, seed=seed + number, dtype=dtype) for number, shape in enumerate(shapes))
    return queries, keys, values


@pytest.mark.parametrize("splits", [None, 1, 3])
@pytest.mark.parametrize("group", [1, 4, 5, 16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_it_agrees_with_float64(head_dim: int, group: int, splits: int | None):
    held = [1, 0, 131, 333, 64, 65]
    queries, keys, values = states(6, 333, 2, group, head_dim, seed=group)
    out = attend(queries, keys, values, held, splits, 0.1)
    assert_close(out, exact(queries, keys, values, held, 0.1))
    assert torch.equal(out[1], torch.zeros_like(out[1]))


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("head_dim", [16, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, HALF])
def test_it_agrees_with_float64_in_every_dtype(dtype: torch.dtype, head_dim: int, splits: int):
    held = [97, 0, 100]
    queries, keys, values = states(3, 100, 3, 2, head_dim, dtype=dtype)
    assert_close(attend(queries, keys, values, held, splits, 0.2), exact(queries, keys, values, held, 0.2))


@pytest.mark.parametrize("splits", [1, 2, 7, 128])
def test_nothing_beyond_what_a_row_holds_is_seen(splits: int):
    held = [1, 17, 128, 129, 0]
    queries, keys, values = states(5, 200, 2, 4, 64)
    expected = exact(queries, keys, values, held, 0.125)
    for row, tokens in enumerate(held):
        keys[row, tokens:] = torch.nan
        values[row, tokens:] = torch.inf
    assert_close(attend(queries, keys, values, held, splits, 0.125), expected)


@pytest.mark.parametrize("filling", [torch.nan, torch.inf])
@pytest.mark.parametrize("splits", [3, 20])
def test_parts_that_no_token_fell_to_may_hold_anything(splits: int, filling: float, monkeypatch: pytest.MonkeyPatch):
    held = [0, 1, 64, 70, 130, 333]
    queries, keys, values = states(6, 333, 2, 4, 64)
    expected = exact(queries, keys, values, held, 0.1)
    monkeypatch.setattr(torch, "empty", lambda shape, **options: torch.full(shape, filling, **options))
    assert_close(attend(queries, keys, values, held, splits, 0.1), expected)


@pytest.mark.parametrize("splits", [1, 4])
def test_large_scores_do_not_overflow(splits: int):
    held = [150, 3]
    queries, keys, values = states(2, 150, 2, 4, 64)
    queries *= 32
    assert_close(attend(queries, keys, values, held, splits, 1.0), exact(queries, keys, values, held, 1.0))


@pytest.mark.parametrize("place", [3, 140])
@pytest.mark.parametrize("splits", [1, 4])
def test_states_that_are_not_finite_show_in_their_head_alone(splits: int, place: int):
    queries, keys, values = states(1, 150, 2, 4, 64)
    expected = attend(queries, keys, values, [150], splits, 0.125)
    keys[0, place, 1] = torch.nan
    out = attend(queries, keys, values, [150], splits, 0.125)
    assert torch.equal(out[:, :4], expected[:, :4])
    assert out[:, 4:].isnan().all()


@pytest.mark.parametrize("splits", [None, 1, 3])
@pytest.mark.parametrize("tokens", [1, 70, 300])
def test_no_bit_of_a_row_depends_on_its_neighbors(tokens: int, splits: int | None):
    alone = states(3, 300, 2, 4, 64)
    out = attend(*alone, [0, tokens, 0], splits, 0.125)
    for seed, neighbors in enumerate(([300, 1], [0, 299], [64, 65]), start=10):
        others = states(3, 300, 2, 4, 64, seed=seed)
        for other, own in zip(others, alone, strict=True):
            other[0] = torch.nan
            other[1] = own[1]
        got = attend(*others, [neighbors[0], tokens, neighbors[1]], splits, 0.125)
        assert torch.equal(got[1], out[1])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1)])
def test_a_rows_own_length_changes_no_bit(order: tuple[int, ...]):
    """Rows behind each other, each as long as it must be or longer, give what rows as long as the longest give."""
    from vase_cli.kernels.attention import decode_attention

    held, spare = [333, 70, 0, 129], [0, 0, 9, 100]
    queries, keys, values = states(4, 333, 2, 4, 64)
    expected = attend(queries, keys, values, held, None, 0.125)
    lengths = [max(1, held[row] + spare[row]) for row in order]
    flat = [
        torch.cat([part[row, :slots] for row, slots in zip(order, lengths, strict=True)]) for part in (keys, values)
    ]
    flat = [torch.cat((part, torch.full_like(part[:50], torch.nan))) for part in flat]
    starts = torch.tensor([sum(lengths[:place]) for place in range(5)], device=DEVICE)
    seq_lens = torch.tensor([held[row] for row in order], dtype=torch.int32, device=DEVICE)
    out = torch.full_like(queries, torch.nan)
    places = {"row_starts": starts, "longest_row": 333}
    decode_attention(queries[list(order)].contiguous(), *flat, seq_lens, 0.125, out, **places)
    assert torch.equal(out, expected[list(order)])


@pytest.mark.parametrize("lead", [0, 60, 200, 3000])
@pytest.mark.parametrize("splits", [1, 3])
def test_log_sums_over_the_candidates_are_left_at_each_rows_place(
    splits: int, lead: int, monkeypatch: pytest.MonkeyPatch
):
    """What a cut needs of each query: the sum over the storage slots of candidates, the window left out.

    However far the window's scores lie above those of all candidates.
    """
    from vase_cli.kernels.attention import AttentionConfig, decode_attention

    held, places, candidates, window = [150, 0, 131, 90], [7, 3, 10, 5], 120, 4
    queries, keys, values = states(4, 150, 2, 3, 64)
    queries[..., 0] = 1.0
    keys[:, candidates:, :, 0] += 8 * lead
    monkeypatch.setattr(torch, "empty", lambda shape, **options: torch.full(shape, torch.nan, **options))
    lse = torch.full((4, window, 6), 9.0, device=DEVICE)
    out = torch.empty_like(queries)
    decode_attention(
        queries, keys, values, torch.tensor(held, dtype=torch.int32, device=DEVICE), 0.125, out, lse=lse,
        candidates=candidates, text_positions=torch.tensor(places, device=DEVICE), config=AttentionConfig(splits, 64),
    )  # fmt: skip
    assert_close(out, exact(queries, keys, values, held, 0.125))
    expected = torch.full_like(lse, 9.0).double()
    for row, (tokens, place) in enumerate(zip(held, places, strict=True)):
        if tokens:
            seen = keys[row, : min(tokens, candidates)].double().repeat_interleave(3, dim=1)
            scores = torch.einsum("hd,shd->hs", queries[row].double(), seen) * 0.125
            expected[row, place % window] = scores.logsumexp(dim=-1) / math.log(2)
    torch.testing.assert_close(lse.double(), expected, rtol=0.0, atol=2e-5)


def test_the_work_is_divided_by_the_caches_shape():
    from vase_cli.kernels.attention import attention_config

    def splits(rows: int, slots: int, *, even: bool = False) -> int:
        return attention_config(rows, slots, 8, 128, 2, processors=132, even=even).splits

    assert splits(195, 4160) == 1
    assert splits(64, 4160) == 3
    assert splits(1, 4160) == 33  # no program has fewer than 128 tokens of a full row
    assert splits(1, 100) == 1
    assert splits(1, 1_000_000) == 128
    assert [splits(rows, 4160, even=True) for rows in (1, 16, 64)] == [33, 2, 1]  # one round of two programs on each
    for element_bytes, head_dim in ((2, 64), (2, 128), (2, 256), (4, 128), (4, 256), (2, 16)):
        assert 16 <= attention_config(1, 4160, 8, head_dim, element_bytes, 132).block <= 128
