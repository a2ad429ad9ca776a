"""Samples of token statistics against exact quantiles, and the promise that order and parts do not matter."""

import math
from pathlib import Path

import pytest
import torch
from helpers.memory import held_bytes
from torch import Tensor

from vase_cli.calibration.quantiles import TokenSample, quantiles
from vase_cli.errors import DataError, ModelError
from vase_cli.randomness import hashed
from vase_cli.tensor_files import load_tensors, tensor_bytes

TOKENS = 1_000_000
LEVELS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


def keys_of(start: int, end: int, text: int = 1) -> Tensor:
    return hashed(torch.full((end - start,), text), torch.arange(start, end))


def fill(sample: TokenSample, statistics: Tensor, *, step: int = 50_000, text: int = 1) -> TokenSample:
    """All tokens of (M, L, T, H) statistics, some at a time."""
    for start in range(0, statistics.shape[2], step):
        end = min(start + step, statistics.shape[2])
        sample.update(keys_of(start, end, text), statistics[:, :, start:end])
    return sample


def rank_error(exact: Tensor, value: float, level: float) -> float:
    """How far the level is from the ranks that a value has among the exact ones."""
    below = int(torch.searchsorted(exact, value)) / exact.numel()
    at_most = int(torch.searchsorted(exact, value, right=True)) / exact.numel()
    return max(0.0, below - level, level - at_most)


def one_million(kind: str) -> Tensor:
    uniforms = torch.rand(TOKENS, generator=torch.Generator().manual_seed(3)).clamp(1e-7, 1 - 1e-7)
    if kind == "heavy":
        return uniforms.pow(-2.0)  # no mean
    if kind == "rising":
        return torch.arange(TOKENS).float()  # sorted: position tells the value
    if kind == "few values":
        return (uniforms * 3).floor()
    if kind == "narrow":
        return 1.0 + uniforms * 1e-5
    return torch.full((TOKENS,), 2.5)


@pytest.mark.parametrize("kind", ["heavy", "rising", "few values", "narrow", "constant"])
def test_quantiles_of_a_million_tokens_are_within_one_percent(kind: str):
    values = one_million(kind)
    mirrored = values.max() + values.min() - values
    sample = fill(TokenSample(("range",), 1, 2), torch.stack((values, mirrored), dim=-1)[None, None])
    assert sample.count == TOKENS
    found = sample.quantiles(LEVELS)
    assert found.shape == (1, 1, 2, len(LEVELS))
    for head, exact in enumerate((values, mirrored)):
        ordered = exact.sort().values
        errors = [rank_error(ordered, float(found[0, 0, head, at]), level) for at, level in enumerate(LEVELS)]
        assert max(errors) < 0.01, errors
        assert float(sample.largest()[0, 0, head]) == float(exact.max())


def test_quantiles_are_exact_while_every_token_fits():
    values = torch.rand((2, 3, 999, 4), generator=torch.Generator().manual_seed(0))
    found = fill(TokenSample(("range", "norm"), 3, 4, size=999), values, step=100).quantiles((0.25, 0.5, 1.0))
    exact = values.sort(dim=2).values[:, :, [249, 499, 998]].transpose(2, 3)
    assert torch.equal(found, exact)


@pytest.mark.parametrize(
    ("level", "count", "rank"), [(0.5, 1, 0), (0.5, 2, 0), (0.5, 3, 1), (0.1, 10, 0), (0.3, 10, 2)]
)
def test_a_rank_is_the_smallest_that_the_share_does_not_exceed(level: float, count: int, rank: int):
    assert quantiles(torch.arange(count).flip(0), [level]).tolist() == [rank]


def test_order_and_parts_do_not_matter():
    values = torch.rand((1, 2, 5000, 2), generator=torch.Generator().manual_seed(1))
    whole = fill(TokenSample(("range",), 2, 2, size=512), values)
    backwards = TokenSample(("range",), 2, 2, size=512)
    for start in reversed(range(0, 5000, 77)):
        end = min(start + 77, 5000)
        backwards.update(keys_of(start, end), values[:, :, start:end])
    early, late = (TokenSample(("range",), 2, 2, size=512) for _ in range(2))
    early.update(keys_of(0, 1234), values[:, :, :1234])
    late.update(keys_of(1234, 5000), values[:, :, 1234:])
    expected = whole.state()
    assert len(whole) == 512 and whole.count == 5000
    for other in (backwards, early.merged(late), late.merged(early)):
        state = other.state()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_the_sample_is_uniform_over_positions():
    values = torch.arange(100_000).float()[None, None, :, None]
    sampled = fill(TokenSample(("range",), 1, 1, size=4096), values).values("range").flatten()
    shares = torch.histc(sampled, bins=10, min=0, max=100_000) / 4096
    assert (shares - 0.1).abs().max() < 0.02


def test_memory_stays_the_same_however_many_tokens_come():
    sizes = []
    for tokens in (10_000, 40_000, 200_000):
        sizes.append(held_bytes(fill(TokenSample(("range",), 2, 2, size=2048), torch.rand((1, 2, tokens, 2)))))
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_named_and_nothing_is_taken(bad: float):
    sample = TokenSample(("range", "norm"), 3, 4)
    values = torch.rand((2, 3, 1000, 4))
    sample.update(keys_of(0, 1000), values)
    before = sample.state()
    values[1, 2, 700, 3] = bad
    with pytest.raises(ModelError, match=rf"^layer 2, KV head 3: the norm of a value is {bad}$"):
        sample.update(keys_of(1000, 2000), values)
    after = sample.state()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_nothing_measured_is_zero():
    sample = TokenSample(("range",), 1, 2)
    assert sample.count == 0
    assert sample.quantiles((0.5,)).tolist() == [[[[0.0], [0.0]]]]
    assert sample.largest().tolist() == [[[0.0, 0.0]]]


def test_a_restored_sample_goes_on_as_if_nothing_had_happened(tmp_path: Path):
    values = torch.rand((1, 2, 3000, 2), generator=torch.Generator().manual_seed(5))
    whole = fill(TokenSample(("range",), 2, 2, size=256), values, step=1000)
    first = TokenSample(("range",), 2, 2, size=256)
    first.update(keys_of(0, 2000), values[:, :, :2000])
    (tmp_path / "s.safetensors").write_bytes(tensor_bytes(first.state()))
    second = TokenSample(("range",), 2, 2, size=256)
    second.restore(tmp_path / "s.safetensors", load_tensors(tmp_path / "s.safetensors")[0])
    second.update(keys_of(2000, 3000), values[:, :, 2000:])
    state, expected = second.state(), whole.state()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("change", ["no keys", "fewer values", "other heads", "count"])
def test_a_state_that_does_not_fit_is_refused(change: str):
    state = fill(TokenSample(("range",), 2, 2, size=64), torch.rand((1, 2, 100, 2))).state()
    target = TokenSample(("range",), 2, 3 if change == "other heads" else 2, size=64)
    if change == "no keys":
        del state["keys"]
    elif change == "fewer values":
        state["values"] = state["values"][1:]
    elif change == "count":
        state["count"] = torch.tensor(63)
    with pytest.raises(DataError, match=r"^s\.safetensors: not the state of this calibration; delete it"):
        target.restore(Path("s.safetensors"), state)


def test_samples_of_different_kinds_do_not_merge():
    with pytest.raises(ValueError, match="different kinds"):
        TokenSample(("range",), 1, 1).merged(TokenSample(("norm",), 1, 1))
