"""Reads and writes the files of a run folder; ``run_folder`` adds the lock and the order of things.

Reading changes nothing and takes no lock, so a run that is going on can be looked at.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vase_cli.errors import ConfigError, DataError, file_error
from vase_cli.runs.schema import COMPLETION, FORMAT, RUN, RUN_TASK, SESSION, check

RUN_FILE = "run.json"
_WRITTEN = "name one that `vase eval` has written"
COMPLETIONS_FILE = "completions.jsonl"
SESSIONS_FILE = "sessions.jsonl"
SUMMARY_FILE = "summary.json"
_WAY_OUT = "restore the line, or delete it to run its sample again"


class StoredCompletions(NamedTuple):
    """What completions.jsonl holds.

    Attributes:
        records: by id, in the file's order. Of records with the same id the first counts: it is the one
            that was reported.
        notes: one line for each thing left out.
        good_bytes: length of the file up to the end of its last whole record.
        ends_in_newline: whether that record's newline was written too.
    """

    records: dict[str, dict[str, Any]]
    notes: list[str]
    good_bytes: int
    ends_in_newline: bool


def require_run_folder(path: Path) -> None:
    """Raises ConfigError unless the path is a folder with a run.json."""
    if not path.is_dir():
        raise ConfigError(f"no run folder at {path}; {_WRITTEN}")
    if not (path / RUN_FILE).exists():
        runs = [child for child in path.iterdir() if (child / RUN_FILE).exists()]
        newest = max(runs, key=lambda child: (child.stat().st_mtime, child.name), default=None)
        hint = _WRITTEN if newest is None else f"name one of the {len(runs)} in it, such as {newest}"
        raise ConfigError(f"{path} is not a run folder: it has no {RUN_FILE}; {hint}")


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run folder; DataError if it is broken or of another format."""
    path = folder / RUN_FILE
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise file_error("read", path, error, DataError) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not valid JSON; restore it, or move the folder away and start the run again"
        ) from error
    if isinstance(run, dict) and run.get("format", FORMAT) != FORMAT:
        raise DataError(f"{path} has format {run['format']!r}; this version of vase reads format {FORMAT}")
    wrong = check(RUN, run) or next((wrong for task in run["tasks"] if (wrong := check(RUN_TASK, task))), "")
    if wrong:
        raise DataError(f"{path}: {wrong}; restore it, or move the folder away and start the run again")
    return dict(run)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """sessions.jsonl of a run folder, if there is one; DataError names a broken line."""
    path = folder / SESSIONS_FILE
    sessions = []
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise file_error("read", path, error, DataError) from error
    for number, line in enumerate(lines, 1):
        if line:
            session = _parse(line)
            if session is None or check(SESSION, session):
                raise DataError(f"{path}:{number}: {check(SESSION, session)}; delete the line")
            sessions.append(session)
    return sessions


def read_completions(folder: Path) -> StoredCompletions:
    """completions.jsonl of a run folder, if there is one; nothing is changed.

    A last line that is not a JSON object was cut by a kill or a power failure: it is left out, and noted.

    Raises:
        DataError: any other line that is broken, with its number.
    """
    path = folder / COMPLETIONS_FILE
    records: dict[str, dict[str, Any]] = {}
    notes = []
    good_bytes, ends_in_newline, repeated = 0, True, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _parse(line)
                if record is None:
                    if file.read(1):
                        raise DataError(f"{path}:{number}: not a JSON object; {_WAY_OUT}")
                    notes.append(f"{path} ended in a cut line ({len(line)} bytes), which is left out")
                    break
                if wrong := check(COMPLETION, record):
                    raise DataError(f"{path}:{number}: {wrong}; {_WAY_OUT}")
                if record["id"] in records:
                    repeated += 1
                else:
                    records[record["id"]] = record
                good_bytes += len(line)
                ends_in_newline = line.endswith(b"\n")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise file_error("read", path, error, DataError) from error
    if repeated:
        notes.append(f"{path} holds {repeated} records whose id it has already; the first of each counts")
    return StoredCompletions(records, notes, good_bytes, ends_in_newline)


def mend(path: Path, stored: StoredCompletions) -> None:
    """Cuts off what follows the last whole record and writes that record's newline if it lacks one."""
    if not path.exists():
        return
    if path.stat().st_size == stored.good_bytes and stored.ends_in_newline:
        return
    with path.open("r+b") as file:
        file.truncate(stored.good_bytes)
        if not stored.ends_in_newline:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def line_of(record: Mapping[str, Any]) -> bytes:
    """One line of a .jsonl file; NaN and infinity, which JSON lacks, raise ValueError."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def document(value: Mapping[str, Any]) -> bytes:
    """A .json file, indented for reading; NaN and infinity raise ValueError."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replaces a file in one step: a reader, or a kill, finds the old or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
