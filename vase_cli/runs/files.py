"""JSON documents and JSON lines: read and checked, and written so that a kill leaves whole ones."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from vase_cli.errors import DataError, VaseError, file_error
from vase_cli.runs.schema import Record, fault

R = TypeVar("R", bound=Record)


@contextlib.contextmanager
def file_access(action: str, path: Path, kind: type[VaseError]) -> Iterator[None]:
    """Turn an OSError into the one line for a file that cannot be used: of ``kind``, or RunError for a full disk."""
    try:
        yield
    except OSError as error:
        raise file_error(action, path, error, kind) from error


def read_document(path: Path, version: int, otherwise: str) -> dict[str, Any]:
    """A .json file that states the version of its format.

    Raises:
        DataError: it cannot be read, is not a JSON object, or is of another version: restore it, or ``otherwise``.
    """
    try:
        with file_access("read", path, DataError):
            value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON; restore it, or {otherwise}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object; restore it, or {otherwise}")
    if (found := value.get("format")) != version:
        raise DataError(f"{path} has format {found!r}; this version of vase reads format {version}")
    return value


def read_lines(path: Path, kind: type[R], way_out: str) -> Iterator[tuple[bytes, R | None]]:
    """The lines of a .jsonl file, each as it is and as a record; none where there is no file.

    A last line that is not a JSON object was cut by a kill or a power failure: its record is None.

    Raises:
        DataError: the file cannot be read, or another line is broken: names its number, the fault and the ``way_out``.
    """
    with file_access("read", path, DataError), contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            record = _parse(line, kind)
            if isinstance(record, str) or (record is None and file.read(1)):
                raise DataError(f"{path}:{number}: {record or 'not a JSON object'}; {way_out}")
            yield line, record


def _parse(line: bytes, kind: type[R]) -> R | str | None:
    """A record, or what is wrong with it; None for what is not a JSON object."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    try:
        return kind.model_validate(value) if isinstance(value, dict) else None
    except ValidationError as error:
        return fault(error)


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
    """Replace a file in one step: a reader, or a kill, finds the old or the new one, whole.

    Args:
        durable: wait for the disk, so that a power failure leaves a whole one too.
    """
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
    if durable and os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
