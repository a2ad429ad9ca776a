"""A run folder survives kills, cut lines, full disks and second processes, and never mixes two runs."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.run_examples import a_grade, a_record, a_run, a_sample, a_task, a_text, measured, open_run, store

from vase_cli.errors import ConfigError, DataError, RunError, VaseError
from vase_cli.evaluation.summary import summarize
from vase_cli.runs import files as run_files
from vase_cli.runs.folder import RunFolder, StoredRun, config_hash, run_name
from vase_cli.runs.schema import Run, RunTask, SampleGrade, SampleText, Summary

TESTS = Path(__file__).parents[1]


def lines(folder: RunFolder) -> list[bytes]:
    return (folder.path / "completions.jsonl").read_bytes().splitlines(keepends=True)


def python(code: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]), **variables},
    )


def message(error: "pytest.ExceptionInfo[VaseError]") -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# The config's hash and the folder's name


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_hash_is_the_same_in_every_process(seed: str) -> None:
    config = {"b": 0.1, "a": {"y": [1, 2.5, None], "x": True}, "ü": "€"}
    code = """
        import sys, json
        from vase_cli.runs.folder import config_hash
        print(config_hash(json.loads(sys.argv[1])))
    """
    process = python(code, json.dumps(dict(reversed(config.items()))), PYTHONHASHSEED=seed)
    assert process.communicate(timeout=30)[0].strip() == config_hash(config)


def test_the_hash_stays_as_it_is() -> None:
    # Written down, so that a new version of vase does not orphan the folders of the last.
    assert config_hash({"a": 1, "b": [0.5, "x"]})[:8] == "d9dda6d0"


def test_equal_values_hash_alike_and_others_do_not() -> None:
    assert config_hash({"a": 1, "b": (1, 2)}) == config_hash({"b": [1.0, 2], "a": 1.0})
    different: list[dict[str, Any]] = [{"a": value} for value in (1, True, "1", None, [1], {"1": 1}, 1.5, "é", "e")]
    assert len({config_hash(config) for config in different}) == len(different)


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), ValueError), ({1: 2}, TypeError), (Path("x"), TypeError)])
def test_a_config_that_json_cannot_hold_is_a_bug(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        config_hash({"a": value})


def test_names_are_safe_to_be_a_folder() -> None:
    digits = "1a2b3c4d" + "0" * 56
    assert run_name("qwen3-8b", "vase-attnv", "4x", config_hash=digits) == "qwen3-8b-vase-attnv-4x-1a2b3c4d"
    assert run_name("../my recipe/", "", "模型", config_hash=digits) == "my-recipe-模型-1a2b3c4d"
    assert run_name("..", config_hash=digits) == "run-1a2b3c4d"
    assert len(run_name("模" * 300, config_hash=digits).encode()) < 200


# Making and resuming


def test_run_json_is_there_before_anything_else_is_done(tmp_path: Path) -> None:
    run = a_run()
    with open_run(tmp_path, run) as folder:
        assert json.loads((folder.path / "run.json").read_text()) == run.model_dump()
        assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "run.json"]


def test_a_resumed_run_has_what_was_finished_and_keeps_its_first_run_json(tmp_path: Path) -> None:
    records = [a_text(problem) for problem in range(3)]
    with open_run(tmp_path) as folder:
        for record in records:
            folder.append(record)
    first = (folder.path / "run.json").read_bytes()
    with open_run(tmp_path, a_run(started_at="2027-01-01T00:00:00+00:00")) as folder:
        assert list(folder.samples.values()) == records
        folder.append(a_text(3))
    assert (folder.path / "run.json").read_bytes() == first
    assert list(StoredRun(folder.path).samples) == [f"gsm8k/{n}/0" for n in range(4)]


def test_another_config_is_another_folder(tmp_path: Path) -> None:
    with open_run(tmp_path) as one, open_run(tmp_path, a_run(config={"method": "full"})) as two:
        assert one.path != two.path
        assert two.samples == {}


def test_another_config_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run, other = a_run(), a_run(config={"method": "full"})
    with open_run(tmp_path, run) as folder:
        folder.append(a_text())
    before = lines(folder)
    with pytest.raises(ConfigError) as error:
        RunFolder(folder.path, other)
    assert f"({run.config_hash[:8]}, this one is {other.config_hash[:8]})" in message(error)
    assert lines(folder) == before


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([a_task(problems=4)], "problems 3 of task gsm8k, now it is 4"),
        ([a_task(version=2)], "version 1 of task gsm8k, now it is 2"),
        ([a_task(), a_task("aime24")], "other tasks"),
    ],
)
def test_a_run_whose_problems_changed_is_refused(tmp_path: Path, tasks: list[RunTask], words: str) -> None:
    open_run(tmp_path).close()
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path, a_run(*tasks))
    assert words in message(error)


def test_other_versions_on_resuming_are_said(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    with open_run(tmp_path) as folder:
        assert folder.notes == []
    with open_run(tmp_path, a_run(versions={"python": "3.11.7", "torch": "2.12.0"})) as folder:
        assert folder.notes == ["the run goes on under other conditions than it started: torch 2.11.0 -> 2.12.0"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b'{"format": 1', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"format": 1}', "missing: name, config"),
        (json.dumps(a_run(format=3).model_dump()).encode(), "has format 3; this version of vase reads format 1 and 2"),
        (json.dumps({**a_run().model_dump(), "tasks": [{"name": "gsm8k"}]}).encode(), "missing: tasks.0.version"),
    ],
)
def test_a_broken_run_json_is_one_line_and_stays(tmp_path: Path, content: bytes, words: str) -> None:
    with open_run(tmp_path) as folder:
        path = folder.path / "run.json"
    path.write_bytes(content)
    attempts: list[Callable[[], object]] = [
        lambda: open_run(tmp_path),
        lambda: RunFolder(folder.path),
        lambda: StoredRun(folder.path),
    ]
    for attempt in attempts:
        with pytest.raises(DataError) as error:
            attempt()
        assert str(path) in message(error) and words in message(error)
    assert path.read_bytes() == content


def test_a_sample_of_a_task_that_the_run_lacks_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(id="aime24/0/0", task="aime24"))
    with pytest.raises(
        DataError, match=r"sample aime24/0/0 is of task 'aime24', which run\.json does not name; delete"
    ):
        StoredRun(folder.path)


def test_a_folder_with_completions_but_no_run_json_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
    (folder.path / "run.json").unlink()
    for attempt in (lambda: open_run(tmp_path), lambda: RunFolder(folder.path), lambda: StoredRun(folder.path)):
        with pytest.raises(ConfigError, match=r"no run\.json"):
            attempt()
    with pytest.raises(ConfigError, match="no run folder at"):
        RunFolder(tmp_path / "nothing")


def test_a_symlink_and_an_odd_name_are_the_same_folder(tmp_path: Path) -> None:
    root = tmp_path / "läufe [1] %s\n{x}"
    with open_run(root) as folder:
        folder.append(a_text())
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    with open_run(tmp_path / "link") as folder:
        assert list(folder.samples) == ["gsm8k/0/0"]


def test_run_json_must_be_as_documented(tmp_path: Path) -> None:
    run = a_run().model_dump()
    for wrong in ({**run, "surplus": 1}, {**run, "config_hash": "0" * 64}, {**run, "tasks": [{"name": "gsm8k"}]}):
        with pytest.raises(ValueError, match=r"surplus|config_hash|missing"):
            open_run(tmp_path, Run(**wrong))
    assert not list(tmp_path.iterdir())


# Records


@pytest.mark.parametrize(
    "wrong",
    [
        {key: value for key, value in a_record().items() if key != "gold"},
        a_record(extra=1),
        a_record(finish_reason="eos"),
        a_record(cuts=True),
        a_record(sample="0"),
        a_record(latency_s=float("nan")),
    ],
)
def test_a_sample_that_is_not_as_documented_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        SampleText(**wrong)


def test_what_json_lacks_is_a_bug_and_not_written(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(1))
        with pytest.raises(ValueError, match="JSON compliant"):
            folder.append(a_text(2, metadata={"share": float("nan")}))
        assert len(lines(folder)) == 1


def test_the_same_sample_twice_is_a_bug(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
        with pytest.raises(ValueError, match="stored already"):
            folder.append(a_text())


@pytest.mark.parametrize("text", ["a\u2028b\u0085c\r\nd\x00e\x1f", "half \ud83d of a pair", "🙂" * 50_000])
def test_any_text_is_one_line_and_comes_back(tmp_path: Path, text: str) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(text=text))
        folder.append(a_text(1))
    assert (folder.path / "completions.jsonl").read_bytes().count(b"\n") == 2
    assert StoredRun(folder.path).samples["gsm8k/0/0"].text == text


def test_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
        assert json.loads(lines(folder)[0]) == a_record()
        assert list(StoredRun(folder.path).samples) == ["gsm8k/0/0"]  # a run in use can be read


def test_a_last_line_cut_anywhere_is_dropped_and_said(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
        folder.append(a_text(1))
    path = folder.path / "completions.jsonl"
    first, second = lines(folder)
    assert any(byte > 127 for byte in second)  # some cuts fall inside a character
    for length in range(1, len(second) - 1):
        path.write_bytes(first + second[:length])
        assert StoredRun(folder.path).notes == [f"{path} ended in a cut line ({length} bytes), which is left out"]
        with open_run(tmp_path) as folder:
            assert list(folder.samples) == ["gsm8k/0/0"]
            assert len(folder.notes) == 1
            assert path.read_bytes() == first
            folder.append(a_text(1))
        assert path.read_bytes() == first + second


def test_a_whole_last_line_that_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
    path = folder.path / "completions.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with open_run(tmp_path) as folder:
        assert list(folder.samples) == ["gsm8k/0/0"] and folder.notes == []
        folder.append(a_text(1))
    assert list(StoredRun(folder.path).samples) == ["gsm8k/0/0", "gsm8k/1/0"]


@pytest.mark.parametrize("tail", [b"\x00" * 4096, b"{\n", b"\n", b'"text"', b"\xf0\x9f"])
def test_what_a_power_failure_leaves_at_the_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
    path = folder.path / "completions.jsonl"
    good = path.read_bytes()
    path.write_bytes(good + tail)
    with open_run(tmp_path) as folder:
        assert list(folder.samples) == ["gsm8k/0/0"]
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (b'{"id": "gsm8k/1/0"\n', "not a JSON object"),
        (b"\n", "not a JSON object"),
        (b"\xff\n", "not a JSON object"),
        (b"[1]\n", "not a JSON object"),
        (b'{"id": "gsm8k/1/0"}\n', "missing: task"),
        (json.dumps(a_record(1, finish_reason="maybe")).encode() + b"\n", "finish_reason is 'maybe', not 'stop', "),
    ],
)
def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path, broken: bytes, words: str) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
        folder.append(a_text(2))
    path = folder.path / "completions.jsonl"
    first, last = lines(folder)
    path.write_bytes(first + broken + last)
    for _ in range(2):  # the lock of the failed attempt is free again
        with pytest.raises(DataError) as error:
            open_run(tmp_path)
        assert f"{path}:2: {words}" in message(error)
    assert path.read_bytes() == first + broken + last


def test_of_records_with_the_same_id_the_first_counts(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
    path = folder.path / "completions.jsonl"
    again = json.dumps(a_record(text="another")).encode() + b"\n"
    path.write_bytes(path.read_bytes() + again)
    with open_run(tmp_path) as folder:
        assert folder.samples["gsm8k/0/0"] == a_text()
        assert folder.notes == [f"{path} holds 1 records whose id it has already; the first of each counts"]


# Kills and second processes

APPENDING = """
    import sys
    from pathlib import Path
    from helpers.run_examples import a_text, open_run, measured
    with open_run(Path(sys.argv[1])) as folder:
        print("open", flush=True)
        completed = folder.samples
        for problem in range(1000):
            if f"gsm8k/{problem}/0" not in completed:
                folder.append(a_text(problem, text="ü" * 5000))
                folder.record_session(measured(samples=problem))
