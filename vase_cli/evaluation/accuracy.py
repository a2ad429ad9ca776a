"""Figures over samples: accuracy with its standard error, pass@k, and the difference of two runs.

A score is 1 for a correct sample and 0 for any other; problems are the unit over which errors are taken,
as the samples of one problem are not independent.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean over problems and its standard error: the sample standard deviation (n - 1) over sqrt(n).

    Both are fractions of 1; None without problems, and the error for fewer than two.
    """

    mean: float | None = None
    standard_error: float | None = None


def mean_score(problems: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the mean score from those of each problem's samples, of which each has at least one."""
    means = [statistics.fmean(scores) for scores in problems]
    if not means:
        return Estimate()
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Estimate(statistics.fmean(means), error)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k samples, drawn from these without replacement, is correct.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. 2021 (arXiv 2107.03374), in whole numbers;
    ValueError unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples: {correct=}, {samples=}, {k=}")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - correct, k)) / draws


def paired_difference(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> Estimate:
    """Compare two runs, a - b, problem by problem, which removes how hard the problems are from the error.

    Each run maps problem ids to the scores of their samples; problems that only one run has are left out.
    """
    shared = sorted(a.keys() & b.keys())
    return mean_score([[statistics.fmean(a[problem]) - statistics.fmean(b[problem])] for problem in shared])
