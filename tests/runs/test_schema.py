"""The schema is the one place that says what the files hold."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from helpers.run_examples import a_run, a_sample, measured, open_run, store
from pydantic import ValidationError

from vase_cli.runs.environment import environment
from vase_cli.runs.folder import StoredRun
from vase_cli.runs.schema import SCHEMA, Record, Run, Sample, described, fault, key, schema_json, schema_text


def test_what_is_written_has_exactly_the_documented_keys_in_their_order(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        store(folder, a_sample())
        folder.record_session(measured())
    stored = StoredRun(folder.path)
    assert stored.run == a_run() and stored.samples == {"gsm8k/0/0": a_sample()}
    names = ("run.json", "completions.jsonl", "sessions.jsonl")
    first_lines = [json.loads((folder.path / names[0]).read_text())]
    first_lines += [json.loads((folder.path / name).read_text().splitlines()[0]) for name in names[1:]]
    for name, value in zip(names, first_lines, strict=True):
        assert list(value) == [entry["name"] for entry in described(SCHEMA[name])]


def test_every_key_is_documented_once_with_a_known_type() -> None:
    for record in SCHEMA.values():
        for entry in described(record):
            assert entry["meaning"] and "\n" not in entry["meaning"]
            types = {"string", "integer", "number", "boolean", "object", "array", "null"}
            assert set(entry["type"].split(" | ")) <= types
            if entry["name"].endswith("_s"):
                assert entry["unit"] in ("s", "tokens/s"), entry
            if "_bytes" in entry["name"]:
                assert entry["unit"] == "bytes", entry


def test_the_text_and_the_json_hold_every_key() -> None:
    text, data = schema_text(), json.loads(schema_json())
    assert list(data) == list(SCHEMA)
    for title, record in SCHEMA.items():
        block = text[text.index(f"{title}\n") :].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in block[1:]] == list(record.model_fields)
        assert [entry["name"] for entry in data[title]] == list(record.model_fields)
    assert "decode_tokens_per_s" in text and "[s; timing]" in text and "[stop | length | error]" in text
    keys = {entry["name"]: entry for entry in data["completions.jsonl"]}
    assert keys["latency_s"] == {
        "name": "latency_s",
        "type": "number",
        "unit": "s",
        "meaning": "from the sample's admission to its last token",
        "values": [],
        "timing": True,
    }
    grades = {entry["name"]: entry for entry in data["grades.jsonl"]}
    assert (grades["grade"]["type"], grades["extracted"]["type"]) == ("string", "string | null")
    assert grades["grade"]["values"] == grades["published"]["values"] == ["correct", "wrong", "no_answer", "error"]
    assert grades["grade_limit"]["values"] == ["time", "length", None]


class Example(Record):
    """One key of each kind."""

    text: str = key("a text")
    count: int | None = key("a count")
    share: float = key("a share")
    flag: bool = key("a flag")
    facts: dict[str, Any] = key("facts")
    names: list[str] = key("names")
    kind: Literal["a", "b"] = key("one of two")


RIGHT = {"text": "", "count": None, "share": 0.5, "flag": True, "facts": {"a": 1}, "names": ["a"], "kind": "a"}


def fault_of(value: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        Example.model_validate(value)
    return fault(error.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("text", value) for value in (1, None, ["a"])),
        *(("count", value) for value in (1.0, True, "1")),
        *(("share", value) for value in (False, "1", None, float("nan"), float("inf"))),
        *(("flag", value) for value in (0, 1, None)),
        *(("facts", value) for value in ([], "a", None)),
        *(("names", value) for value in ({}, "a", None)),
        *(("kind", value) for value in ("c", 1, None)),
    ],
)
def test_types_are_those_of_json(name: str, wrong: object) -> None:
    assert Example.model_validate(RIGHT).model_dump() == RIGHT
    message = fault_of({**RIGHT, name: wrong})
    assert message.startswith(f"{name} is {wrong!r}, not ") and "\n" not in message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(fault_of({**RIGHT, "count": "x" * 10_000})) < 100


def test_missing_and_unknown_keys_are_all_named() -> None:
    some = {name: value for name, value in RIGHT.items() if name not in ("text", "flag")}
    assert fault_of({**some, "c": 1, "d": 2}) == "missing: text, flag; unknown: c, d"
    with pytest.raises(ValidationError) as error:
        Run(**{**a_run().model_dump(), "tasks": [{}]})
    assert fault(error.value).startswith("missing: tasks.0.name, tasks.0.version")


def test_records_do_not_change() -> None:
    sample = a_sample()
    with pytest.raises(ValidationError, match="frozen"):
        sample.grade = "wrong"
    assert sample == Sample(**dict(sample))


def test_the_environment_completes_a_run_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ["NVIDIA H200"][index])
    found = environment()
    Run(**{**a_run().model_dump(), **found})
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["versions"].keys() == {
        "python",
        "torch",
        "triton",
        "transformers",
        "flash-attn",
        "datasets",
        "math-verify",
    }
    assert found["hardware"]["gpus"] == ["NVIDIA H200"]
    assert found["hardware"]["cores"] >= 1 and found["hardware"]["ram_bytes"] > 2**20 and found["hardware"]["cpu"]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_of_the_checkout_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout, other = tmp_path / "checkout", tmp_path / "other"
    for folder in (checkout, other):
        (folder / "vase_cli").mkdir(parents=True)
        (folder / "pyproject.toml").write_text("")
        (folder / "vase_cli" / "a.py").write_text(folder.name)
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "first")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as inside a git hook
    commit = subprocess.run(
        ["git", "--git-dir", str(checkout / ".git"), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = environment(checkout=checkout)["git"]
    assert found == {"commit": commit, "dirty": False}
    (checkout / "notes.txt").write_text("not part of the program")
    assert environment(checkout=checkout)["git"] == {"commit": commit, "dirty": False}
    (checkout / "vase_cli" / "new_method.py").write_text("")
    assert environment(checkout=checkout)["git"] == {"commit": commit, "dirty": True}
    # An installed package inside someone's repository is not of that repository.
    installed = checkout / "venv" / "site-packages"
    installed.mkdir(parents=True)
    assert environment(checkout=installed)["git"] is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert environment(checkout=checkout)["git"] is None


def test_reports_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import vase_cli.evaluation.summary, vase_cli.runs.folder, vase_cli.runs.environment\n"
        "import vase_cli.evaluation.repetition, vase_cli.evaluation.accuracy\n"
        "print(sorted({'torch', 'transformers', 'rich', 'datasets', 'math_verify', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