"""


def test_killed_at_random_moments_and_resumed_it_ends_as_if_never_killed(tmp_path: Path) -> None:
    numbers = random.Random(3)
    killed = 0
    for _ in range(10):
        process = python(APPENDING, str(tmp_path))
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        time.sleep(numbers.uniform(0, 0.02))
        killed += process.poll() is None
        process.kill()
        process.communicate()
    assert killed >= 3
    process = python(APPENDING, str(tmp_path))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    stored = StoredRun(tmp_path / a_run().name)
    assert list(stored.samples) == [f"gsm8k/{problem}/0" for problem in range(1000)]
    assert all(sample == a_text(n, text="ü" * 5000) for n, sample in enumerate(stored.samples.values()))


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from helpers.run_examples import open_run
        folder = open_run(Path(sys.argv[1]))
        print("open", flush=True)
        time.sleep(60)
    """
    process = python(code, str(tmp_path))
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        path = tmp_path / a_run().name
        for attempt in (lambda: open_run(tmp_path), lambda: RunFolder(path)):
            with pytest.raises(ConfigError) as error:
                attempt()
            assert f"{path} is in use by process {process.pid} on {os.uname().nodename}" in message(error)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    open_run(tmp_path).close()


def test_a_forked_worker_that_outlives_a_killed_run_does_not_hold_the_folder(tmp_path: Path) -> None:
    code = """
        import os, sys, time
        from pathlib import Path
        from helpers.run_examples import open_run
        folder = open_run(Path(sys.argv[1]))
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        print(worker, flush=True)
        time.sleep(60)
    """
    process = python(code, str(tmp_path))
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        time.sleep(0.2)
        with pytest.raises(ConfigError, match="is in use by"):
            open_run(tmp_path)
        process.kill()
        process.wait()
        os.kill(worker, 0)  # it lives
        open_run(tmp_path).close()
    finally:
        os.kill(worker, signal.SIGKILL)
        process.communicate()


