"""Local problem files: their places, and their rows with the line each starts on."""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import DataError, decode_text, file_access, first_line, nearest, user_path
from vase_cli.tasks._rows import KNOWN_FIELDS, Row, RowError, field_key

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
UNKNOWN_KIND = f"unknown kind of file; give {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
_BOM = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder()
_OPENING = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(\]?)[ \t\r\n]*")
_SEPARATOR = re.compile(r"[ \t\r\n]*([,\]])[ \t\r\n]*")


def data_path(data: Path | None) -> Path | None:
    """The file or folder to look for problems in: ``data``, else ``$VASE_DATA``, else None."""
    path = str(data) if data is not None else os.environ.get("VASE_DATA", "")
    return user_path(path, DataError) if path else None


def find_data(task: str, data: Path | None) -> Path | None:
    """The local file that holds a task's rows: of ``data``, else of ``$VASE_DATA``, else None (the hub).

    Either names a file, or a folder with ``TASK.jsonl``, ``.json``, ``.csv`` or ``.parquet`` in it; ``$VASE_DATA`` may
    lack a task, ``data`` may not. DataError for no such file or folder, or a file with another task's name.
    """
    path = data_path(data)
    if path is None:
        return None
    origin = str(data) if data is not None else f"$VASE_DATA ({os.environ['VASE_DATA']})"
    if path.is_dir():
        file = next(filter(Path.is_file, (path / f"{task}{suffix}" for suffix in SUFFIXES)), None)
        if file is None and data is not None:
            others = ", ".join(_problem_files(path)) or "no problem file"
            raise DataError(f"{origin} has no {task}{'|'.join(SUFFIXES)}; it has: {others}")
        return file
    if not path.exists():
        raise DataError(missing_file(origin, path))
    # Grading one benchmark's rows under another's name would look like a result.
    if path.stem != task and path.stem in plugins.names("tasks"):
        raise DataError(f"{origin} is named after the task '{path.stem}', not '{task}'; give a folder, or rename it")
    return path


def missing_file(origin: str, path: Path) -> str:
    """The message for a file that is not there, with the nearest name in its folder."""
    try:
        close = nearest(path.name, _problem_files(path.parent))
    except OSError:
        return f"no such file: {origin} (there is no folder {path.parent}); correct the path"
    return f"no such file: {origin}; " + (f"did you mean '{path.parent / close}'?" if close else "correct the path")


def _problem_files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix in SUFFIXES)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSON Lines, JSON, CSV or Parquet file, a bad one with its fault; DataError for a bad file."""
    reader = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}.get(path.suffix)
    if reader is None:
        raise DataError(f"{path}: {UNKNOWN_KIND}")
    if not (path := user_path(path, DataError)).exists():
        raise DataError(missing_file(str(path), path))
    with file_access("read", path, DataError):
        raw = path.read_bytes()
    yield from reader(path, raw.removeprefix(_BOM))


def _json_lines(path: Path, raw: bytes) -> Iterator[Row]:
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Row(f"{path}:{number}", _json_value(line, last=number == len(lines)))


def _json_value(line: bytes, *, last: bool) -> Any:
    """The value of a line, or a RowError in its place."""
    if b"\0" in line:
        return RowError("holds a NUL byte")
    if line.startswith(_BOM):
        return RowError("a byte-order mark inside the file (two files joined?)")
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return RowError(f"bad UTF-8 at byte {error.start + 1} of the line")
    except (ValueError, RecursionError) as error:
        return RowError("the last line is cut off in the middle of a row" if last else _invalid_json(error))


def _invalid_json(error: ValueError | RecursionError) -> str:
    """The message for a syntax error, a number of thousands of digits, or brackets without end."""
    if isinstance(error, json.JSONDecodeError):
        return f"invalid JSON at column {error.colno}: {error.msg}"
    return f"invalid JSON: {error}"


def _json(path: Path, raw: bytes) -> Iterable[Row]:
    if not raw.lstrip().startswith(b"["):
        return _json_lines(path, raw)  # many JSON Lines files are called .json
    text = decode_text(raw, str(path), DataError)
    rows, line, counted = [], 1, 0
    try:
        mark = _OPENING.match(text)
        while mark and mark[1] != "]":
            line, counted = line + text.count("\n", counted, mark.end()), mark.end()
            value, end = _DECODER.raw_decode(text, mark.end())
            rows.append(Row(f"{path}:{line}", value))
            mark = _SEPARATOR.match(text, end)
        if not mark or mark.end() < len(text):
            json.loads(text)  # knows what is wrong, and where
    except (ValueError, RecursionError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        raise DataError(f"{where}: {_invalid_json(error)}") from error
    return rows


def _csv(path: Path, raw: bytes) -> Iterator[Row]:
    # A bad byte becomes a lone surrogate, which the reading of the field it stands in refuses by name.
    text = io.StringIO(raw.decode("utf-8", errors="surrogateescape"), newline="")
    # The module's default limit of 128 KiB is less than a stored generation, which may stand in a column we skip.
    csv.field_size_limit(max(csv.field_size_limit(), len(raw)))
    reader = csv.reader(text, strict=True)
    start = 1
    try:
        header = next(reader, [])
        for name in sorted(header):
            if header.count(name) > 1 and field_key(name) in KNOWN_FIELDS:
                raise DataError(f"{path}:1: the header names '{name}' twice")
        start = reader.line_num + 1
        for values in reader:
            if values:
                fault = RowError(f"{len(values)} fields, the header has {len(header)}")
                fields = dict(zip(header, values, strict=False))
                yield Row(f"{path}:{start}", fields if len(values) <= len(header) else fault)
            start = reader.line_num + 1
    except csv.Error as error:
        # The reader cannot tell where the next row starts, so what follows is lost with this one.
        cut = "unexpected end" in str(error)
        reason = "the last row is cut off in a quoted field" if cut else f"invalid CSV: {error}"
        yield Row(f"{path}:{start}", RowError(reason))


def _parquet(path: Path, raw: bytes) -> Iterator[Row]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(raw))
        columns = [name for name in table.schema_arrow.names if field_key(name) in KNOWN_FIELDS]
        rows = table.read(columns=columns).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {first_line(error)}") from error
    yield from (Row(f"{path} row {number}", fields) for number, fields in enumerate(rows, start=1))
