"""Evaluations that are killed, interrupted, or meet another on their folder: processes of their own."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_examples import clean_environment, only_run, problem_rows, read_jsonl, read_samples, write_rows

from vase_cli.runs.schema import SampleText, described

SAMPLES = 60

# Importing torch and transformers takes seconds: each command is a fork of one process that has done it.
STARTER = """
import json, os, sys
import vase_cli.cli.progress, vase_cli.evaluation.evaluate
from transformers.models.qwen3 import modeling_qwen3
from vase_cli.cli.app import main
for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, int):
        print(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]), flush=True)
        continue
    child = os.fork()
    if child == 0:
        for descriptor, path in enumerate((os.devnull, "out.txt", "err.txt")):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
        main(request)
    print(child, flush=True)
"""


# Slower than the model, so that texts wait for their grades.
SLOW = """
import time
from vase_cli.graders.number import NumberGrader
class Slow(NumberGrader):
    name = "slow"
    def grade_both(self, *args, **options):
        time.sleep(0.1)
        return super().grade_both(*args, **options)
class Stuck(NumberGrader):
    name = "stuck"
    def grade_both(self, *args, **options):
        time.sleep(1000)
"""


class Starter:
    """Starts ``vase`` processes in the working folder."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**clean_environment(Path.cwd()), "PYTHONPATH": str(Path.cwd())},
        )

    def start(self, *arguments: object) -> int:
        """The process id of a command that runs now."""
        return self._ask([str(argument) for argument in arguments])

    def wait(self, pid: int) -> tuple[int, str, str]:
        """Exit code (negative for a signal), stdout and stderr of the command started last."""
        return self._ask(pid), Path("out.txt").read_text(), Path("err.txt").read_text()

    def _ask(self, request: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the starter."""
        self._process.communicate()


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("kills"))
        write_rows(Path("mine.jsonl"), problem_rows(SAMPLES // 4))
        package = Path("slow-1.0.dist-info")
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text("[vase.graders]\nslow = slow:Slow\nstuck = slow:Stuck\n")
        Path("slow.py").write_text(SLOW)
        started = Starter()
        yield started
        started.close()


@pytest.fixture(scope="module")
def evaluation(model_folder: Callable[..., Path]) -> tuple[object, ...]:
    """Ragged prompts, several samples, a small budget, temperature 1."""
    return (
        "eval", "mine.jsonl", "--grader", "number", "--model", model_folder("qwen3"), "--method", "vase-attnv",
        "--budget", "16", "--window", "4", "-o", "n_large=4", "--temperature", "1", "--top-p", "1", "--samples", "4",
        "--max-new-tokens", "40", "--slots", "3",
    )  # fmt: skip


def stored(out: str, file: str = "completions.jsonl") -> list[bytes]:
    """The whole lines of the only run's file."""
    for path in Path(out).glob(f"*/{file}"):
        return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return []


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, Path("err.txt").read_text()
        time.sleep(0.002)


def without_timing(out: str) -> list[dict[str, Any]]:
    timing = {key["name"] for key in described(SampleText) if key["timing"]}
    records = read_samples(only_run(Path(out)))
    assert timing and len(records) == SAMPLES
    return sorted(
        ({name: value for name, value in record.items() if name not in timing} for record in records),
        key=lambda record: record["id"],
    )


@pytest.fixture(scope="module")
def undisturbed(starter: Starter, evaluation: tuple[object, ...]) -> list[dict[str, Any]]:
    """The records of a run that nothing happened to."""
    code, _, err = starter.wait(starter.start(*evaluation, "--out", "undisturbed"))
    assert code == 0, err
    return without_timing("undisturbed")


def test_a_run_killed_ten_times_ends_as_one_never_killed(
    starter: Starter, evaluation: tuple[object, ...], undisturbed: list[dict[str, Any]]
) -> None:
    rng = random.Random(7)
    held = [0]
    for _ in range(10):
        pid = starter.start(*evaluation, "--out", "killed")
        if rng.random() < 0.8:  # between or in the writing of samples; else while it starts
            wait_until(lambda: len(stored("killed")) > held[-1])
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(pid, signal.SIGKILL)
        code, out, _ = starter.wait(pid)
        assert (code, out) == (-signal.SIGKILL, ""), "it had ended before it was killed: make the run longer"
        held.append(len(stored("killed")))
    assert held == sorted(held) and len(set(held)) > 5 and held[-1] < SAMPLES
    code, out, err = starter.wait(starter.start(*evaluation, "--out", "killed"))
    assert code == 0, err
    assert f"mine: {held[-1]} of {SAMPLES} samples are stored already" in err
    assert without_timing("killed") == undisturbed
    assert sum(record["cuts"] for record in undisturbed) > SAMPLES
    folder = only_run(Path("killed"))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] and summary["samples"] == SAMPLES
    assert not list(folder.glob("*.tmp"))