def test_a_worker_that_closes_its_copy_does_not_let_the_folder_go(tmp_path: Path) -> None:
    code = """
        import gc, os, sys
        from pathlib import Path
        from helpers.run_examples import a_text, open_run
        folder = open_run(Path(sys.argv[1]))
        worker = os.fork()
        if worker == 0:
            folder.close()
            del folder
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(worker, 0)
        assert status == 0
        folder.append(a_text())
        print("open", flush=True)
        sys.stdin.read()
    """
    process = python(code, str(tmp_path))
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=f"is in use by process {process.pid} "):
            open_run(tmp_path)
    finally:
        process.communicate()
    assert process.returncode == 0


def test_the_folder_is_free_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), open_run(tmp_path) as folder:
        folder.append(a_text())
        raise KeyboardInterrupt
    with open_run(tmp_path) as folder:
        assert list(folder.samples) == ["gsm8k/0/0"]
        folder.close()  # a second close does nothing


# Disks that do not take it


def full_disk(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_run_and_what_was_stored_stays_whole(tmp_path: Path, monkeypatch: Any) -> None:
    real_write = os.write

    def half_then_full(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", full_disk)
        return real_write(descriptor, data[: len(data) // 2])

    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
        before = lines(folder)
        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(RunError) as error:
            folder.append(a_text(1))
        assert "the disk is full; free some space and run again" in message(error)
        assert lines(folder) == before
        monkeypatch.undo()
        assert list(folder.samples) == ["gsm8k/0/0"]
        folder.append(a_text(1))  # space was made
    assert list(StoredRun(folder.path).samples) == ["gsm8k/0/0", "gsm8k/1/0"]


def test_ctrl_c_at_the_end_of_a_write_keeps_the_text_and_in_its_middle_drops_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    real_write = os.write

    def interrupted(descriptor: int, data: bytes, size: int) -> int:
        real_write(descriptor, data[:size])
        raise KeyboardInterrupt

    for size, held in ((10**6, ["gsm8k/0/0"]), (7, [])):
        with open_run(tmp_path / str(size)) as folder:
            monkeypatch.setattr(os, "write", lambda descriptor, data, size=size: interrupted(descriptor, data, size))
            with pytest.raises(KeyboardInterrupt):
                folder.append(a_text())
            monkeypatch.undo()
            assert list(folder.samples) == list(StoredRun(folder.path).samples) == held


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: Any) -> None:
    real_write = os.write
    with open_run(tmp_path) as folder:
        monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:7]))
        folder.append(a_text())
        monkeypatch.undo()
    assert StoredRun(folder.path).samples == {"gsm8k/0/0": a_text()}


