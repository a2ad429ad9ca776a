"""Figures over samples: accuracy with its standard error, pass@k, and the difference of two runs.

A score is 1 for a correct sample and 0 for any other; problems are the unit over which errors are taken,
as the samples of one problem are not independent.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class PairedDifference(NamedTuple):
    """Mean of (a - b) over the problems both runs have, and its standard error over those problems."""

    difference: float | None
    standard_error: float | None
    problems: int


def mean_accuracy_and_standard_error(problems: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """Mean over problems of the mean over samples, and its standard error over problems.

    ``problems`` holds for each problem the scores of its samples, at least one. Both figures are fractions of 1, None
    without problems; the error is the sample standard deviation (n - 1) over sqrt(n), None for fewer than two.
    """
    return _mean_and_standard_error([statistics.fmean(scores) for scores in problems])


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k samples, drawn from these without replacement, is correct.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374), in whole numbers;
    ValueError unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples: {correct=}, {samples=}, {k=}")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - correct, k)) / draws


def paired_difference(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> PairedDifference:
    """Compare two runs problem by problem, which removes how hard the problems are from the error.

    Each run maps problem ids to the scores of their samples; problems that only one run has are left out.
    """
    shared = sorted(a.keys() & b.keys())
    differences = [statistics.fmean(a[problem]) - statistics.fmean(b[problem]) for problem in shared]
    return PairedDifference(*_mean_and_standard_error(differences), len(shared))


def _mean_and_standard_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error