def test_a_second_process_is_refused_while_the_first_runs(
    starter: Starter, evaluation: tuple[object, ...], undisturbed: list[dict[str, Any]]
) -> None:
    first = starter.start(*evaluation, "--out", "shared")
    wait_until(lambda: len(stored("shared")) > 0)
    os.kill(first, signal.SIGSTOP)  # it holds the folder, and cannot end before the second has tried
    try:
        assert 0 < len(stored("shared")) < SAMPLES
        code, out, err = starter.wait(starter.start(*evaluation, "--out", "shared"))
    finally:
        os.kill(first, signal.SIGCONT)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert f"is in use by process {first} on " in line
    assert starter.wait(first)[0] == 0
    assert without_timing("shared") == undisturbed


@pytest.mark.parametrize(
    ("number", "exit_code", "last"),
    [
        (signal.SIGINT, 130, "vase: interrupted"),
        (signal.SIGTERM, 143, "vase: stopped by SIGTERM"),
        (signal.SIGHUP, 129, "vase: stopped by SIGHUP"),
    ],
)
def test_a_signal_stores_what_is_finished_and_the_same_command_goes_on(
    starter: Starter,
    evaluation: tuple[object, ...],
    undisturbed: list[dict[str, Any]],
    number: signal.Signals,
    exit_code: int,
    last: str,
) -> None:
    out_folder = f"stopped-{number.name}"
    pid = starter.start(*evaluation, "--out", out_folder)
    wait_until(lambda: len(stored(out_folder)) > 4)
    os.kill(pid, number)
    code, out, err = starter.wait(pid)
    assert (code, out) == (exit_code, "")
    assert "Traceback" not in err
    held = len(stored(out_folder))
    assert 4 < held < SAMPLES
    assert err.splitlines()[-2:] == [
        f"stopped at {held} of {SAMPLES} samples of mine, all stored; the same command goes on from there",
        last,
    ]
    folder = only_run(Path(out_folder))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["complete"], summary["samples"], summary["planned_samples"]) == (False, held, SAMPLES)
    assert [session["closed"] for session in read_jsonl(folder / "sessions.jsonl")] == [True]
    code, _, err = starter.wait(starter.start(*evaluation, "--out", out_folder))
    assert code == 0 and f"mine: {held} of {SAMPLES} samples are stored already" in err
    assert without_timing(out_folder) == undisturbed


def with_grader(evaluation: tuple[object, ...], name: str) -> tuple[object, ...]:
    return tuple(name if argument == "number" else argument for argument in evaluation)


def test_texts_that_wait_for_their_grades_survive_kills(
    starter: Starter, evaluation: tuple[object, ...], undisturbed: list[dict[str, Any]]
) -> None:
    command = (*with_grader(evaluation, "slow"), "--out", "graded-late")
    waiting = []
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        pid = starter.start(*command)
        held = len(stored("graded-late", "grades.jsonl"))
        wait_until(lambda held=held: len(stored("graded-late", "grades.jsonl")) > held + 1)  # type: ignore[misc]
        os.kill(pid, number)
        assert starter.wait(pid)[0] in (-number, 128 + number)
        waiting.append(len(stored("graded-late")) - len(stored("graded-late", "grades.jsonl")))
    assert max(waiting) > 0, waiting
    code, _, err = starter.wait(starter.start(*command))
    assert code == 0, err
    assert without_timing("graded-late") == undisturbed
    assert json.loads((only_run(Path("graded-late")) / "summary.json").read_text())["complete"]


def test_ctrl_c_does_not_wait_for_a_grader(starter: Starter, evaluation: tuple[object, ...]) -> None:
    pid = starter.start(*with_grader(evaluation, "stuck"), "--out", "stuck")
    wait_until(lambda: len(stored("stuck")) == SAMPLES)
    os.kill(pid, signal.SIGINT)
    interrupted = time.monotonic()
    code, _, err = starter.wait(pid)
    assert time.monotonic() - interrupted < 30  # the grader would sleep for 60 s, its limit
    assert (code, err.splitlines()[-1]) == (130, "vase: interrupted")
    summary = json.loads((only_run(Path("stuck")) / "summary.json").read_text())
    assert (summary["samples"], summary["overall"]["ungraded"], summary["complete"]) == (SAMPLES, SAMPLES, False)
    assert summary["overall"]["accuracy"] is None
