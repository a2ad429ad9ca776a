"""The kernels for noise and for protected tokens against their torch references."""

import math
from collections.abc import Callable

import pytest
import torch
from helpers.kernels import DEVICE, MARKS, REASON, triton_ops
from torch import Tensor

from vase_cli.kernels.ops import TorchOps
from vase_cli.randomness import SequenceNoise, stream_key
from vase_cli.randomness import uniform as torch_uniform

try:
    import triton
    import triton.language as tl

    from vase_cli.kernels import token_scores
    from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
except ImportError:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = MARKS
STORAGE_ROWS, HEADS = 3, 2


@triton.jit
def _uniforms(keys, layers, text_tokens, positions, heads, out, count: tl.constexpr):
    at = tl.arange(0, count)
    state = mixed(tl.load(keys + at).to(tl.uint64))
    state = counted(state, tl.load(layers + at))
    state = counted(state, tl.load(text_tokens + at))
    state = counted(state, tl.load(heads + at))
    tl.store(out + at, uniform(counted(state, tl.load(positions + at))))


@pytest.fixture
def counters() -> Callable[[int], list[Tensor]]:
    def make(count: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(5)
        keys = torch.tensor([stream_key(3, f"p{index}", index, "eviction") for index in range(count)])
        small = [torch.randint(0, limit, (count,), generator=generator) for limit in (64, 40_000, 32_768, 8)]
        return [counter.to(DEVICE) for counter in (keys, *small)]

    return make


def test_uniform_numbers_have_the_bits_of_the_reference(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, positions, heads = counters(4096)
    found = torch.empty(4096, device=DEVICE)
    _uniforms[(1,)](keys, layers, text_tokens, positions.int(), heads.int(), found, count=4096)
    assert torch.equal(found, torch_uniform(keys, layers, text_tokens, heads, positions))


@pytest.mark.parametrize("of_this_cut", [True, False])
def test_numbers_of_a_sequence_have_the_bits_of_the_reference(
    of_this_cut: bool, counters: Callable[[int], list[Tensor]]
) -> None:
    keys, layers, text_tokens, *_ = counters(5)
    found = token_scores.sequence_uniforms(SequenceNoise(keys, layers), text_tokens if of_this_cut else None, 2560)
    middle = [text_tokens[:, None]] if of_this_cut else []
    expected = torch_uniform(keys[:, None], layers[:, None], *middle, torch.arange(2560, device=DEVICE))
    assert torch.equal(found, expected)


@triton.jit
def _uniforms_of(states, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, uniform(tl.load(states + at).to(tl.uint64)))


def test_uniform_numbers_stay_inside_their_range() -> None:
    found = torch.empty(2, device=DEVICE)
    _uniforms_of[(1,)](torch.tensor([-1, 0], device=DEVICE), found, count=2)
    assert found.tolist() == [1 - 2.0**-24, 2.0**-33]


@pytest.mark.parametrize("candidates", [1, 1000, 2049])
def test_noise_is_that_of_the_sequence(candidates: int, counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(3)
    rows = torch.tensor([4, 0, 4], device=DEVICE)
    generator = torch.Generator().manual_seed(candidates)
    positions = torch.randint(0, 40_000, (5, HEADS, candidates + 7), generator=generator).int().to(DEVICE)
    noise = SequenceNoise(keys, layers)
    found = token_scores.token_gumbel(noise, text_tokens, positions, rows, candidates)
    heads = torch.arange(HEADS, device=DEVICE)[None, :, None]
    place = positions[rows, :, :candidates].long()
    uniforms = torch_uniform(keys[:, None, None], layers[:, None, None], text_tokens[:, None, None], heads, place)
    expected = -(-torch.log1p(-uniforms.double())).log()
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=5e-7)
    reference = noise.gumbel(text_tokens[:, None, None], heads, place)
    torch.testing.assert_close(found, reference, rtol=1e-6, atol=1e-6)
    own = SequenceNoise(keys[1:2], layers[1:2])
    alone = token_scores.token_gumbel(own, text_tokens[1:2], positions, rows[1:2], candidates)
    assert torch.equal(alone[0], found[1])


@triton.jit
def _gumbels(uniforms, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, gumbel(tl.load(uniforms + at)))


def test_noise_is_precise_for_the_smallest_and_largest_uniform_numbers() -> None:
    small = 2.0 ** torch.linspace(-33, -1, 3000)
    uniforms = torch.cat((small, 1 - small[small > 2**-20], torch.tensor([1 - 2.0**-24, 2.0**-33])))
    uniforms = torch.nn.functional.pad(uniforms, (0, 8192 - uniforms.numel()), value=0.5).to(DEVICE)
    found = torch.empty_like(uniforms)
    _gumbels[(1,)](uniforms, found, count=8192)
    expected = -(-torch.log1p(-uniforms.double())).log()
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=5e-7)


def test_positions_may_be_expanded(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(2)
    rows = torch.tensor([1, 0], device=DEVICE)
    row, noise = torch.arange(50, dtype=torch.int32, device=DEVICE), SequenceNoise(keys, layers)
    expanded = token_scores.token_gumbel(noise, text_tokens, row.expand(2, HEADS, 50), rows, 43)
    dense = token_scores.token_gumbel(noise, text_tokens, row.repeat(2, HEADS, 1), rows, 43)
    assert torch.equal(expanded, dense)


def test_noise_takes_the_logarithms_of_weights_along(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(3)
    positions = torch.arange(90, dtype=torch.int32, device=DEVICE).repeat(3, 2, 1)
    rows = torch.tensor([1, 0, 2], device=DEVICE)
    weights = torch.rand(3, 2, 70, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    weights[0, 0, :3] = torch.tensor([0.0, 1e-40, math.nan])
    noise = SequenceNoise(keys, layers)
    for ops in (triton_ops(), TorchOps()):
        found = ops.token_gumbel(noise, text_tokens, positions, rows, 70, weights)
        expected = ops.token_gumbel(noise, text_tokens, positions, rows, 70) + weights.clamp_min(1e-37).log()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-6, equal_nan=True)
        assert found[0, 0, 2].isnan() and found.isnan().sum() == 1


@pytest.mark.parametrize("candidates", [5, 1024, 1500])
def test_protected_scores_are_infinite_unless_they_are_no_numbers(candidates: int) -> None:
    scored = torch.randn(2, 3, candidates, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    checked, mask = scored.flip(0).clone(), (scored > 0.5).to(DEVICE)
    mask[..., :3] = True
    scored[0, 1, 1] = math.nan
    checked[1, 2, 2] = math.nan
    for other in (None, checked):
        expected = scored if other is None else scored + 0.0 * other
        expected = torch.where(mask & ~expected.isnan(), math.inf, expected)
        for ops in (triton_ops(), TorchOps()):
            assert torch.equal(ops.protect(scored, mask, other).nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    positions = (torch.arange(candidates + 9, dtype=torch.int32, device=DEVICE) * 2).repeat(4, 3, 1)
    rows = torch.tensor([3, 1], device=DEVICE)
    expected = scored.clone()
    expected[..., :2] = math.inf  # positions 0 and 2
    expected[0, 1, 1] = math.nan
    for ops in (triton_ops(), TorchOps()):
        found = ops.protect_sinks(scored, positions, rows, 4)
        assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