def test_a_full_disk_while_a_file_is_replaced_keeps_the_old_one(tmp_path: Path, monkeypatch: Any) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
        summary = summarize(folder.samples.values(), folder.run)
        folder.write_summary(summary)
        monkeypatch.setattr(run_files.os, "fsync", full_disk)
        with pytest.raises(RunError, match="disk is full"):
            folder.write_summary(summary.model_copy(update={"samples": 7}))
        with pytest.raises(RunError, match="disk is full"):
            folder.replace_grades([a_grade(grade="wrong")])
        monkeypatch.undo()
        assert json.loads((folder.path / "summary.json").read_text()) == summary.model_dump()
        assert StoredRun(folder.path).samples == {"gsm8k/0/0": a_text()}
        assert not list(folder.path.glob("*.tmp"))


def test_a_full_disk_on_closing_does_not_hide_why_the_run_ended(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(KeyboardInterrupt), open_run(tmp_path) as folder:
        folder.append(a_text())
        monkeypatch.setattr(os, "fsync", full_disk)
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="disk is full"), open_run(tmp_path) as folder:
        folder.append(a_text(1))
    monkeypatch.undo()
    with open_run(tmp_path) as folder:
        assert len(folder.samples) == 2


def test_no_space_for_run_json_leaves_none(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match="disk is full"):
        open_run(tmp_path)
    monkeypatch.undo()
    with open_run(tmp_path) as folder:
        assert folder.samples == {}


