"""Problem files and files of prompts of any content: read, or refused in one line that names the file."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from helpers.cli_examples import Shell
from helpers.mutations import as_json, file_contents, files_of, mangled, mutated, one_line
from hypothesis import given
from hypothesis import strategies as st

from vase_cli import plugins
from vase_cli.tasks.base import resolve_tasks

ROWS: list[Any] = [
    {"id": "a", "question": "How much is 1 + 1?", "answer": "2", "solution": "It is 2."},
    {"id": 7, "problem": "And 1 + 2?", "answer": 3.0, "level": None},
    {"question": "Half of 1?", "answer": "that is #### 1/2", "Correct Answer": "1/2", "Incorrect Answer 1": "2"},
]


def json_lines(rows: Any) -> bytes:
    return b"".join(as_json(row) + b"\n" for row in rows) if isinstance(rows, list) else as_json(rows)


def csv_rows(rows: Any) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    rows = rows if isinstance(rows, list) else [rows]
    writer.writerow(next((list(row) for row in rows if isinstance(row, dict)), ["question", "answer"]))
    writer.writerows(list(row.values()) if isinstance(row, dict) else [row] for row in rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def parquet(rows: Any) -> bytes:
    rows = rows if isinstance(rows, list) else [rows]
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(str(key) for row in rows if isinstance(row, dict) for key in row):
        columns[name] = [row.get(name) if isinstance(row, dict) else None for row in rows]
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = pyarrow.array(column)
        except (pyarrow.ArrowException, ValueError, OverflowError, TypeError, UnicodeError):
            arrays[name] = pyarrow.array([None if value is None else ascii(value) for value in column])
    sink = io.BytesIO()
    try:
        pyarrow.parquet.write_table(pyarrow.table(arrays), sink)
    except (pyarrow.ArrowException, UnicodeError):  # a name or a nesting that Parquet does not have
        return b""
    return sink.getvalue()


WRITERS: dict[str, Callable[[Any], bytes]] = {
    ".jsonl": json_lines,
    ".json": as_json,
    ".csv": csv_rows,
    ".parquet": parquet,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_problem_file(suffix: str) -> None:
    path = Path(f"mine{suffix}")

    @given(
        content=file_contents(ROWS, WRITERS[suffix]),
        grader=st.sampled_from(plugins.names("graders")),
        skip_bad_rows=st.booleans(),
    )
    def check(content: bytes, grader: str, skip_bad_rows: bool) -> None:
        path.write_bytes(content)
        (task,) = resolve_tasks([str(path)], grader)
        one_line(lambda: task.problems(skip_bad_rows=skip_bad_rows), path)
        assert files_of(Path.cwd()) == {Path.cwd() / path: content}

    check()


@pytest.mark.parametrize("task", ["gpqa", "olympiadbench", "gsm8k"])
def test_rows_of_a_task(task: str) -> None:
    examples = Path(__file__).parents[1] / "data" / "tasks" / f"{task}.jsonl"
    rows = [json.loads(line) for line in examples.read_text().splitlines()]
    path = Path(f"{task}.jsonl")

    @given(content=mutated(rows).map(json_lines), skip_bad_rows=st.booleans())
    def check(content: bytes, skip_bad_rows: bool) -> None:
        path.write_bytes(content)
        (named,) = resolve_tasks([task])
        one_line(lambda: named.problems(data=path, skip_bad_rows=skip_bad_rows), path)

    check()


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json"])
def test_a_file_of_prompts(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, vase = Path(f"mine{suffix}"), Shell(capsys)
    prompts = b"Hello.\r\nHow are you?\n\nBye."

    @given(content=mangled(prompts) if suffix == ".txt" else file_contents(ROWS, WRITERS[suffix]))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        message = vase.refused("run", "--input", path, "--zoo", "nowhere")
        assert str(path) in message or message.startswith("--zoo nowhere: not a folder")

    check()
