"""Local problem files: where they are looked for, and their rows with the line each starts on."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import DataError, decode_text, nearest
from vase_cli.tasks._rows import KNOWN_FIELDS, Row, field_key

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_BOM = b"\xef\xbb\xbf"


def named_data(data: Path | None) -> Path | None:
    """Where problems are looked for: in ``data``, else in ``$VASE_DATA``; None where neither is given."""
    named = str(data) if data is not None else os.environ.get("VASE_DATA", "")
    return Path(named).expanduser() if named else None


def find_data(task: str, data: Path | None) -> Path | None:
    """The local file that holds a task's rows: of ``data``, else of ``$VASE_DATA``, else None (the hub).

    Either names a file, or a folder with ``TASK.jsonl``, ``.json``, ``.csv`` or ``.parquet`` in it.
    ``$VASE_DATA`` may lack a task, which then comes from the hub; ``data`` may not.

    Raises:
        DataError: no such file or folder, or a file that is named after another task.
    """
    path = named_data(data)
    if path is None:
        return None
    origin = str(data) if data is not None else f"$VASE_DATA ({os.environ['VASE_DATA']})"
    if path.is_dir():
        for suffix in SUFFIXES:
            if (path / f"{task}{suffix}").is_file():
                return path / f"{task}{suffix}"
        if data is None:
            return None
        beside = sorted(entry.name for entry in path.iterdir() if entry.suffix in SUFFIXES)
        raise DataError(f"{origin} has no {task}{'|'.join(SUFFIXES)}; it has: {', '.join(beside) or 'no problem file'}")
    if not path.is_file():
        raise DataError(missing_file(origin, path))
    # Grading one benchmark's rows under another's name would look like a result.
    if path.stem != task and path.stem in plugins.names("tasks"):
        raise DataError(f"{origin} is named after the task '{path.stem}', not '{task}'; give a folder, or rename it")
    return path


def missing_file(origin: str, path: Path) -> str:
    """The one line for a file that is not there: the nearest name beside it."""
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in SUFFIXES)
    except OSError:
        return f"no such file: {origin} (there is no folder {path.parent}); correct the path"
    close = nearest(path.name, beside)
    return f"no such file: {origin}; " + (f"did you mean '{path.parent / close}'?" if close else "correct the path")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSON Lines, JSON, CSV or Parquet file; a row that cannot be read carries its fault.

    Raises:
        DataError: the file as a whole cannot be read.
    """
    readers = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        raise DataError(f"{path}: unknown kind of file; give {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(missing_file(str(path), path)) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    yield from reader(path, raw.removeprefix(_BOM))


def _json_lines(path: Path, raw: bytes) -> Iterator[Row]:
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            fields, fault = _json_row(line)
            if fault.startswith("invalid JSON") and number == len(lines):
                fault = "the last line is cut off in the middle of a row"
            yield Row(f"{path}:{number}", fields, fault)


def _json_row(line: bytes) -> tuple[dict[str, Any] | None, str]:
    if b"\0" in line:
        return None, "holds a NUL byte"
    if line.startswith(_BOM):
        return None, "a byte-order mark inside the file (two files joined?)"
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, f"bad UTF-8 at byte {error.start + 1} of the line"
    except json.JSONDecodeError as error:
        return None, f"invalid JSON at column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets without end
        return None, f"invalid JSON: {error}"
    return (value, "") if isinstance(value, dict) else (None, "not an object with fields")


def _json(path: Path, raw: bytes) -> Iterator[Row]:
    if not raw.lstrip().startswith(b"["):
        # Many JSON Lines files are called .json.
        yield from _json_lines(path, raw)
        return
    text = decode_text(raw, str(path), DataError)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: invalid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: invalid JSON: {error}") from error
    # The text is valid now, so walking it entry by entry only serves to know each one's line.
    decoder, between = json.JSONDecoder(), re.compile(r"[\s,]*")
    position, line = text.index("[") + 1, text.count("\n", 0, text.index("[")) + 1
    while True:
        start = between.match(text, position).end()  # type: ignore[union-attr]
        line += text.count("\n", position, start)
        if text[start] == "]":
            return
        value, position = decoder.raw_decode(text, start)
        fields = value if isinstance(value, dict) else None
        yield Row(f"{path}:{line}", fields, "" if fields is not None else "not an object with fields")
        line += text.count("\n", start, position)


def _csv(path: Path, raw: bytes) -> Iterator[Row]:
    # A bad byte becomes a lone surrogate, which the reading of the field it stands in refuses by name.
    text = io.StringIO(raw.decode("utf-8", errors="surrogateescape"), newline="")
    # The module's default limit of 128 KiB is less than a stored generation, which may stand in a column we skip.
    csv.field_size_limit(max(csv.field_size_limit(), len(raw)))
    reader = csv.reader(text, strict=True)
    start = 1
    try:
        header = next(reader, [])
        doubled = sorted(
            {name for name in header if name and header.count(name) > 1 and field_key(name) in KNOWN_FIELDS}
        )
        if doubled:
            raise DataError(f"{path}:1: the header names '{doubled[0]}' twice")
        start = reader.line_num + 1
        for values in reader:
            if values:
                fault = "" if len(values) <= len(header) else f"{len(values)} fields, the header has {len(header)}"
                yield Row(f"{path}:{start}", dict(zip(header, values, strict=False)) if not fault else None, fault)
            start = reader.line_num + 1
    except csv.Error as error:
        # The reader cannot tell where the next row starts, so what follows is lost with this one.
        fault = (
            "the last row is cut off in a quoted field" if "unexpected end" in str(error) else f"invalid CSV: {error}"
        )
        yield Row(f"{path}:{start}", None, fault)


def _parquet(path: Path, raw: bytes) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(raw))
        columns = [name for name in table.schema_arrow.names if field_key(name) in KNOWN_FIELDS]
        rows = table.read(columns=columns).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
    for number, fields in enumerate(rows, start=1):
        yield Row(f"{path} row {number}", fields)
