"""Exact small cases, and enumeration where a formula could be wrong."""

import itertools
import math

import pytest

from vase_cli.evaluation.accuracy import mean_score, paired_difference, pass_at_k


def test_accuracy_weighs_problems_not_samples() -> None:
    # Three wrong samples of one problem weigh as much as one right sample of another.
    accuracy, standard_error = mean_score([[1.0], [0.0, 0.0, 0.0]])
    assert accuracy == 0.5
    # Values 1 and 0: variance with n - 1 is 1/2, over n = 2 is 1/4.
    assert standard_error == pytest.approx(0.5)


def test_standard_error_of_four_problems_by_hand() -> None:
    accuracy, standard_error = mean_score([[1, 1], [1, 0], [0, 0], [1, 0]])
    assert accuracy == 0.5
    # Deviations 1/2, 0, -1/2, 0: variance (1/4 + 1/4) / 3, over 4 problems.
    assert standard_error == pytest.approx(math.sqrt(0.5 / 3 / 4))


def test_one_problem_has_no_standard_error_and_none_has_no_accuracy() -> None:
    assert mean_score([[1, 0, 0, 0]]) == (0.25, None)
    assert mean_score([]) == (None, None)


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(samples: int) -> None:
    for correct, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        scores = [1] * correct + [0] * (samples - correct)
        subsets = [any(subset) for subset in itertools.combinations(scores, k)]
        assert pass_at_k(samples, correct, k) == pytest.approx(sum(subsets) / len(subsets), abs=1e-15)


def test_pass_at_k_stays_exact_for_many_samples() -> None:
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert pass_at_k(2000, 1000, 1000) == 1.0
    assert pass_at_k(16, 0, 16) == 0.0


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_outside_its_range_is_an_error(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(samples, correct, k)


def test_paired_difference_uses_shared_problems_only() -> None:
    a = {"1": [1, 1], "2": [1, 0], "3": [1], "only a": [0]}
    b = {"1": [0, 0], "2": [1, 0], "3": [1], "only b": [1]}
    difference, standard_error = paired_difference(a, b)
    # Differences 1, 0, 0: mean 1/3, variance with n - 1 is 1/3, over 3 problems 1/9.
    assert difference == pytest.approx(1 / 3)
    assert standard_error == pytest.approx(1 / 3)


def test_a_constant_difference_has_no_error_however_hard_the_problems() -> None:
    a = {str(n): [n / 10] for n in range(5)}
    b = {str(n): [n / 10 + 0.5] for n in range(5)}
    difference, standard_error = paired_difference(a, b)
    assert difference == pytest.approx(-0.5)
    assert standard_error == pytest.approx(0, abs=1e-12)


def test_runs_without_shared_problems_have_no_difference() -> None:
    assert paired_difference({"1": [1]}, {"2": [1]}) == (None, None)
