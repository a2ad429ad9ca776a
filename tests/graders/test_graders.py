"""The table of graded answers, each grader's policies, and the contract that every registered grader keeps."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from helpers.graders_cases import ANY, CASES, Case, box

from vase_cli import plugins
from vase_cli.errors import ConfigError, DataError
from vase_cli.graders._extraction import answer_part, last_boxed
from vase_cli.graders.base import Grader

GRADERS = plugins.names("graders")


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Grader]]:
    made = {name: plugins.load("graders", name)() for name in GRADERS}
    yield made
    for grader in made.values():
        grader.close()


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.grader}: {case.gold[:20]} | {case.text[-40:]} | {case.why}"
)
def test_table(graders: dict[str, Grader], case: Case) -> None:
    grade = graders[case.grader].grade(case.gold, case.text, thought_open=case.thought_open, fallbacks=case.fallbacks)
    assert grade.status == case.status, f"{case.why}: {grade}"
    if case.extracted is not ANY:
        assert grade.extracted == case.extracted
    if case.rule is not ANY:
        assert grade.rule == case.rule
    assert (grade.extracted is None) == (grade.status == "no_answer" or not grade.rule)
    assert "\n" not in grade.detail


def test_table_is_large_and_has_no_case_twice() -> None:
    assert len({(case.grader, case.gold, case.text, case.thought_open, case.fallbacks) for case in CASES}) == len(CASES)
    assert len(CASES) >= 120
    assert {case.grader for case in CASES} == {"choice", "integer", "math", "number"}


# For each policy, in the order the grader states them: a gold answer, what agrees with it, what does not.
BOX = ("7", r"5} or \boxed{7} or \boxed{", r"7} or \boxed{5")
POLICIES = {
    "math": [
        BOX,
        ("50", r"50\%", "0.5"),
        (r"90^\circ", "90", r"\frac{\pi}{2}"),
        ("52_8", "52", "52_9"),
        ("1234", "1,234", "1, 234"),
        ("3/2", r"1\frac12", r"\frac12"),
        ("2/3", "0.666667", "0.66667"),
        ("1, 1, 2", "2, 1, 1", "1, 2"),
        ("(3, 5)", "3, 5", "5, 3"),
        ("x = 5", "5", "y = 5"),
        (r"(2, \infty)", "x > 2", r"x \ge 2"),
        (r"\text{No Solution}", "no solution.", r"\text{all}"),
        (r"3 \pmod 7", "3", r"3 \pmod 5"),
    ],
    "integer": [
        BOX,
        ("033", "33", "330"),
        ("33", "66/2", "30 + 3"),
        ("33", "m + n = 33", "33 = m + n"),
        ("33", r"33^\circ", r"33\%"),
    ],
    "number": [
        BOX,
        ("18", "1.8e1", "18.01"),
        ("1800", r"\$1,800 per month", "1800 or 1900"),
        ("18", "10 + 8 = 18", "10 + 8"),
        ("1.5", r"1\frac12", "0.5"),
        ("0.5", r"50\%", "50"),
    ],
    "choice": [
        ("B", r"A} or \boxed{B} or \boxed{", r"B} or \boxed{A"),
        ("B", "b) the heavier one", "c) the heavier one"),
        ("B", "B", "the heavier one"),
    ],
}  # fmt: skip
UNDECIDED = "A comparison that takes too long"  # held by the tests of the worker processes


def test_every_policy_is_held(graders: dict[str, Grader]) -> None:
    for name, rows in POLICIES.items():
        policies = [policy for policy in graders[name].policies if not policy.startswith(UNDECIDED)]
        for policy, (gold, right, wrong) in zip(policies, rows, strict=True):
            assert graders[name].grade(gold, box(right)).status == "correct", f"{name}: {policy}: {right}"
            assert graders[name].grade(gold, box(wrong)).status == "wrong", f"{name}: {policy}: {wrong}"


@pytest.mark.parametrize("name", GRADERS)
def test_contract(graders: dict[str, Grader], name: str) -> None:
    grader = graders[name]
    assert grader.name == name
    assert grader.policies and all("\n" not in policy and len(policy) <= 120 for policy in grader.policies)
    assert grader.grade("1", "").status in ("no_answer", "error")
    with grader as same:
        assert same is grader
    with pytest.raises(ConfigError, match=rf"the grader '{name}' has no fallback 'lucky_guess'; there are: \w+"):
        grader.grade("1", "", fallbacks=("lucky_guess",))
    with pytest.raises(DataError, match="the gold answer"):
        grader.parse_gold(" ")


def test_a_broken_gold_answer_is_an_error_that_names_it(graders: dict[str, Grader]) -> None:
    assert graders["integer"].grade("1000", box("1000")).detail == (
        "the gold answer '1000' is not an integer from 0 to 999"
    )


def test_a_long_answer_equals_itself_only(graders: dict[str, Grader]) -> None:
    long = "1+" * 2000 + "1"
    assert graders["math"].grade(long, box(long)).status == "correct"
    grade = graders["math"].grade("2001", box(long))
    assert (grade.status, grade.detail) == ("wrong", "longer than 2,000 characters: compared as text only")


@pytest.mark.parametrize(
    ("text", "thought_open", "part"),
    [
        ("plain", False, "plain"),
        ("inside", True, None),
        ("inside</think>out", True, "out"),
        ("<think>inside", False, None),
        ("<think>a</think>b</think>c", False, "c"),
        ("a</think>b<think>c", True, None),
        ("a</think>", True, ""),
    ],
)
def test_answer_part(text: str, thought_open: bool, part: str | None) -> None:
    assert answer_part(text, thought_open) == part


def test_deeply_nested_boxes_take_one_pass() -> None:
    depth = 100_000
    boxed = last_boxed(r"\boxed{" * depth + "5" + "}" * depth)
    assert boxed is not None and boxed.strip("{}") == "5"
    assert last_boxed("\\" * 1_000_000) is None


def test_importing_the_graders_imports_nothing_heavy() -> None:
    program = (
        "import sys; from vase_cli import plugins; [plugins.load('graders', n)() for n in plugins.names('graders')];"
        "print(sorted({'torch', 'transformers', 'math_verify', 'sympy', 'latex2sympy2_extended'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
