"""Errors that a user can fix, as opposed to bugs.

The command line prints the message of a ``VaseError`` as one line on stderr. A message says what is
wrong, where, and what to do. Every other exception is a bug and keeps its traceback.
"""

import contextlib
import difflib
import errno
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import ClassVar

_LONGEST_MESSAGE = 2000  # characters


class VaseError(Exception):
    """Base of every such error; ``str()`` of it is one line, of which a very long one lacks its middle."""

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        line = " ".join(super().__str__().splitlines())
        half = _LONGEST_MESSAGE // 2 - 5
        return line if len(line) <= _LONGEST_MESSAGE else f"{line[:half]} [...] {line[-half:]}"


class ConfigError(VaseError):
    """A recipe, zoo entry, option or value that cannot be used."""


class DataError(VaseError):
    """A problem set, a row or a stored completion that cannot be read."""


class ModelError(VaseError):
    """A model that cannot be found, loaded or served."""


class RunError(VaseError):
    """A run that started and failed; what it had finished is kept."""

    exit_code: ClassVar[int] = 1


@contextlib.contextmanager
def quiet_log(library: str) -> Iterator[None]:
    """Silence a library's warnings where our own message says it once, or nothing is wrong."""
    log = logging.getLogger(library)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next one if it ends in a colon; its name without a message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines or isinstance(error, KeyError):
        return f"{type(error).__name__} {error}".strip()
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".:")


@contextlib.contextmanager
def file_access(action: str, path: Path, kind: type[VaseError]) -> Iterator[None]:
    """Turn an OSError into one of ``kind`` for the file that cannot be used; a full disk is a RunError everywhere.

    A pipe or a device is refused where the action is "read": it may never end.
    """
    try:
        if action == "read" and path.exists() and not (path.is_file() or path.is_dir()):
            raise kind(f"cannot read {path}: it is a pipe or a device; write its content to a file, and name that")
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ELOOP:
            reason = "it is a symbolic link; put the file itself there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            kind, reason = RunError, "the disk is full; free some space and run again, finished samples are kept"
        raise kind(f"cannot {action} {path}: {reason}") from error


def user_path(name: str | Path, kind: type[VaseError], within: Path = Path()) -> Path:
    """The path that a user names, ``~`` being a home folder and a relative one starting ``within``; it need not exist.

    An error of ``kind`` for an empty name, a home folder that nobody has, and a path that the system refuses.
    """
    if not str(name).strip():
        raise kind("an empty name stands for no file or folder; write one, or leave it out")
    try:
        path = within / Path(name).expanduser()
    except RuntimeError:
        raise kind(f"{name}: there is no home folder of that user; write the path in full") from None
    with file_access("look at", path, kind), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            path.stat()
        except ValueError:  # a NUL character, or half a surrogate pair
            raise kind(f"{str(name)!r} is no name that a file can have; correct it") from None
    return path


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name nearest to a mistyped one, if any is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.65)), None)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """``did you mean 'x'?``, or all the names there are."""
    close = nearest(name, known)
    return f"did you mean '{close}'?" if close else f"there are: {', '.join(sorted(known)) or 'none'}"


def decode_text(content: bytes, where: str, kind: type[VaseError]) -> str:
    """UTF-8 as text, without a byte-order mark at its start; an error of ``kind`` names the line of a wrong byte."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise kind(f"{where}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
