"""Texts and right answers of any content: every grader decides, or says in one line why it cannot."""

import pytest
from helpers.mutations import CHARACTERS, TEXTS, one_line
from hypothesis import given
from hypothesis import strategies as st

from vase_cli import plugins
from vase_cli.graders import math
from vase_cli.graders.base import Grade, Grader

FRAGMENTS = [
    "1", "2", "12", "0.5", "1,234", "1e5", "-3", "−3", "x", "y", "A", "(B)", "True", "yes", "\\frac", "\\frac12",
    "\\frac{1}{2}", "\\dfrac{a}{b}", "\\sqrt", "\\sqrt[3]{2}", "\\pi", "\\infty", "\\text{", "\\text{cm}",
    "\\mathrm{ m}", "\\left(", "\\right)", "\\left", "\\right.", "\\{", "\\}", "\\begin{pmatrix}", "\\end{pmatrix}",
    "&", "\\\\", "\\cup", "\\in", "\\le", "<", "\\equiv", "\\pmod{7}", "mod", "^", "^{", "^\\circ", "_", "_8", "_{10}",
    "%", "\\%", "$", "$$", "\\(", "\\)", "\\[", "\\]", "[", "]", "(", ")", "{", "}", "|", ",", ";", ":", "=", "\\neq",
    "+", "-", "\\pm", "*", "/", "\\cdot", "\\times", "!", "'", ".", "..", "\\,", "\\ ", " ", "\n", "~", "\\quad",
    "and", " or ", "\\boxed{", "\\boxed", "\\fbox{7}", "<think>", "</think>", "The answer is ", "answer:",
    "**Answer:**", "#### ", "\\log_2", "\\sin", "\\binom{5}{2}", "\\ldots", "\\overline{3}", "\\operatorname{x}",
    "\\\\x", "\\",
]  # fmt: skip
ANSWERS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map(" ".join),
    st.text(CHARACTERS, max_size=20),
    st.sampled_from([text for text in TEXTS if len(text) < 1000]),
    st.builds(lambda part, times: part * times, st.sampled_from(FRAGMENTS), st.sampled_from([2, 50, 300, 1000, 3000])),
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
)
COMPLETIONS = st.one_of(
    ANSWERS,
    ANSWERS.map(lambda answer: f"So it is \\boxed{{{answer}}}."),
    st.builds(lambda *parts: "".join(parts), ANSWERS, st.sampled_from(["</think>", "The answer is "]), ANSWERS),
)


class _NoAlgebra:
    """Stands for the worker process, whose algebra may take its whole time limit."""

    def __init__(self, module: str) -> None:
        pass

    def ask(self, request: dict[str, object], timeout_s: float) -> dict[str, object]:
        return {"equal": len(str(request["target"])) == len(str(request["prediction"]))}

    def alive(self) -> bool:
        return True

    def kill(self) -> None:
        pass


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Grader]:
    monkeypatch.setattr(math, "Worker", _NoAlgebra)
    return {name: plugins.make("graders", name) for name in plugins.names("graders")}


@pytest.mark.parametrize("name", plugins.names("graders"))
def test_any_text_is_graded(graders: dict[str, Grader], name: str) -> None:
    grader = graders[name]

    @given(gold=ANSWERS, text=COMPLETIONS, thought_open=st.booleans(), data=st.data())
    def check(gold: str, text: str, thought_open: bool, data: st.DataObject) -> None:
        fallbacks = data.draw(st.permutations(grader.fallbacks_known)) if data.draw(st.booleans()) else ()
        one_line(lambda: grader.parse_gold(gold))
        for grade in grader.grade_both(gold, text, thought_open=thought_open, fallbacks=fallbacks):
            assert isinstance(grade, Grade) and len(grade.detail.splitlines()) <= 1
            assert (grade.extracted is not None) == bool(grade.rule)
            if grade.status in ("correct", "wrong"):
                assert grade.extracted is not None

    check()


@pytest.mark.parametrize("name", plugins.names("graders"))
def test_a_right_answer_is_right_in_a_box(graders: dict[str, Grader], name: str) -> None:
    grader = graders[name]

    @given(gold=st.integers(0, 999).map(str) if name != "choice" else st.sampled_from("ABCD"), before=ANSWERS)
    def check(gold: str, before: str) -> None:
        before = before.replace("<think>", "")
        assert grader.grade(gold, f"{before}\n\n\\boxed{{{gold}}}").status == "correct"

    check()
