import math

import torch

from vase_cli.randomness import SequenceNoise, gumbel, normal, stream_key, uniform


def splitmix_chain(key: int, *counters: int) -> float:
    """The same numbers with Python's integers, written from the definition."""
    mask = 2**64 - 1

    def mix(state: int) -> int:
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        return state ^ (state >> 31)

    state = mix(key & mask)
    for counter in counters:
        state = mix((state + 0x9E3779B97F4A7C15 + counter) & mask)
    return float(torch.tensor((state >> 32) * 2 + 1, dtype=torch.float32) * 2.0**-33)


def test_uniform_equals_its_definition_in_exact_integers():
    keys = [stream_key(7, "a", 0, "tokens"), stream_key(-1, "b", 3, "eviction")]
    got = uniform(torch.tensor(keys)[:, None, None], torch.arange(3)[:, None], torch.arange(5) * 1000)
    for row, key in enumerate(keys):
        for first in range(3):
            for second in range(5):
                assert got[row, first, second].item() == splitmix_chain(key, first, second * 1000)


def test_every_part_of_a_name_makes_another_stream():
    names = [(0, "a", 0, "tokens"), (1, "a", 0, "tokens"), (0, "b", 0, "tokens"), (0, "a", 1, "tokens")]
    names += [(0, "a", 0, "eviction"), (0, "a\x1f0", 0, "tokens"), (10, "", 0, "tokens"), (1, "0", 0, "tokens")]
    assert len({stream_key(*name) for name in names}) == len(names)


def test_uniform_numbers_are_uniform_independent_and_never_0_or_1():
    numbers = uniform(
        torch.tensor([stream_key(0, "p", 0, "tokens")])[:, None], torch.arange(2), torch.arange(500_000)[:, None]
    )
    assert numbers.min() > 0.0 and numbers.max() < 1.0
    counts = torch.histc(numbers, bins=100, min=0.0, max=1.0)
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum().item()
    assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)
    assert abs(torch.corrcoef(numbers.T)[0, 1].item()) < 5 / math.sqrt(500_000)


def test_noise_has_the_moments_of_its_distribution():
    numbers = uniform(torch.tensor([3]), torch.arange(1_000_000))
    extreme, bell = gumbel(numbers).double(), normal(numbers).double()
    assert abs(extreme.mean().item() - 0.5772157) < 5e-3
    assert abs(extreme.var().item() - math.pi**2 / 6) < 2e-2
    assert abs(bell.mean().item()) < 5e-3
    assert abs(bell.var().item() - 1.0) < 1e-2


def test_noise_of_an_item_does_not_depend_on_the_batch_it_is_in():
    keys, layers = torch.tensor([11, 12, 13]), torch.tensor([0, 5, 5])
    counters = torch.arange(7)[None, None]
    together = SequenceNoise(keys, layers).gumbel(torch.tensor([100, 200, 300])[:, None, None], counters)
    alone = SequenceNoise(keys[1:2], layers[1:2]).gumbel(torch.tensor([200])[:, None, None], counters)
    assert torch.equal(together[1:2], alone)
    assert not torch.equal(together[1], together[2])
