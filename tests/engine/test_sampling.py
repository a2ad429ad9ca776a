import math

import pytest
import torch
from helpers.logits import LOGITS, exact

from vase_cli.config.schema import SamplingParams
from vase_cli.engine.sampling import sample as sample_with
from vase_cli.kernels.ops import TorchOps
from vase_cli.randomness import gumbel, uniform


def sample(
    logits: torch.Tensor, params: SamplingParams, keys: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return sample_with(logits, params, keys, positions, TorchOps())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=0.8, top_p=0.7),
        SamplingParams(temperature=0.8, top_p=0.95, top_k=4),
        SamplingParams(temperature=1.5, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.3),
        SamplingParams(temperature=1.0, top_p=0.01),
        SamplingParams(temperature=1.0, top_k=100),
    ],
    ids=str,
)
def test_frequencies_are_the_exact_probabilities(params: SamplingParams):
    draws = 40_000
    tokens, finite = sample(LOGITS.expand(draws, -1), params, torch.full((draws,), 5), torch.arange(draws))
    assert finite.all()
    observed = torch.bincount(tokens, minlength=len(LOGITS)) / draws
    for share, probability in zip(observed.tolist(), exact(params), strict=True):
        assert abs(share - probability) < 5 * math.sqrt(max(probability * (1 - probability), 1e-12) / draws)


def test_a_filter_that_is_off_drops_no_rare_token():
    """Token 4 has a probability of 1e-8, and at this place the noise for which it is drawn."""
    key, position = torch.tensor([7]), torch.tensor([18_860_078])
    noise = gumbel(uniform(key[:, None], position[:, None], torch.arange(8)))[0]
    logits = torch.full((1, 8), -40.0)
    logits[0, 0], logits[0, 4] = noise[4] - noise[0] - 0.01, 0.0
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=7)):
        assert sample(logits, params, key, position)[0].tolist() == [4]


def test_greedy_takes_the_largest_and_the_lower_id_of_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, -1.0]])
    tokens, _ = sample(logits, SamplingParams(), torch.zeros(2).long(), torch.zeros(2).long())
    assert tokens.tolist() == [1, 0]


def test_a_row_does_not_depend_on_the_others():
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(1))
    keys, positions = torch.arange(6), torch.arange(6) * 10
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=0.6, top_k=20, top_p=0.95)):
        together, _ = sample(logits, params, keys, positions)
        alone = [
            sample(logits[row : row + 1], params, keys[row : row + 1], positions[row : row + 1])[0] for row in range(6)
        ]
        assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.6, top_k=20, top_p=0.95)],
    ids=str,
)
def test_a_row_that_is_not_finite_is_named_and_disturbs_no_other(params: SamplingParams):
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(2))
    keys, positions = torch.arange(6), torch.arange(6) * 10
    clean, _ = sample(logits, params, keys, positions)
    logits[1, 0], logits[2, 499], logits[3, 7] = torch.nan, torch.inf, -torch.inf
    logits[4] = torch.nan
    tokens, finite = sample(logits, params, keys, positions)
    assert tokens.dtype == torch.int64 and finite.dtype == torch.bool
    assert finite.tolist() == [True, False, False, False, False, True]
    assert torch.equal(tokens[finite], clean[finite])
    assert tokens.min() >= 0 and tokens.max() < 500


def test_a_large_vocabulary_keeps_its_rare_tokens():
    """A tail of 100,000 tokens that together hold half the mass is drawn half the time."""
    logits = torch.zeros(100_001)
    logits[0] = math.log(100_000)
    draws = 400
    tokens, _ = sample(
        logits.expand(draws, -1), SamplingParams(temperature=1.0), torch.full((draws,), 9), torch.arange(draws)
    )
    assert abs((tokens == 0).float().mean().item() - 0.5) < 5 * math.sqrt(0.25 / draws)
    assert tokens[tokens != 0].unique().numel() > 0.9 * (tokens != 0).sum().item()
