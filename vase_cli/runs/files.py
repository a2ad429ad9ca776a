"""JSON documents and JSON lines: read and checked, and written so that a kill leaves whole ones."""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from vase_cli.errors import ConfigError, DataError, RunError, VaseError, file_access
from vase_cli.runs.schema import Record, fault

R = TypeVar("R", bound=Record)


def itself(path: str, flags: int) -> int:
    """An opener for ``open`` that takes no symbolic link for a file: it could lead out of the run's folder."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_document(path: Path, versions: Collection[int], otherwise: str) -> dict[str, Any]:
    """Read a .json file that states the version of its format; DataError says to restore it, or ``otherwise``."""
    try:
        with file_access("read", path, DataError), open(path, "rb", opener=itself) as file:
            value = json.loads(file.read().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON; restore it, or {otherwise}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object; restore it, or {otherwise}")
    if (stored := value.get("format")) not in versions:
        known = " and ".join(map(str, versions))
        raise DataError(f"{path} has format {stored!r:.40}; this version of vase reads format {known}")
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


class LineFile(Generic[R]):
    """A .jsonl file that only grows, a record to a line, each whole or not at all.

    ``notes`` are lines for the user about what was read. The file is opened for writing when the first line comes.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path, self.notes = path, list[str]()
        self._kind = kind
        self._whole_bytes, self._last = 0, b"\n"
        self._file: FileIO | None = None

    def read(self, way_out: str) -> Iterator[R]:
        """The records in the order of the file, as :func:`read_lines` does; a line that a kill cut off is left out."""
        for line, record in read_lines(self.path, self._kind, way_out):
            if record is None:
                self.notes.append(f"{self.path} ended in a cut line ({len(line)} bytes), which is left out")
                break
            self._whole_bytes, self._last = self._whole_bytes + len(line), line
            yield record

    def repair(self) -> None:
        """Cut off what follows the last whole line that was read, and write that line's newline if it lacks one."""
        whole = self._last.endswith(b"\n")
        with file_access("write", self.path, ConfigError):
            if self.path.exists() and (not whole or self.path.stat().st_size != self._whole_bytes):
                with open(self.path, "ab", buffering=0, opener=itself) as file:
                    file.truncate(self._whole_bytes)
                    file.write(b"" if whole else b"\n")
                    os.fsync(file.fileno())

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where there is none yet."""
        if self._file is not None:
            return os.fstat(self._file.fileno()).st_size
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Hand a line to the system in one write, so that a kill loses none; RunError if it cannot be written.

        Ctrl-C raises before the line, or when it is whole: then ``size`` has grown.
        """
        line = line_of(record)
        with file_access("write", self.path, RunError):
            if self._file is None:
                self._file = FileIO(self.path, "ab", opener=itself)
            descriptor = self._file.fileno()
            before = os.fstat(descriptor)
            if before.st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was deleted while the run was going on")
            rest = line
            try:
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except BaseException:
                with contextlib.suppress(OSError):
                    if self.size < before.st_size + len(line):
                        os.ftruncate(descriptor, before.st_size)
                raise

    def close(self) -> None:
        """Wait for the disk; a line that comes later opens the file again."""
        if self._file is not None:
            with file_access("write", self.path, RunError), self._file as file:
                self._file = None
                os.fsync(file.fileno())


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