def test_a_root_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path / "file")
    assert "cannot make the run folder" in message(error)


def test_a_read_only_folder_is_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    open_run(tmp_path).close()

    def read_only(path: Any, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ConfigError) as error:
        RunFolder(tmp_path / a_run().name)
    assert message(error).endswith(".lock: Read-only file system")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_one_line(tmp_path: Path, monkeypatch: Any, number: int) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path)
    assert message(error) == f"cannot lock {tmp_path / a_run().name / '.lock'}: {os.strerror(number)}"


def test_whoever_holds_the_folder_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        lock = folder.path / ".lock"
        assert lock.read_text() == f"process {os.getpid()} on {os.uname().nodename}"
        for _ in range(2):  # to be refused changes nothing
            with pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} on "):
                RunFolder(folder.path)
        lock.write_text("")
        with pytest.raises(ConfigError, match="is in use by another process; wait until it ends, or stop it"):
            RunFolder(folder.path)
    assert lock.read_text() == ""


def test_a_folder_deleted_during_the_run_is_noticed(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
        for path in folder.path.iterdir():
            path.unlink()
        with pytest.raises(RunError, match="it was deleted while the run was going on"):
            folder.append(a_text(1))


# Grading again


def test_grading_again_keeps_the_old_grades_and_every_text(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        store(folder, *(a_sample(problem) for problem in range(2)))
    path, texts = folder.path / "grades.jsonl", folder.path / "completions.jsonl"
    with RunFolder(folder.path) as folder:
        store(folder, a_sample(2))
        original, written = path.read_bytes(), texts.read_bytes()
        grades = [a_grade(identifier, grade="wrong") for identifier in reversed(folder.samples)]
        assert folder.replace_grades(grades) == path.with_name("grades.jsonl.1")
        assert [sample.grade for sample in folder.samples.values()] == ["wrong"] * 3
        assert texts.read_bytes() == written
        store(folder, a_sample(3))  # to the new file
    with RunFolder(folder.path) as folder:
        assert list(folder.samples) == [f"gsm8k/{problem}/0" for problem in range(4)]
        second = path.read_bytes()
        grades = [a_grade(identifier, grade="no_answer") for identifier in folder.samples]
        assert folder.replace_grades(grades) == path.with_name("grades.jsonl.2")
    assert path.with_name("grades.jsonl.1").read_bytes() == original
    assert path.with_name("grades.jsonl.2").read_bytes() == second
    assert {sample.grade for sample in StoredRun(folder.path).samples.values()} == {"no_answer"}


def test_grades_that_stay_write_nothing(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        store(folder, a_sample())
        before = (folder.path / "grades.jsonl").read_bytes()
        assert folder.replace_grades([a_grade()]) is None
        assert not list(folder.path.glob("grades.jsonl.*"))
        assert (folder.path / "grades.jsonl").read_bytes() == before


@pytest.mark.parametrize("grades", [[], [a_grade("gsm8k/1/0")], [a_grade(), a_grade("gsm8k/1/0")]])
def test_grading_cannot_drop_or_add_samples(tmp_path: Path, grades: list[SampleGrade]) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(0))
        with pytest.raises(ValueError, match="grades are not those of the stored samples"):
            folder.replace_grades(grades)
        assert list(StoredRun(folder.path).samples) == ["gsm8k/0/0"]


def test_a_text_is_stored_before_its_grade_and_graded_once(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
        assert StoredRun(folder.path).samples == {"gsm8k/0/0": a_text()}
        assert folder.append_grade(a_grade()) == a_sample()
        assert json.loads((folder.path / "grades.jsonl").read_text()) == dict(a_grade())
        with pytest.raises(ValueError, match="sample gsm8k/0/0 is graded already"):
            folder.append_grade(a_grade())
    assert StoredRun(folder.path).samples == {"gsm8k/0/0": a_sample()}


def test_a_cut_grade_is_made_again_and_one_without_its_text_is_dropped(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        store(folder, a_sample(0), a_sample(1), a_sample(2))
    grades, texts = folder.path / "grades.jsonl", folder.path / "completions.jsonl"
    grades.write_bytes(grades.read_bytes()[:-10])
    texts.write_bytes(b"".join(lines(folder)[1:]))  # the first text was lost with the power, its grade was not
    with open_run(tmp_path) as folder:
        assert list(folder.samples.values()) == [a_sample(1), a_text(2)]
        assert f"{grades} ended in a cut line" in folder.notes[0]
        folder.append(a_text(0, text="written anew"))
    assert StoredRun(folder.path).samples["gsm8k/0/0"].grade is None


def test_a_foreign_line_among_the_grades_is_named(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        store(folder, a_sample(0), a_sample(1))
    path = folder.path / "grades.jsonl"
    first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b'{"id": "gsm8k/2/0", "grade": "maybe"}\n' + last)
    with pytest.raises(DataError) as error:
        open_run(tmp_path)
    assert message(error).startswith(f"{path}:2: missing: extracted, ")
    assert message(error).endswith("delete it to grade its sample again")


# Sessions and the summary


def test_each_process_has_one_line_of_sessions(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.record_session(measured(samples=1))
        folder.record_session(measured(samples=2))
        assert [(session.samples, session.closed) for session in StoredRun(folder.path).sessions] == [(2, False)]
    with open_run(tmp_path) as folder:
        assert [session.samples for session in folder.sessions] == [2]
        folder.record_session(measured(samples=3))
    with open_run(tmp_path) as folder:  # nothing left to do: no line
        pass
    sessions = StoredRun(folder.path).sessions
    assert [(session.samples, session.closed, session.pid) for session in sessions] == [
        (2, True, os.getpid()),
        (3, True, os.getpid()),
    ]
    with open_run(tmp_path) as folder, pytest.raises(ValueError, match="speed"):
        folder.record_session(measured(speed=1))


def test_a_broken_session_line_is_named(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.record_session(measured())
    path = folder.path / "sessions.jsonl"
    path.write_bytes(path.read_bytes() + b'{"host": 1}\n')
    with pytest.raises(DataError) as error:
        open_run(tmp_path)
    assert f"{path}:2: missing: pid" in message(error)


def test_a_session_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.record_session(measured(samples=1))
    path = folder.path / "sessions.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"host": "a", "pi')
    with open_run(tmp_path) as folder:
        folder.record_session(measured(samples=2))
    assert [session.samples for session in StoredRun(folder.path).sessions] == [1, 2]
    assert path.read_bytes().startswith(whole)


def test_lines_have_the_order_and_the_numbers_they_always_had(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text(latency_s=2.0))
        folder.record_session(measured())
    record = json.dumps(a_record(latency_s=2.0), ensure_ascii=False)
    assert (folder.path / "completions.jsonl").read_text() == record + "\n"
    added = ["host", "pid", "started_at", "updated_at", "closed", "wall_s"]
    assert list(json.loads((folder.path / "sessions.jsonl").read_text())) == [*added, *measured()]


def test_a_config_that_is_not_its_hash_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_text())
    path = folder.path / "run.json"
    path.write_text(path.read_text().replace('"temperature": 0.6', '"temperature": 0.7'))
    with pytest.raises(DataError) as error:
        StoredRun(folder.path)
    assert message(error).startswith(f"{path}: its config was changed: it is not that of its config_hash; restore it")


def test_a_summary_must_be_as_documented(tmp_path: Path) -> None:
    summary = summarize([], a_run()).model_dump()
    for wrong in ({**summary, "speed": 1}, {**summary, "overall": {}}, {**summary, "tasks": {"gsm8k": {}}}):
        with pytest.raises(ValueError, match=r"speed|overall|tasks\.gsm8k"):
            Summary(**wrong)


@pytest.mark.parametrize("name", [".lock", "run.json", "completions.jsonl", "grades.jsonl", "sessions.jsonl"])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path, name: str, there: bool) -> None:
    with open_run(tmp_path) as folder:
        store(folder, a_sample())
        folder.record_session(measured(samples=1))
    key = tmp_path / "key"
    content = b"PRECIOUS" if name == ".lock" else (folder.path / name).read_bytes()
    if there:
        key.write_bytes(content)
    (folder.path / name).unlink()
    (folder.path / name).symlink_to(key)
    with pytest.raises(VaseError) as caught, open_run(tmp_path):
        pass
    if there or name != "run.json":  # a run.json that leads to nothing is none
        assert str(caught.value).endswith(f"{folder.path / name}: it is a symbolic link; put the file itself there")
    assert (key.read_bytes() == content) if there else not key.exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_where_a_file_is_written_is_replaced(tmp_path: Path, there: bool) -> None:
    key = tmp_path / "key"
    with open_run(tmp_path) as folder:
        if there:
            key.write_text("PRECIOUS")
        stale = f"sessions.jsonl.{'0' * 16}.tmp"  # of a process that was killed
        for name in ("summary.json.tmp", "summary.json", "grades.jsonl.1", stale):
            (folder.path / name).symlink_to(key)
        store(folder, a_sample())
        folder.record_session(measured(samples=1))
        folder.write_summary(summarize(folder.samples.values(), folder.run))
        backup = folder.replace_grades([a_grade(grade="wrong")])
    assert backup == folder.path / "grades.jsonl.2"
    assert StoredRun(folder.path).samples["gsm8k/0/0"].grade == "wrong"
    assert not (folder.path / "summary.json").is_symlink()
    assert [path.name for path in folder.path.glob("*.tmp")] == ["summary.json.tmp"]  # which is none of ours
    assert (key.read_text() == "PRECIOUS") if there else not key.exists()
