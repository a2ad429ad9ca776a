"""The folder of one run: locked, resumable, and whole after a kill at any moment.

::

    runs/qwen3-8b-gsm8k-vase-attnv-4x-1a2b3c4d/
        run.json             config, versions, hardware; written first, never changed
        completions.jsonl    one line for each finished text, appended as it finishes, never changed
        grades.jsonl         one line for each graded text, appended after the text's own
        sessions.jsonl       one line for each process that worked on the run
        summary.json         the figures
        grades.jsonl.1       as it was before the first re-grading, .2 before the second, ...

A line reaches the operating system in one write before ``append`` or ``append_grade`` returns, so killing
the process loses none. The disk is waited for (fsync) at the start and the end only: after a power failure
the last lines may be missing or cut, and those samples run, or are graded, again.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vase_cli.errors import ConfigError, DataError, RunError, VaseError, file_access, user_path
from vase_cli.runs.files import (
    LineFile,
    checked,
    itself,
    line_of,
    read_document,
    read_lines,
    write_document,
    write_file,
)
from vase_cli.runs.schema import READABLE_FORMATS, Run, Sample, SampleGrade, Session, Summary

RUN_FILE, SUMMARY_FILE = "run.json", "summary.json"
COMPLETIONS_FILE, GRADES_FILE, SESSIONS_FILE = "completions.jsonl", "grades.jsonl", "sessions.jsonl"
_LONGEST_NAME = 150  # bytes; file systems allow 255


class StoredRun:
    """A run folder's content. Reading changes nothing and takes no lock, so a run that is going on can be read.

    ``run`` is run.json; of a resumed run, as it was before. ``samples`` are the finished ones by id, in the order of
    the file; of several with the same id the first counts: it is the one that was reported. ``sessions`` are the lines
    of sessions.jsonl, ``notes`` lines for the user about oddities of the files.
    """

    def __init__(self, path: Path) -> None:
        """Read the folder: ConfigError if it is not a run's, DataError if more is broken than a cut last line."""
        _require_run_folder(path)
        self.path = path
        self.samples: dict[str, Sample] = {}
        afresh = "move the folder away and start the run again"
        run = read_document(path / RUN_FILE, READABLE_FORMATS, afresh)
        self.run = checked(run, Run, str(path / RUN_FILE), f"restore it, or {afresh}")
        if self.run.config_hash != config_hash(self.run.config):
            changed = "its config was changed: it is not that of its config_hash"
            raise DataError(f"{path / RUN_FILE}: {changed}; restore it, or {afresh}")
        self.sessions = read_sessions(path)
        self._texts, self._grades = LineFile(path / COMPLETIONS_FILE, Sample), LineFile(path / GRADES_FILE, SampleGrade)
        way_out, names = "restore the line, or delete it to {} its sample again", {task.name for task in self.run.tasks}
        repeated = 0
        for sample in self._texts.read(way_out.format("run")):
            if sample.task not in names:
                of = f"sample {sample.id} is of task '{sample.task}'"
                raise DataError(f"{self._texts.path}: {of}, which {RUN_FILE} does not name; delete its line")
            if sample.grade is not None and sample.finish_reason != "error":  # as format 1 has it
                sample = sample.model_copy(update={"error": None, "grade_error": sample.error})
            repeated += sample.id in self.samples
            self.samples.setdefault(sample.id, sample)
        self._has_lost_texts = False  # as after a power failure, which may leave their grades
        for grade in self._grades.read(way_out.format("grade")):
            if grade.id in self.samples:
                self.samples[grade.id] = self.samples[grade.id].graded(grade)
            else:
                self._has_lost_texts = True
        self.notes = [*self._texts.notes, *self._grades.notes]
        if repeated:
            known = f"{repeated} records whose id it has already"
            self.notes.append(f"{self._texts.path} holds {known}; the first of each counts")


