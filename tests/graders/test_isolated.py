"""Graders in processes of their own: what a grader does to itself, it does not do to a run."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.plug_ins import installed_package

from vase_cli.errors import ConfigError
from vase_cli.evaluation.grading import Grading
from vase_cli.graders._isolated import IsolatedGrader
from vase_cli.graders.base import Grade
from vase_cli.runs.schema import SampleGrade

ODD = """
import os, re, sys, time
from vase_cli.errors import ConfigError
from vase_cli.graders.base import Grader

class Odd(Grader):
    name, policies, limit_s = "odd", (), 2.0
    def judge(self, target, prediction):
        print("noise on stdout")
        if prediction == "sleep": time.sleep(1000)
        if prediction == "backtrack": re.match("(a+)+b", "a" * 60)  # in C, where no other thread runs
        if prediction == "exit": os._exit(7)
        if prediction == "raise": raise RuntimeError("boom\\nand more")
        if prediction == "refuse": raise ConfigError("no sandbox here; install one")
        return prediction == target

class Unmade(Odd):
    def __init__(self): raise RuntimeError("boom")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    entry_points = "[vase.graders]\nodd = odd_graders:Odd\nunmade = odd_graders:Unmade\n"
    folder = tmp_path_factory.mktemp("odd")
    with (
        pytest.MonkeyPatch.context() as patch,
        installed_package(folder, patch, "odd_graders", {"odd_graders.py": ODD}, entry_points),
    ):
        yield


@pytest.fixture
def odd(package: None) -> Iterator[IsolatedGrader]:
    grader = IsolatedGrader("odd")
    yield grader
    grader.close()


def graded(grader: IsolatedGrader, answer: str, thought: str = "") -> tuple[Grade, Grade]:
    text = f"{thought}</think>\\boxed{{{answer}}}"
    return grader.grade_both("5", text, thought_open=True, fallbacks=[])


def test_both_verdicts_are_those_of_the_grader_itself(odd: IsolatedGrader) -> None:
    assert graded(odd, "5") == (Grade("correct", "5", "boxed"), Grade("correct", "5", "boxed"))
    strict, published = odd.grade_both("5", "so \\boxed{5}, but", thought_open=True, fallbacks=[])
    assert (strict.status, published) == ("no_answer", Grade("correct", "5", "boxed"))
    strict, published = odd.grade_both("5", "\\boxed{5}</think>it is \\boxed{6}", thought_open=True, fallbacks=[])
    assert (strict.extracted, published.extracted, published.status) == ("6", "6", "wrong")
    strict, published = odd.grade_both("5", "\\boxed{5}</think>so it is", thought_open=True, fallbacks=["last_number"])
    assert (strict.status, published.status) == ("no_answer", "correct")


@pytest.mark.parametrize(
    ("answer", "detail", "limit"),
    [
        ("sleep", "the grader timed out after 2 s", "time"),
        ("backtrack", "the grader timed out after 2 s", "time"),
        ("exit", "the grader's process died", None),
        ("raise", "the grader failed (RuntimeError: boom)", None),
    ],
)
def test_a_grader_that_hangs_dies_or_raises_is_an_error_of_one_text(
    odd: IsolatedGrader, answer: str, detail: str, limit: str | None
) -> None:
    failed = Grade("error", None, "", detail, limit)  # type: ignore[arg-type]
    assert graded(odd, answer) == (failed, failed)
    assert graded(odd, "5")[0].status == "correct"


def test_a_grader_that_cannot_work_here_is_refused(odd: IsolatedGrader) -> None:
    with pytest.raises(ConfigError, match=r"^no sandbox here; install one$"):
        graded(odd, "refuse")
    fault = r"the grader 'unmade' of the package odd-graders fails \(RuntimeError: boom\)"
    with pytest.raises(ConfigError, match=fault):
        graded(IsolatedGrader("unmade"), "5")
    with pytest.raises(ConfigError, match=re.escape("has no fallback 'guess'")):
        odd.grade_both("5", "5", thought_open=False, fallbacks=["guess"])


def test_closing_ends_a_process_that_grades(odd: IsolatedGrader) -> None:
    before = {child.pid for child in psutil.Process().children()}
    threading.Timer(1.0, odd.close).start()
    assert graded(odd, "sleep")[0].status == "error"
    assert {child.pid for child in psutil.Process().children()} <= before


def test_ctrl_c_of_the_terminal_does_not_reach_it(odd: IsolatedGrader) -> None:
    graded(odd, "5")
    (child,) = (child for child in psutil.Process().children() if "_grading_worker" in " ".join(child.cmdline()))
    assert os.getpgid(child.pid) != os.getpgid(0)
    child.send_signal(signal.SIGINT)
    assert graded(odd, "5")[0].status == "correct" and child.is_running()


@pytest.mark.usefixtures("package")
def test_leaving_by_an_exception_waits_for_no_grade() -> None:
    from helpers.run_examples import a_task, a_text

    grades: list[SampleGrade] = []
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Grading(a_task(grader="odd", fallbacks=[]), processes=2) as grading:
        for problem in range(20):
            grading.submit(a_text(problem, text="\\boxed{5}" if problem < 2 else "\\boxed{sleep}"))
        for grade in grading.finished(all_of_them=True):
            grades.append(grade)
            if len(grades) == 2:
                raise KeyboardInterrupt
    assert time.monotonic() - started < 30  # 18 texts of 2 s each are left
    assert [grade.grade for grade in grades] == ["correct"] * 2


def test_files_of_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "json", "sympy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    grader = IsolatedGrader("number")
    assert graded(grader, "5.0")[0].status == "correct"
    grader.close()
