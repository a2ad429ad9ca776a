r"""Kinds of spellings: for each, answers that agree with a gold answer, and answers that look like it and do not."""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from helpers.graders_cases import box

from vase_cli import plugins
from vase_cli.graders.base import Grader


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    made = {name: plugins.load("graders", name)() for name in plugins.names("graders")}
    yield made
    for grader in made.values():
        grader.close()


# Each row: a grader, a gold answer, answers that are right, answers that are wrong.
Row = tuple[str, str, tuple[str, ...], tuple[str, ...]]
LARGE_AND_SMALL: list[Row] = [
    ("math", r"\frac{5^{40}-2}{5^{40}}", (r"1-\frac{2}{5^{40}}", r"1-2\cdot 5^{-40}"), (r"\frac{2}{5^{40}}", "1")),
    ("math", r"\frac{25!}{24!}", ("25", r"\frac{5^2\cdot 24!}{24!}"), ("24", r"\frac{26!}{25!}", r"\frac{24!}{25!}")),
    ("math", r"\frac{1}{7^{30}}", ("7^{-30}", r"\frac{7}{7^{31}}"), (r"\frac{1}{7^{29}}", "0", r"-\frac{1}{7^{30}}")),
    ("math", r"\frac{\pi}{2^{80}}", (r"\pi\cdot 2^{-80}",), (r"\frac{\pi}{2^{81}}", "0", r"\frac{3.14159}{2^{80}}")),
    ("math", r"\sqrt{10^{40}+1}", (r"\sqrt{1+10^{40}}",), (r"\sqrt{10^{40}+2}", "10^{20}")),
    ("math", r"\binom{80}{40}", (r"\frac{80!}{40!\cdot 40!}",), (r"\frac{80!}{40!\cdot 40!}+1",)),
    ("math", r"\frac{x}{2^{90}}", (r"x\cdot 2^{-90}",), (r"\frac{x}{2^{91}}", r"\frac{y}{2^{90}}")),
    ("math", r"\begin{pmatrix} 3^{-50} \\ 1 \end{pmatrix}", (), (r"\begin{pmatrix} 3^{-51} \\ 1 \end{pmatrix}",)),
    ("math", "x>2^{-90}", (), ("x>2^{-91}",)),
    ("math", "0", (r"\sqrt{2}\sqrt{3}-\sqrt{6}",), ("e^{-200}", "10^{-300}")),
]
KINDS = {"large and small": LARGE_AND_SMALL}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(graders: dict[str, Grader], kind: str) -> None:
    for grader, gold, right, wrong in KINDS[kind]:
        for answer in right:
            grade = graders[grader].grade(gold, box(answer))
            assert grade.status == "correct", f"{grader}: {gold} is {answer}: {grade}"
        for answer in wrong:
            grade = graders[grader].grade(gold, box(answer))
            assert grade.status == "wrong", f"{grader}: {gold} is not {answer}: {grade}"


def test_rational_values_too_large_to_write_down_are_not_decided(graders: dict[str, Grader]) -> None:
    grade = graders["math"].grade("2^{10^9}", box("2^{10^9}+1"))
    assert (grade.status, grade.detail) == ("error", "OverflowError: the numbers are too large to be compared exactly")


def _spellings(value: Fraction, draw: random.Random) -> list[str]:
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    factor, power, step = draw.randint(2, 9), draw.randint(30, 90), draw.randint(20, 30)
    return [
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        rf"{sign}\frac{{{top * factor}}}{{{bottom * factor}}}\,",
        rf"\frac{{{sign}{top}\cdot {factor}^{{{power}}}}}{{{bottom}\cdot {factor}^{{{power}}}}}",
        rf"{sign}\frac{{{top}\cdot {step}!}}{{{bottom}\cdot {step}!}}",
        rf"\frac{{{sign}{top}-{bottom}\cdot 3^{{{power}}}}}{{{bottom}}}+3^{{{power}}}",
    ]


def test_equal_spellings_are_right_and_unequal_values_never_are(graders: dict[str, Grader]) -> None:
    draw = random.Random(7)
    for _ in range(40):
        value = Fraction(draw.randint(-60, 60) or 1, draw.randint(1, 40))
        other = value + draw.choice([Fraction(1), Fraction(1, 2**70), Fraction(-1, draw.randint(2, 99)), -2 * value])
        gold = draw.choice(_spellings(value, draw))
        for answer in _spellings(value, draw):
            assert graders["math"].grade(gold, box(answer)).status == "correct", (gold, answer)
        for answer in _spellings(other, draw):
            assert graders["math"].grade(gold, box(answer)).status == "wrong", (gold, answer)
