"""Local problem files: formats, aliases, and what is said of a row that cannot be used."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from vase_cli import plugins
from vase_cli.errors import ConfigError, DataError
from vase_cli.tasks._files import read_rows
from vase_cli.tasks.base import ProblemSet, resolve_tasks

FIXTURES = Path(__file__).parents[1] / "data" / "tasks"
GOOD = '{"id": "a", "question": "1 + 1?", "answer": "2"}'
ALSO_GOOD = '{"id": "z", "question": "2 + 2?", "answer": "4"}'


@pytest.fixture(autouse=True)
def no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VASE_DATA", raising=False)


def read(path: Path, content: str | bytes, grader: str = "math", **arguments: Any) -> ProblemSet:
    """The problems of a file with this content."""
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    (task,) = resolve_tasks([str(path)], grader=grader)
    return task.problems(**arguments)


def pairs(found: ProblemSet) -> list[tuple[str, str]]:
    return [(problem.id, problem.answer) for problem in found.problems]


# --- formats ------------------------------------------------------------------------------------------------

ROWS = [{"id": "a", "problem": '1, "one"\nor 2?', "answer": "2"}, {"id": "b", "problem": "π?", "answer": "3.14"}]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_format_reads_alike(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"aime25{suffix}"
    write_rows(path, ROWS)
    found = plugins.load("tasks", "aime25").problems(data=path)
    assert pairs(found) == [("a", "2"), ("b", "3.14")]
    assert found.problems[0].prompt.startswith('1, "one"\nor 2?\n')
    assert found.problems[1].prompt.startswith("π?\n")


def test_parquet_numbers_and_unread_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    write_rows(path, [{"Problem": "1 + 1?", "Answer": 2.0, "index": 7, "trace": {"deep": [1]}}])
    (task,) = resolve_tasks([str(path)], grader="math")
    assert pairs(task.problems()) == [("7", "2")]


def test_json_lines_under_the_name_json(tmp_path: Path) -> None:
    assert pairs(read(tmp_path / "mine.json", f"{GOOD}\n{ALSO_GOOD}\n")) == [("a", "2"), ("z", "4")]


@pytest.mark.parametrize("question", ["question", "problem", "prompt", "Question", "PROBLEM"])
@pytest.mark.parametrize("key", ["id", "problem_id", "unique_id", "index", "problem_idx", "Record ID"])
def test_field_aliases(tmp_path: Path, question: str, key: str) -> None:
    row = {key: "p/7", question: "1 + 1?", "answer": "2"}
    found = read(tmp_path / "mine.jsonl", json.dumps(row))
    assert pairs(found) == [("p/7", "2")]
    assert found.problems[0].prompt.startswith("1 + 1?\n")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("18", "18"),
        (" 18 \n", "18"),
        ("two steps\n#### 18", "18"),
        ("#### 3 of them\n#### 1,800", "1,800"),
        (18, "18"),
        (18.0, "18"),
        (0.5, "0.5"),
        (0, "0"),
        (-3, "-3"),
        (10**30, str(10**30)),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
    ],
)
def test_answers(tmp_path: Path, answer: object, expected: str) -> None:
    found = read(tmp_path / "mine.jsonl", json.dumps({"question": "How many?", "answer": answer}))
    assert pairs(found) == [("0", expected)]


def test_a_question_that_looks_like_a_format_stays_as_it_is(tmp_path: Path) -> None:
    row = {"question": "Of {question} and {0}, \\boxed{} which?", "answer": "2"}
    prompt = read(tmp_path / "mine.jsonl", json.dumps(row)).problems[0].prompt
    assert prompt.splitlines()[0] == "Of {question} and {0}, \\boxed{} which?"


# --- what is tolerated --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_byte_order_mark_line_ends_and_blank_lines(
    tmp_path: Path, suffix: str, start: bytes, newline: str, end: str
) -> None:
    text = (f"{GOOD}\n\n  \n{ALSO_GOOD}" + end).replace("\n", newline)
    assert pairs(read(tmp_path / f"mine{suffix}", start + text.encode())) == [("a", "2"), ("z", "4")]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_byte_order_mark_and_line_ends(tmp_path: Path, start: bytes, newline: str) -> None:
    text = 'question,answer\n"1\n+ 1?",2\n\n2 + 2?,4\n'.replace("\n", newline)
    assert pairs(read(tmp_path / "mine.csv", start + text.encode())) == [("0", "2"), ("1", "4")]


def test_a_long_column_beside_is_no_obstacle(tmp_path: Path) -> None:
    text = "question,answer,generation\n1 + 1?,2," + "x" * 300_000 + "\n"
    assert pairs(read(tmp_path / "mine.csv", text)) == [("0", "2")]


def test_an_unread_field_may_be_anything(tmp_path: Path) -> None:
    row = b'{"question": "1 + 1?", "answer": "2", "generation": "a\\u0000b \\ud800", "id": null}'
    assert pairs(read(tmp_path / "mine.jsonl", row)) == [("0", "2")]


# --- bad rows -----------------------------------------------------------------------------------------------

BAD_ROWS = {
    "bad_utf8": (b'{"question": "\xff?", "answer": "2"}', "bad UTF-8 at byte 15 of the line"),
    "latin1": ('{"question": "é?", "answer": "2"}'.encode("latin-1"), "bad UTF-8 at byte 15 of the line"),
    "bom_inside": (b"\xef\xbb\xbf" + GOOD.encode(), "a byte-order mark inside the file (two files joined?)"),
    "nul_byte": (b'{"question": "a\x00b", "answer": "2"}', "holds a NUL byte"),
    "nul_escape": (b'{"question": "a\\u0000b", "answer": "2"}', "field 'question' holds a NUL character"),
    "surrogate": (b'{"question": "\\ud800", "answer": "2"}', "field 'question' is not valid text"),
    "not_json": (b"question: 1 + 1?", "invalid JSON at column 1"),
    "half_json": (b'{"question": "1 + 1?", "answ', "invalid JSON at column 24"),
    "trailing_comma": (b'{"question": "1 + 1?", "answer": "2",}', "invalid JSON at column"),
    "endless_brackets": (b"[" * 200_000, "invalid JSON"),
    "endless_number": (b'{"question": "1 + 1?", "answer": ' + b"1" * 5000 + b"}", "invalid JSON"),
    "list": (b'["1 + 1?", "2"]', "not an object with fields"),
    "number": (b"7", "not an object with fields"),
    "null": (b"null", "not an object with fields"),
    "no_question": (b'{"answer": "2"}', "no field 'question' (or 'problem' or 'prompt')"),
    "null_question": (b'{"question": null, "answer": "2"}', "no field 'question'"),
    "empty_question": (b'{"problem": " \\n", "answer": "2"}', "field 'problem' is empty"),
    "question_list": (b'{"prompt": [{"role": "user"}], "answer": "2"}', "field 'prompt' is a list, not text"),
    "question_number": (b'{"question": 3, "answer": "2"}', "field 'question' is a number, not text"),
    "no_answer": (b'{"question": "1 + 1?"}', "no field 'answer'"),
    "null_answer": (b'{"question": "1 + 1?", "answer": null}', "no field 'answer'"),
    "empty_answer": (b'{"question": "1 + 1?", "answer": ""}', "field 'answer' is empty"),
    "blank_answer": (b'{"question": "1 + 1?", "answer": "  "}', "field 'answer' is empty"),
    "nothing_after_hashes": (b'{"question": "1 + 1?", "answer": "so ####"}', "field 'answer' has nothing after '####'"),
    "answer_list": (b'{"question": "1 + 1?", "answer": ["2"]}', "field 'answer' is a list, not text or a number"),
    "answer_object": (b'{"question": "1 + 1?", "answer": {}}', "field 'answer' is an object, not text or a number"),
    "answer_bool": (b'{"question": "1 + 1?", "answer": true}', "field 'answer' is true or false, not text or a number"),
    "answer_nan": (b'{"question": "1 + 1?", "answer": NaN}', "field 'answer' is not a number (nan)"),
    "answer_inf": (b'{"question": "1 + 1?", "answer": 1e999}', "field 'answer' is not a number (inf)"),
    "same_id": (b'{"id": "a", "question": "1 + 2?", "answer": "3"}', "duplicate id 'a', first at "),
    "id_newline": (b'{"id": "a\\nb", "question": "1 + 2?", "answer": "3"}', "field 'id' holds a line break"),
    "id_nul": (b'{"id": "a\\u0000", "question": "1 + 2?", "answer": "3"}', "field 'id' holds a NUL character"),
    "id_empty": (b'{"id": "", "question": "1 + 2?", "answer": "3"}', "field 'id' is empty"),
    "id_list": (b'{"id": [1], "question": "1 + 2?", "answer": "3"}', "field 'id' is a list, not text or a number"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_row_is_named_by_line(tmp_path: Path, kind: str) -> None:
    row, reason = BAD_ROWS[kind]
    path = tmp_path / "mine.jsonl"
    content = GOOD.encode() + b"\n\n" + row + b"\n" + ALSO_GOOD.encode() + b"\n"
    with pytest.raises(DataError) as caught:
        read(path, content)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: {reason}")
    assert message.endswith("--skip-bad-rows")
    assert len(message.splitlines()) == 1

    found = read(path, content, skip_bad_rows=True)
    assert pairs(found) == [("a", "2"), ("z", "4")]
    assert len(found.skipped_rows) == 1
    assert found.skipped_rows[0].startswith(f"{path}:3: {reason}")


def test_duplicate_says_where_the_first_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.jsonl:2: duplicate id 'a', first at .*mine\.jsonl:1;"):
        read(tmp_path / "mine.jsonl", f"{GOOD}\n{GOOD}")


def test_a_number_and_its_text_are_the_same_id(tmp_path: Path) -> None:
    rows = [{"id": 1, "question": "1?", "answer": 1}, {"id": "1", "question": "2?", "answer": 2}]
    with pytest.raises(DataError, match="duplicate id '1'"):
        read(tmp_path / "mine.jsonl", "\n".join(json.dumps(row) for row in rows))


def test_cut_last_line(tmp_path: Path) -> None:
    content = f"{GOOD}\n{ALSO_GOOD[:-9]}"
    with pytest.raises(DataError, match=r"mine\.jsonl:2: the last line is cut off in the middle of a row"):
        read(tmp_path / "mine.jsonl", content)
    assert pairs(read(tmp_path / "mine.jsonl", content, skip_bad_rows=True)) == [("a", "2")]


def test_cut_inside_a_character(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.jsonl:2: bad UTF-8"):
        read(tmp_path / "mine.jsonl", f'{GOOD}\n{{"question": "π'.encode()[:-1])


def test_several_bad_rows_are_counted(tmp_path: Path) -> None:
    content = f'{GOOD}\n{{}}\nnot json\n{ALSO_GOOD}\n{{"question": "x"}}\n'
    with pytest.raises(DataError, match=r"mine\.jsonl:2: no field 'question'.* \(and 2 more bad rows\); fix"):
        read(tmp_path / "mine.jsonl", content)
    found = read(tmp_path / "mine.jsonl", content, skip_bad_rows=True)
    lines = [line.split(":")[1] for line in found.skipped_rows]
    assert lines == ["2", "3", "5"]


def test_row_index_counts_the_bad_rows_too(tmp_path: Path) -> None:
    # Mending a row must not give the rows after it other ids.
    content = '{"question": "a", "answer": 1}\n{"question": "b"}\n\n{"question": "c", "answer": 3}'
    assert pairs(read(tmp_path / "mine.jsonl", content, skip_bad_rows=True)) == [("0", "1"), ("2", "3")]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_empty_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    with pytest.raises(DataError, match=rf"no usable problem in .*mine\{suffix}: it holds no rows"):
        read(tmp_path / f"mine{suffix}", content)


def test_all_rows_bad(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no usable problem in .*: all 2 rows are bad, the first: .*mine\.jsonl:1: "):
        read(tmp_path / "mine.jsonl", "{}\n{}", skip_bad_rows=True)


@pytest.mark.parametrize(
    ("content", "where", "reason"),
    [
        ('[\n {"question": "a", "answer": 1},\n {\n  "question": "b"}\n]', ":3: ", "no field 'answer'"),
        ('[{"question": "a", "answer": 1},\n\n\n7]', ":4: ", "not an object with fields"),
        (
            '[\n {"question": "a",\n "answer": 1},\n {"question": "b", "answer": []}]',
            ":4: ",
            "field 'answer' is a list",
        ),
    ],
)
def test_json_rows_are_named_by_line(tmp_path: Path, content: str, where: str, reason: str) -> None:
    path = tmp_path / "mine.json"
    with pytest.raises(DataError) as caught:
        read(path, content)
    assert str(caught.value).startswith(f"{path}{where}{reason}")
    assert pairs(read(path, content, skip_bad_rows=True)) == [("0", "1")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"question": "a", "answer": 1},\n{"question', r"mine\.json:2: invalid JSON at column"),
        (b'[{"question": "a", "answer": 1},\n{"question": "\xff"}]', r"mine\.json:2: byte 0xff is not UTF-8"),
        (b"[" * 200_000, r"mine\.json: invalid JSON"),
    ],
)
def test_broken_json_file(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "mine.json", content, skip_bad_rows=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"question,answer\n1 + 1?,2\n2 + 2?\n", r"mine\.csv:3: no field 'answer'"),
        (b"question,answer\n1 + 1?,2\n2 + 2?,\n", r"mine\.csv:3: field 'answer' is empty"),
        (b"question,answer\n1 + 1?,2\na,b,c\n", r"mine\.csv:3: 3 fields, the header has 2"),
        (b'question,answer\n"1\n+ 1?",2\nb\xff,3\n', r"mine\.csv:4: field 'question' is not valid text \(bad UTF-8"),
        (b"question,answer\n1 + 1?,2\na\x00b,3\n", r"mine\.csv:3: field 'question' holds a NUL"),
        (b'question,answer\n1 + 1?,2\n"cut off', r"mine\.csv:3: the last row is cut off in a quoted field"),
        (b'question,answer\n1 + 1?,2\n"a"b,2\n', r"mine\.csv:3: invalid CSV"),
    ],
)
def test_bad_csv_row(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.csv"
    with pytest.raises(DataError, match=message):
        read(path, content)
    assert pairs(read(path, content, skip_bad_rows=True)) == [("0", "2")]


def test_csv_header(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.csv:1: the header names 'answer' twice"):
        read(tmp_path / "mine.csv", "question,answer,answer\na,1,2\n")
    with pytest.raises(DataError, match=r"mine\.csv:2: no field 'question'"):
        read(tmp_path / "mine.csv", "a,b\n1,2\n")


def test_not_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.parquet: not a readable Parquet file: ") as caught:
        read(tmp_path / "mine.parquet", b"PAR1 or so")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"PAR1" + bytes(100) + b"PAR1", b"PAR1" + bytes(range(256)) + b"PAR1", b""])
def test_corrupt_parquet_is_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"^.*mine\.parquet: not a readable Parquet file: .*$"):
        read(tmp_path / "mine.parquet", content)


def test_an_integer_of_hundreds_of_digits_is_one_line(tmp_path: Path) -> None:
    content = '{"question": "q", "answer": -1' + "0" * 400 + "}"
    with pytest.raises(DataError, match=r"mine\.jsonl:1: field 'answer' is a number of 401 digits; write it as text"):
        read(tmp_path / "mine.jsonl", content)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_pipe_is_no_problem_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"gsm8k{suffix}"
    os.mkfifo(path)
    refused = pytest.raises(DataError, match=rf"^cannot read {path}: it is a pipe or a device; ")
    (own,), (gsm8k,) = resolve_tasks([str(path)], grader="math"), resolve_tasks(["gsm8k"])
    with refused:
        own.problems()
    with refused:
        gsm8k.problems(data=path)
    with refused:
        list(read_rows(path))


def test_bad_parquet_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    write_rows(path, [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": None}])
    (task,) = resolve_tasks([str(path)], grader="math")
    with pytest.raises(DataError, match=r"mine\.parquet row 2: no field 'answer'"):
        task.problems()


@pytest.mark.parametrize("missing", ["Question", "Correct Answer", "Incorrect Answer 2"])
def test_gpqa_row_without_a_column(tmp_path: Path, missing: str) -> None:
    rows = [json.loads(line) for line in (FIXTURES / "gpqa.jsonl").read_text().splitlines()]
    del rows[1][missing]
    (tmp_path / "gpqa.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DataError, match=rf"gpqa\.jsonl:2: no field '{missing.lower()}'"):
        plugins.load("tasks", "gpqa").problems(data=tmp_path)


@pytest.mark.parametrize("final_answer", [[], ["$ $"], "", ["", ""]])
def test_olympiadbench_row_without_answer(tmp_path: Path, final_answer: object) -> None:
    (tmp_path / "olympiadbench.jsonl").write_text(json.dumps({"question": "x?", "final_answer": final_answer}))
    with pytest.raises(DataError, match=r"olympiadbench\.jsonl:1: field 'final_answer' is empty"):
        plugins.load("tasks", "olympiadbench").problems(data=tmp_path)


# --- limit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"limit must be 1 or more, not {limit}"):
        plugins.load("tasks", "gsm8k").problems(data=FIXTURES, limit=limit)


def test_limit_keeps_the_first(tmp_path: Path) -> None:
    task = plugins.load("tasks", "gsm8k")
    whole = task.problems(data=FIXTURES).problems
    assert task.problems(data=FIXTURES, limit=2).problems == whole[:2]
    assert task.problems(data=FIXTURES, limit=99).problems == whole
