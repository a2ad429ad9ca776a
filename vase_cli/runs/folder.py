"""The folder of one run: locked, resumable, and whole after a kill at any moment.

::

    runs/qwen3-8b-gsm8k-vase-attnv-4x-1a2b3c4d/
        run.json             config, versions, hardware; written first, never changed
        completions.jsonl    one line for each finished sample, appended as it finishes
        sessions.jsonl       one line for each process that worked on the run
        summary.json         the figures
        completions.jsonl.1  as it was before the first re-grading, .2 before the second, ...

A record reaches the operating system in one write before ``append`` returns, so killing the process
loses none. The disk is waited for (fsync) at the start and the end only: after a power failure the
last samples may be missing or cut, and run again.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vase_cli.errors import ConfigError, RunError, VaseError, file_error
from vase_cli.runs.files import (
    COMPLETIONS_FILE,
    RUN_FILE,
    SESSIONS_FILE,
    SUMMARY_FILE,
    document,
    line_of,
    mend,
    read_completions,
    read_run,
    read_sessions,
    require_run_folder,
    write_atomically,
)
from vase_cli.runs.schema import COMPLETION, METRICS, RUN, RUN_TASK, SESSION, SUMMARY, Key, check

_LOCK_FILE = ".lock"
_LONGEST_NAME = 150  # bytes; file systems allow 255

_held_locks: set[int] = set()


class RunFolder:
    """One run's folder, held by this process until ``close``; also a context manager.

    Attributes:
        path: the folder.
        run: what run.json holds; of a resumed run, what it held before.
        resumed: whether the folder was there before.
        notes: one line for each thing the user should know about what was found.
    """

    path: Path
    run: dict[str, Any]
    resumed: bool
    notes: list[str]

    def __init__(self, path: Path, run: Mapping[str, Any] | None) -> None:
        """Use ``open`` or ``existing``."""
        self.path = path
        self.notes = []
        self._records: dict[str, dict[str, Any]] = {}
        self._earlier_sessions: list[dict[str, Any]] = []
        self._completions: int | None = None
        self._session: dict[str, Any] | None = None
        self._started_at = now()
        self._started = time.monotonic()
        self._process = os.getpid()
        self._lock: int | None = _acquire(path / _LOCK_FILE)
        try:
            self._load(run)
        except BaseException:
            self._release()
            raise

    @classmethod
    def open(cls, root: Path, name: str, run: Mapping[str, Any]) -> Self:
        """Makes the run's folder, run.json first, or opens it again if it is of the same run.

        Args:
            root: the folder of all runs; made if missing.
            name: from ``run_name``.
            run: run.json, with every key of the schema.

        Raises:
            ConfigError: another process holds the folder, it belongs to another config or other
                problems, or it cannot be written.
            DataError: a file in it is broken, other than a cut last line.
        """
        _require(RUN, run, RUN_FILE)
        for task in run["tasks"]:
            _require(RUN_TASK, task, f"{RUN_FILE} tasks")
        if run["config_hash"] != config_hash(run["config"]):
            raise ValueError("config_hash is not the hash of config")
        path = root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise file_error("make the run folder", path, error, ConfigError) from error
        return cls(path, run)

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Opens a run folder to work on what it holds, such as grading it again.

        Raises:
            ConfigError: it is not a run folder, another process holds it, or it cannot be written.
            DataError: a file in it is broken, other than a cut last line.
        """
        require_run_folder(path)
        return cls(path, None)

    def completed(self) -> dict[str, dict[str, Any]]:
        """The finished samples' records by id, in the order of the file."""
        return dict(self._records)

    def append(self, record: Mapping[str, Any]) -> None:
        """Stores one finished sample; it is safe from a kill when this returns.

        Raises:
            RunError: the disk is full or the folder is gone; what was stored before stays whole.
        """
        _require(COMPLETION, record, COMPLETIONS_FILE)
        if record["id"] in self._records:
            raise ValueError(f"sample {record['id']} is stored already")
        path = self.path / COMPLETIONS_FILE
        line = line_of(record)
        try:
            if self._completions is None:
                self._completions = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            before = os.fstat(self._completions)
            if before.st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was deleted while the run was going on")
            try:
                written = os.write(self._completions, line)
                while written < len(line):
                    written += os.write(self._completions, line[written:])
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._completions, before.st_size)
                raise
        except OSError as error:
            raise file_error("write", path, error, RunError) from error
        self._records[record["id"]] = dict(record)

    def replace_completions(self, records: Iterable[Mapping[str, Any]]) -> Path | None:
        """Replaces every record, as grading again does, in one step; the file as it was is kept.

        Args:
            records: one for each stored sample, with the same ids.

        Returns:
            The file that keeps the old records (completions.jsonl.1, then .2, ...), or None if nothing
            changed and nothing was written.
        """
        new: dict[str, dict[str, Any]] = {}
        for record in records:
            _require(COMPLETION, record, COMPLETIONS_FILE)
            new[record["id"]] = dict(record)
        if new.keys() != self._records.keys():
            raise ValueError("the new records are not of the samples that are stored")
        if new == self._records:
            return None
        new = {identifier: new[identifier] for identifier in self._records}
        path = self.path / COMPLETIONS_FILE
        number = 1
        while (backup := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        self._close_completions()
        try:
            try:
                os.link(path, backup)
            except OSError:  # a file system without hard links
                shutil.copy2(path, backup)
            write_atomically(path, b"".join(line_of(record) for record in new.values()))
        except OSError as error:
            raise file_error("write", path, error, RunError) from error
        self._records = new
        return backup

    def record_session(self, measured: Mapping[str, Any]) -> None:
        """Writes what this process has measured so far as its line of sessions.jsonl, in place of its last one.

        Called every few samples, so that a kill loses little. The summary's speed and memory come from these lines.

        Args:
            measured: the schema's session keys without host, pid, started_at, updated_at, closed and
                wall_s, which are added.
        """
        session = {
            "host": socket.gethostname(),
            "pid": self._process,
            "started_at": self._started_at,
            "updated_at": now(),
            "closed": False,
            "wall_s": round(time.monotonic() - self._started, 3),
            **measured,
        }
        _require(SESSION, session, SESSIONS_FILE)
        self._session = session
        self._write_sessions(durable=False)

    def sessions(self) -> list[dict[str, Any]]:
        """The lines of sessions.jsonl, this process's last."""
        return [*self._earlier_sessions, *([self._session] if self._session else [])]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json in one step.

        Raises:
            RunError: the disk is full or the folder is gone; an older summary stays.
        """
        _require(SUMMARY, summary, SUMMARY_FILE)
        for metrics in (summary["overall"], *summary["tasks"].values()):
            _require(METRICS, metrics, SUMMARY_FILE)
        path = self.path / SUMMARY_FILE
        try:
            write_atomically(path, document(summary))
        except OSError as error:
            raise file_error("write", path, error, RunError) from error

    def close(self) -> None:
        """Waits for the disk, marks the session closed and lets the folder go; a second call does nothing."""
        if self._lock is None or os.getpid() != self._process:
            return
        try:
            self._close_completions()
            if self._session is not None:
                self._session |= {
                    "updated_at": now(),
                    "closed": True,
                    "wall_s": round(time.monotonic() - self._started, 3),
                }
                self._write_sessions(durable=True)
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A full disk fails twice: the first message is the one to show.
        with contextlib.suppress(VaseError) if kind is not None else contextlib.nullcontext():
            self.close()

    def _load(self, run: Mapping[str, Any] | None) -> None:
        run_path, completions_path = self.path / RUN_FILE, self.path / COMPLETIONS_FILE
        self.resumed = run_path.exists()
        if self.resumed:
            self.run = read_run(self.path)
            if run is not None:
                self._require_same(run)
                self.notes += _changes(self.run, run)
        elif run is None or completions_path.exists():
            raise ConfigError(
                f"{self.path} has {COMPLETIONS_FILE} but no {RUN_FILE}; restore it, or move the folder away"
            )
        else:
            self.run = dict(run)
            try:
                write_atomically(run_path, document(run))
            except OSError as error:
                raise file_error("write", run_path, error, ConfigError) from error
        self._earlier_sessions = read_sessions(self.path)
        stored = read_completions(self.path)
        self._records = stored.records
        self.notes += stored.notes
        try:
            mend(completions_path, stored)
        except OSError as error:
            raise file_error("write", completions_path, error, ConfigError) from error

    def _require_same(self, run: Mapping[str, Any]) -> None:
        was, now_is = self.run["config_hash"], run["config_hash"]
        if was != now_is:
            raise ConfigError(
                f"{self.path} belongs to another config ({was[:8]}, this one is {now_is[:8]}); "
                "move it away or choose another output folder"
            )
        facts = ("name", "version", "problems", "samples")
        for stored, new in zip(self.run["tasks"], run["tasks"], strict=False):
            for fact in facts:
                if stored[fact] != new[fact]:
                    raise ConfigError(
                        f"{self.path} was started with {fact} {stored[fact]!r} of task {stored['name']}, now it is "
                        f"{new[fact]!r}; move the folder away or choose another output folder"
                    )
        if len(self.run["tasks"]) != len(run["tasks"]):
            raise ConfigError(f"{self.path} was started with other tasks; move it away or choose another output folder")

    def _write_sessions(self, *, durable: bool) -> None:
        path = self.path / SESSIONS_FILE
        try:
            write_atomically(path, b"".join(line_of(session) for session in self.sessions()), durable=durable)
        except OSError as error:
            raise file_error("write", path, error, RunError) from error

    def _close_completions(self) -> None:
        if self._completions is not None:
            descriptor, self._completions = self._completions, None
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise file_error("write", self.path / COMPLETIONS_FILE, error, RunError) from error
            finally:
                os.close(descriptor)

    def _release(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            _held_locks.discard(self._lock)
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder for a while; the system lets it go when the process ends in any way.

    Raises:
        ConfigError: another process holds it, or it cannot be written.
    """
    descriptor = _acquire(folder / _LOCK_FILE)
    try:
        yield
    finally:
        _held_locks.discard(descriptor)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (64 hexadecimal digits) of a config: the same for equal values, whatever the order of the keys.

    Lists and tuples are equal, and so are 1 and 1.0; strings, booleans and None are as in JSON.

    Raises:
        TypeError: a value that JSON does not have, or a key that is not a string.
        ValueError: NaN or infinity.
    """
    text = json.dumps(_canonical(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def run_name(*parts: str, config_hash: str) -> str:
    """Name of a run's folder: its parts (recipe, tasks, method, budget) and eight digits of the config's hash."""
    slugs = [re.sub(r"[^\w.+]+", "-", part).strip("-.") for part in parts]
    stem = "-".join(slug for slug in slugs if slug).encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"{stem or 'run'}-{config_hash[:8]}"


def _changes(stored: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What of the software and hardware differs from when the run was started, as one note."""
    before = {"vase": stored["vase_version"], **stored["versions"], "gpus": stored["hardware"].get("gpus")}
    after = {"vase": new["vase_version"], **new["versions"], "gpus": new["hardware"].get("gpus")}
    changed = [f"{name} {before.get(name)} -> {after[name]}" for name in after if before.get(name) != after[name]]
    return [f"the run goes on under other conditions than it started: {', '.join(changed)}"] if changed else []


def _acquire(path: Path) -> int:
    """Takes the lock, which the system frees when the process ends in any way; returns its descriptor."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise file_error("write", path, error, ConfigError) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 300, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise ConfigError(f"{path.parent} is in use by {holder}; wait until it ends, or stop it") from error
    except OSError as error:
        os.close(descriptor)
        raise file_error("lock", path, error, ConfigError) from error
    _held_locks.add(descriptor)
    return descriptor


def _drop_inherited_locks() -> None:
    for descriptor in _held_locks:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held_locks.clear()


# A forked worker shares the descriptor, and would hold the lock on if its parent were killed.
os.register_at_fork(after_in_child=_drop_inherited_locks)


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a config's keys are strings, not {list(value)!r:.80}")
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require(keys: tuple[Key, ...], value: Any, where: str) -> None:
    if wrong := check(keys, value):
        raise ValueError(f"{where}: {wrong}")


def now() -> str:
    """The time in ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