class RunFolder(StoredRun, contextlib.AbstractContextManager["RunFolder", None]):
    """A run's folder, held by this process until ``close``.

    Methods that write raise RunError if the disk is full or the folder is gone; stored samples stay whole.
    """

    def __init__(self, path: Path, run: Run | None = None) -> None:
        """Make the folder of a run, run.json first, or open it again; without ``run`` one that is there.

        ConfigError if it is in use, not a run's, of another config or other problems, or cannot be written; DataError
        if a file in it is broken, other than a cut last line.
        """
        self._measured: Mapping[str, Any] | None = None  # by this process, and not yet closed
        self._started_at, self._started, self._process = now(), time.monotonic(), os.getpid()
        if run is None:
            _require_run_folder(path)
        elif run.config_hash != config_hash(run.config):
            raise ValueError("config_hash is not the hash of config")
        else:
            with file_access("make the run folder", path, ConfigError):
                path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as lock:
            lock.enter_context(lock_folder(path))
            if run is not None and not (path / RUN_FILE).exists():
                if orphans := [name for name in (COMPLETIONS_FILE, GRADES_FILE) if (path / name).exists()]:
                    what = f"has {orphans[0]} but no {RUN_FILE}"
                    raise ConfigError(f"{path} {what}; restore it, or move the folder away")
                write_document(path / RUN_FILE, run.model_dump(), ConfigError)
            super().__init__(path)
            self._earlier_sessions = len(self.sessions)
            for difference in _differences(self.run, run or self.run):
                raise ConfigError(f"{path} {difference}; move the folder away or choose another output folder")
            self.notes[:0] = _changes(self.run, run or self.run)
            self._texts.repair()
            self._grades.repair()
            if self._has_lost_texts:
                self._write_grades(self.samples.values())
            self._lock = lock.pop_all()

    def append(self, sample: Sample) -> None:
        """Store one finished text; it is safe from a kill when this returns."""
        if sample.id in self.samples:
            raise ValueError(f"sample {sample.id} is stored already")
        size = self._texts.size
        self.samples[sample.id] = sample
        try:
            self._texts.append(sample.text_line())
        except BaseException:
            if self._texts.size == size:
                del self.samples[sample.id]
            raise

    def append_grade(self, grade: SampleGrade) -> Sample:
        """Store the grade of a stored text that has none; returns the sample with it."""
        if self.samples[grade.id].grade is not None:
            raise ValueError(f"sample {grade.id} is graded already")
        self._grades.append(dict(grade))
        self.samples[grade.id] = self.samples[grade.id].graded(grade)
        return self.samples[grade.id]

    def replace_grades(self, grades: Iterable[SampleGrade]) -> Path | None:
        """Replace the grade of every sample, as grading again does, in one step; texts stay as they are.

        Returns the file that keeps the old grades (grades.jsonl.1, then .2, ...; completions.jsonl for those of format
        1), None if nothing changed or there were none.
        """
        by_id = {grade.id: grade for grade in grades}
        if by_id.keys() != self.samples.keys():
            raise ValueError("the grades are not those of the stored samples")
        new = {identifier: sample.graded(by_id[identifier]) for identifier, sample in self.samples.items()}
        if new == self.samples:
            return None
        path = self._grades.path
        self._grades.close()
        backup = None if all(sample.grade is None for sample in self.samples.values()) else self._texts.path
        if path.exists():
            numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
            backup = next(itertools.filterfalse(os.path.lexists, numbered))
            with file_access("write", path, RunError):
                try:
                    os.link(path, backup)
                except OSError:  # a file system without hard links
                    shutil.copy2(path, backup)
        self._write_grades(new.values())
        self.samples = new
        return backup

    def record_session(self, measured: Mapping[str, Any]) -> None:
        """Write the figures of this process so far, with its name and the time, over its line of sessions.jsonl."""
        self._write_session(measured, closed=False)
        self._measured = measured

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json in one step."""
        write_document(self.path / SUMMARY_FILE, summary.model_dump())

    def close(self) -> None:
        """Wait for the disk, mark the session closed and let the folder go; a second call does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._texts.close()
            self._grades.close()
            if self._measured is not None:
                self._write_session(self._measured, closed=True)
                self._measured = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A full disk fails twice: the first message is the one to show.
        with contextlib.suppress(VaseError) if kind is not None else contextlib.nullcontext():
            self.close()

    def _write_session(self, measured: Mapping[str, Any], *, closed: bool) -> None:
        own: dict[str, Any] = {"host": socket.gethostname(), "pid": self._process, "started_at": self._started_at}
        wall_s = round(time.monotonic() - self._started, 3)
        session = Session(**own, updated_at=now(), closed=closed, wall_s=wall_s, **measured)
        self.sessions[self._earlier_sessions :] = [session]
        lines = b"".join(line_of(dict(session)) for session in self.sessions)
        write_file(self.path / SESSIONS_FILE, lines, durable=closed)

    def _write_grades(self, samples: Iterable[Sample]) -> None:
        graded = (sample for sample in samples if sample.published is not None)
        write_file(self._grades.path, b"".join(line_of(sample.grade_line()) for sample in graded))


