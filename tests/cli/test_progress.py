"""What a person sees on stderr while an evaluation goes on."""

import re
from collections.abc import Sequence

import pytest
from helpers.cli_examples import terminal
from helpers.run_examples import a_sample

from vase_cli.cli import progress
from vase_cli.cli.progress import EvalProgress

GRADES = ["correct", "wrong", "correct", "no_answer"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that progress measures with."""
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def lines(capsys: pytest.CaptureFixture[str]) -> Sequence[str]:
    out, err = capsys.readouterr()
    assert out == ""
    assert not re.search("[\x1b\r]", err)
    return list(err.splitlines())


def test_a_line_now_and_then_where_there_is_no_terminal(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with EvalProgress() as shown:
        shown.note("weights 3 GiB")
        shown.start("gsm8k", 2, 10)
        assert lines(capsys) == ["weights 3 GiB", "gsm8k: 2 of 10 samples are stored already"]
        for second in range(61):
            clock[0] = 100.0 + second
            shown.tokens([()] * 50)
            if second in (3, 5, 7, 9):
                shown.sample(graded := a_sample(grade=GRADES.pop()))
                shown.grade(graded)
        first, second_line = lines(capsys)
    assert first == "gsm8k: 6 of 10 samples, 50% right so far, 50 tokens/s"
    assert second_line.startswith("gsm8k: 6 of 10 samples, 50% right so far, ")
    assert lines(capsys) == []


def test_an_interruption_says_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), EvalProgress() as shown:
        shown.start("gsm8k", 0, 10)
        shown.sample(graded := a_sample(grade="wrong"))
        shown.grade(graded)
        raise KeyboardInterrupt
    assert lines(capsys) == ["stopped at 1 of 10 samples of gsm8k, all stored; the same command goes on from there"]
    with pytest.raises(KeyboardInterrupt), EvalProgress():
        raise KeyboardInterrupt
    assert lines(capsys) == [], "nothing had begun"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with terminal(monkeypatch, "stderr") as written, EvalProgress() as shown:
        shown.note("a note with [brackets]")
        shown.start("gsm8k", 3, 8)
        for grade in ("correct", "wrong"):
            shown.tokens([()] * 5)
            shown.sample(graded := a_sample(grade=grade))
            shown.grade(graded)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written[0])
    assert "a note with [brackets]" in text
    assert "gsm8k: 3 of 8 samples are stored already" in text
    assert re.search(r"gsm8k .*5/8 50% right so far, [\d,]+ tokens/s", text)
    assert capsys.readouterr().out == ""
