"""The worker processes of the math grader: bounded, replaced, and gone when they should be."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from helpers.graders_cases import box

from vase_cli.errors import RunError
from vase_cli.graders.math import MathGrader

TOWER = box("9^{9^{9^9}}")
HARD = box("a+b")  # equal to b+a, which needs a worker

Pids = Callable[[], list[int]]


@pytest.fixture
def grader() -> Iterator[MathGrader]:
    with MathGrader(timeout_s=60) as made:
        yield made


@pytest.fixture
def pids() -> Pids:
    """The processes that this one has started since, and that live."""
    this = psutil.Process()
    before = {child.pid for child in this.children()}
    return lambda: [child.pid for child in this.children() if child.pid not in before and exists(child.pid)]


def exists(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for counts as gone only if it is not ours."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_no_worker_starts_before_it_is_needed(grader: MathGrader, pids: Pids) -> None:
    assert grader.grade("1234", box("1,234")).status == "correct"
    assert grader.grade("5", box("6")).status == "wrong"
    assert pids() == []
    assert grader.grade("b+a", HARD).status == "correct"
    assert len(pids()) == 1


def test_a_timeout_is_an_error_in_bounded_time_and_the_next_answer_is_graded(grader: MathGrader, pids: Pids) -> None:
    grader.grade("b+a", HARD)
    (first,) = pids()
    grader.timeout_s = 1
    start = time.monotonic()
    grade = grader.grade("5", TOWER)
    assert time.monotonic() - start < 4
    assert (grade.status, grade.extracted, grade.rule, grade.detail) == (
        "error", "9^{9^{9^9}}", "boxed", "timed out after 1 s",
    )  # fmt: skip
    assert not exists(first)
    grader.timeout_s = 60
    assert grader.grade("b+a", HARD).status == "correct"


def test_an_idle_worker_that_was_killed_is_replaced(grader: MathGrader, pids: Pids) -> None:
    grader.grade("b+a", HARD)
    (first,) = pids()
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: not exists(first), 5)
    assert grader.grade("b+a", HARD).status == "correct"
    (second,) = pids()
    assert second != first


def test_a_worker_killed_at_work_is_an_error_and_is_replaced(pids: Pids) -> None:
    with MathGrader(timeout_s=30) as grader:
        grader.grade("b+a", HARD)
        (first,) = pids()
        killer = threading.Timer(0.5, os.kill, (first, signal.SIGKILL))
        killer.start()
        grade = grader.grade("5", TOWER)
        killer.join()
        assert (grade.status, grade.detail) == ("error", "the worker process died")
        assert grader.grade("b+a", HARD).status == "correct"


def test_close_leaves_no_process_and_the_grader_can_be_used_again(grader: MathGrader, pids: Pids) -> None:
    for _ in range(2):
        assert grader.grade("b+a", HARD).status == "correct"
        (pid,) = pids()
        grader.close()
        assert not exists(pid)
        assert pids() == []


def test_a_forgotten_grader_leaves_no_process(pids: Pids) -> None:
    grader = MathGrader()
    grader.grade("b+a", HARD)
    (pid,) = pids()
    del grader
    gc.collect()
    assert not exists(pid)


def test_threads_grade_at_the_same_time(grader: MathGrader, pids: Pids) -> None:
    answers = [("b+a", HARD, "correct"), ("b-a", HARD, "wrong")] * 20
    with ThreadPoolExecutor(3) as threads:
        grades = list(threads.map(lambda row: grader.grade(row[0], row[1]).status, answers))
    assert grades == [status for _, _, status in answers]
    assert 1 <= len(pids()) <= 3


def test_files_of_the_working_folder_are_not_imported(
    grader: MathGrader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sympy", "random", "json"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    assert grader.grade("b+a", HARD).status == "correct"


def test_an_interrupt_does_not_end_a_worker(grader: MathGrader, pids: Pids) -> None:
    grader.grade("b+a", HARD)
    (pid,) = pids()
    assert os.getpgid(pid) != os.getpgrp()
    os.kill(pid, signal.SIGINT)
    assert grader.grade("b+a", HARD).status == "correct"
    assert pids() == [pid]


@pytest.mark.parametrize(
    ("verdict", "grade"),
    [
        ("print('noise') or True", ("correct", "")),
        ("bool(bytearray(5 * 2**30))", ("error", "out of memory (the limit is 4 GiB)")),
        ("1 / 0", ("error", "ZeroDivisionError: division by zero")),
    ],
)
def test_what_the_library_does_to_the_worker_is_contained(
    grader: MathGrader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, grade: tuple[str, str]
) -> None:
    (tmp_path / "math_verify.py").write_text(
        "LatexExtractionConfig = lambda **options: None\n"
        "parse = lambda text, *config, **options: [text]\n"
        f"verify = lambda gold, answer, **options: gold == ['$x+1$'] or ({verdict})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    graded = grader.grade("b+a", HARD)
    assert (graded.status, graded.detail) == grade


def test_a_worker_that_cannot_start_is_one_line(
    grader: MathGrader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no antlr\\nhere')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunError, match=r"^the math grader's worker did not start: ImportError: no antlr here; [^\n]+$"):
        grader.grade("b+a", HARD)


def script(body: str) -> subprocess.Popen[str]:
    """A program without a main guard, in its own process group."""
    head = "import os, signal, threading, time\nimport psutil\nfrom vase_cli.graders.math import MathGrader\n"
    head += "grader = MathGrader(timeout_s=2)\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


PIDS = "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
GRADE = f"print(grader.grade('b+a', {HARD!r}).status, flush=True)\n{PIDS}"


def test_it_works_beside_torch_in_a_program_without_a_main_guard() -> None:
    with script("import torch\ntorch.ones(3) @ torch.ones(3)\n" + GRADE) as program:
        output, errors = program.communicate(timeout=120)
    status, pid = output.split()
    assert (status, errors) == ("correct", "")
    assert not exists(int(pid))


@pytest.mark.parametrize("at_work", [False, True])
def test_the_death_of_the_caller_ends_its_workers(at_work: bool) -> None:
    busy = f"threading.Thread(target=grader.grade, args=('5', {TOWER!r})).start(); time.sleep(0.5)\n" if at_work else ""
    with script(GRADE + busy + "os.kill(os.getpid(), signal.SIGKILL)") as program:
        output, _ = program.communicate(timeout=120)
    pid = int(output.split()[1])
    # At work its own alarm ends it: 2 s for the comparison and 2 s of grace.
    ended = wait_until(lambda: not exists(pid), 6)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended


def test_ctrl_c_interrupts_the_caller_and_spares_the_grader() -> None:
    interrupted = (
        "grader.timeout_s = 60\n"
        "print('busy', flush=True)\n"
        f"try: grader.grade('5', {TOWER!r})\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "print(len(psutil.Process().children()), flush=True)\n"
    )
    with script(GRADE + interrupted + GRADE) as program:
        assert program.stdout is not None
        lines = [program.stdout.readline().strip() for _ in range(3)]
        assert lines[::2] == ["correct", "busy"]
        time.sleep(0.5)
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate(timeout=60)
    message, workers, status, pid = output.split()
    assert (message, workers, status, errors) == ("interrupted", "0", "correct", "")
    assert not exists(int(lines[1])) and not exists(int(pid))