def _require_run_folder(path: Path) -> None:
    hint = "name one that `vase eval` has written"
    user_path(path, ConfigError)  # refuses what cannot be looked at
    if not path.is_dir():
        raise ConfigError(f"no run folder at {path}; {hint}")
    if not (path / RUN_FILE).exists():
        runs = [child for child in path.iterdir() if (child / RUN_FILE).exists()]
        if runs:
            newest = max(runs, key=lambda child: (child.stat().st_mtime, child.name))
            hint = f"name one of the {len(runs)} in it, such as {newest}"
        raise ConfigError(f"{path} is not a run folder: it has no {RUN_FILE}; {hint}")


def read_sessions(path: Path) -> list[Session]:
    """Read the whole lines of a folder's sessions.jsonl, if there is one; DataError names a broken line."""
    lines = read_lines(path / SESSIONS_FILE, Session, "delete the line")
    return [session for _, session in lines if session is not None]


def _differences(stored: Run, run: Run) -> Iterator[str]:
    """Say how a folder's run is not this one, the most telling first."""
    if stored.config_hash != run.config_hash:
        yield f"belongs to another config ({stored.config_hash[:8]}, this one is {run.config_hash[:8]})"
    for before, after in zip(stored.tasks, run.tasks, strict=False):
        for fact in ("name", "version", "problems", "samples"):
            if (old := getattr(before, fact)) != (new := getattr(after, fact)):
                yield f"was started with {fact} {old!r} of task {before.name}, now it is {new!r}"
    if len(stored.tasks) != len(run.tasks):
        yield "was started with other tasks"


def _changes(stored: Run, new: Run) -> list[str]:
    """Note changes of the software and hardware since the run was started."""
    runs = (stored, new)
    before, after = ({"vase": run.vase_version, **run.versions, "gpus": run.hardware.get("gpus")} for run in runs)
    changed = [f"{name} {before.get(name)} -> {after[name]}" for name in after if before.get(name) != after[name]]
    return [f"the run goes on under other conditions than it started: {', '.join(changed)}"] if changed else []


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the system lets it go when the process ends in any way.

    ConfigError if another process holds it, or it cannot be written or locked.
    """
    from filelock import FileLock, Timeout

    path, process = folder / ".lock", os.getpid()
    lock = FileLock(path, timeout=0, fallback_to_soft=False)  # a soft lock would outlive a kill
    with file_access("lock", path, ConfigError):
        try:
            lock.acquire()
        except Timeout as error:
            holder = ""
            with contextlib.suppress(OSError):
                holder = path.read_text(encoding="utf-8", errors="replace")[:300]
            in_use = f"{folder} is in use by {holder or 'another process'}"
            raise ConfigError(f"{in_use}; wait until it ends, or stop it") from error
    try:
        # A system may keep a locked file from being written.
        with contextlib.suppress(OSError), open(path, "wb", opener=itself) as file:
            file.write(f"process {process} on {socket.gethostname()}".encode())
        yield
    finally:
        if os.getpid() == process:  # a forked worker has a copy of this, but not the lock
            with contextlib.suppress(OSError), open(path, "ab", opener=itself) as file:
                file.truncate(0)
            lock.release()


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (64 hexadecimal digits) of a config: the same for equal values, whatever the order of the keys.

    Lists and tuples are equal, and so are 1 and 1.0. TypeError for a value that JSON does not have or a key that is
    not a string, ValueError for NaN and infinity.
    """
    text = json.dumps(_canonical(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a config's keys are strings, not {list(value)!r:.80}")
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def run_name(*parts: str, config_hash: str) -> str:
    """Name of a run's folder: its parts (recipe, tasks, method, budget) and eight digits of the config's hash."""
    slugs = [re.sub(r"[^\w.+]+", "-", part).strip("-.") for part in parts]
    stem = "-".join(slug for slug in slugs if slug).encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"{stem or 'run'}-{config_hash[:8]}"


def now() -> str:
    """The time in ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
