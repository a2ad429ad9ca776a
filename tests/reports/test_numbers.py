"""Numbers as people read them."""

import math

import pytest

from vase_cli.reports.numbers import short, tick


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (math.nan, "-"),
        (0, "0"),
        (0.4, "0.40"),
        (1.94, "1.9"),
        (12.3, "12"),
        (4321, "4,321"),
        (1e7, "1e7"),
        (2.5e-6, "2.5e-6"),
        (-0.25, "-0.25"),
    ],
)
def test_short_numbers(value: float | None, text: str):
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-4, "1e-4"),
        (0.001, "0.001"),
        (0.5, "0.5"),
        (1.0, "1"),
        (5000.0, "5,000"),
        (1e5, "1e5"),
        (42, "42"),
    ],
)
def test_ticks_are_as_short_as_they_get(value: float, text: str):
    assert tick(value) == text
