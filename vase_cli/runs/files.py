"""JSON documents and JSON lines: read and checked, and written so that a kill leaves whole ones."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from vase_cli.errors import DataError, RunError, VaseError, file_access
from vase_cli.runs.schema import Record, fault

R = TypeVar("R", bound=Record)


def itself(path: str, flags: int) -> int:
    """An opener for ``open`` that takes no symbolic link for a file: it could lead out of the run's folder."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_document(path: Path, version: int, otherwise: str) -> dict[str, Any]:
    """Read a .json file that states the version of its format; DataError says to restore it, or ``otherwise``."""
    try:
        with file_access("read", path, DataError), open(path, "rb", opener=itself) as file:
            value = json.loads(file.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON; restore it, or {otherwise}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object; restore it, or {otherwise}")
    if (stored := value.get("format")) != version:
        raise DataError(f"{path} has format {stored!r}; this version of vase reads format {version}")
    return value


def read_lines(path: Path, kind: type[R], way_out: str) -> Iterator[tuple[bytes, R | None]]:
    """Read a .jsonl file, each line as it is and as a record; no line where there is no file.

    A last line that is not a JSON object was cut by a kill or a power failure: its record is None. DataError if the
    file cannot be read, or another line is broken: its number, the fault and the ``way_out``.
    """
    with (
        file_access("read", path, DataError),
        contextlib.suppress(FileNotFoundError),
        open(path, "rb", opener=itself) as file,
    ):
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                yield line, checked(value, kind, f"{path}:{number}", way_out)
            elif file.read(1):
                raise DataError(f"{path}:{number}: not a JSON object; {way_out}")
            else:
                yield line, None


def checked(value: dict[str, Any], kind: type[R], where: str, way_out: str) -> R:
    """Turn a JSON object into a record; DataError says where, what is wrong with it, and the way out."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise DataError(f"{where}: {fault(error)}; {way_out}") from error


def line_of(record: Mapping[str, Any]) -> bytes:
    """Make a line of a .jsonl file; NaN and infinity, which JSON lacks, raise ValueError."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot hold it
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def write_document(path: Path, value: Mapping[str, Any], kind: type[VaseError] = RunError) -> None:
    """Write a .json file, indented for reading, as :func:`write_file` does; NaN and infinity raise ValueError."""
    write_file(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n", kind)


def write_file(path: Path, content: bytes, kind: type[VaseError] = RunError, *, durable: bool = True) -> None:
    """Replace a file in one step: a reader, or a kill, finds the old or the new one, whole.

    With ``durable`` the disk is waited for, so that a power failure leaves a whole one too. A VaseError of ``kind`` if
    the folder is gone or cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    with file_access("write", path, kind):
        try:
            for stale in _temporaries(path):  # of a killed process
                stale.unlink(missing_ok=True)
            with open(temporary, "xb", opener=itself) as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if durable and os.name == "posix":  # elsewhere a folder cannot be opened
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _temporaries(path: Path) -> list[Path]:
    """The temporary files of :func:`write_file` beside a file, which one process writes at a time."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.tmp")
    return [path.with_name(name) for name in os.listdir(path.parent) if pattern.fullmatch(name)]
