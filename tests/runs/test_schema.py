"""The schema is the one place that says what the files hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.run_examples import a_record, a_run, a_task, measured, open_run

from vase_cli.runs import environment as environment_module
from vase_cli.runs.environment import environment
from vase_cli.runs.schema import COMPLETION, RUN, RUN_TASK, SCHEMA, SESSION, Key, check, schema_json, schema_text
from vase_cli.runs.stored import load_run


def test_what_is_written_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        folder.append(a_record())
        folder.record_session(measured())
    stored = load_run(folder.path)
    for keys, value in (
        (RUN, stored.run),
        (RUN_TASK, stored.run["tasks"][0]),
        (COMPLETION, stored.records["gsm8k/0/0"]),
        (SESSION, stored.sessions[0]),
    ):
        assert set(value) == {key.name for key in keys}


def test_every_key_is_documented_once_with_a_known_type() -> None:
    for title, keys in SCHEMA.items():
        names = [key.name for key in keys]
        assert len(set(names)) == len(names), title
        for key in keys:
            assert key.meaning and "\n" not in key.meaning
            assert set(key.type.split(" | ")) <= {"string", "integer", "number", "boolean", "object", "array", "null"}
            if key.name.endswith("_s"):
                assert key.unit in ("s", "tokens/s"), key.name
            if "_bytes" in key.name:
                assert key.unit == "bytes", key.name


def test_the_text_and_the_json_hold_every_key() -> None:
    text, data = schema_text(), json.loads(schema_json())
    assert list(data) == list(SCHEMA)
    for title, keys in SCHEMA.items():
        block = text[text.index(f"{title}\n") :].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in block[1:]] == [key.name for key in keys]
        assert [key["name"] for key in data[title]] == [key.name for key in keys]
    assert "decode_tokens_per_s" in text and "[s; timing]" in text and "[stop | length | error]" in text
    latency = next(key for key in data["completions.jsonl"] if key["name"] == "latency_s")
    assert latency["unit"] == "s" and latency["timing"] is True


@pytest.mark.parametrize(
    ("type_", "right", "wrong"),
    [
        ("string", ["", "a"], [1, None, ["a"]]),
        ("integer", [0, -5], [1.0, True, "1", None]),
        ("number", [0, 0.5], [False, "1", None]),
        ("boolean", [True, False], [0, 1, None]),
        ("object", [{}, {"a": 1}], [[], "a", None]),
        ("array", [[], (1,)], [{}, "a"]),
        ("integer | null", [1, None], [True, 1.5]),
    ],
)
def test_types_are_those_of_json(type_: str, right: list[object], wrong: list[object]) -> None:
    keys = (Key("key", type_, "", "a key"),)
    assert [check(keys, {"key": value}) for value in right] == [""] * len(right)
    assert all(check(keys, {"key": value}).startswith("key is ") for value in wrong)


def test_missing_and_unknown_keys_are_all_named() -> None:
    keys = (Key("a", "string", "", "a"), Key("b", "string", "", "b"))
    assert check(keys, {"c": 1, "d": 2}) == "missing: a, b; unknown: c, d"
    assert check(keys, None) == "not a JSON object"


def test_the_environment_completes_a_run_json() -> None:
    found = environment(["NVIDIA H200"])
    assert check(RUN, {**a_run(a_task()), **found}) == ""
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["versions"].keys() == {"python", "torch", "transformers", "flash-attn", "datasets", "math-verify"}
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
    found = environment_module._git(checkout)
    assert found == {"commit": commit, "dirty": False}
    (checkout / "notes.txt").write_text("not part of the program")
    assert environment_module._git(checkout) == {"commit": commit, "dirty": False}
    (checkout / "vase_cli" / "new_method.py").write_text("")
    assert environment_module._git(checkout) == {"commit": commit, "dirty": True}
    # An installed package inside someone's repository is not of that repository.
    installed = checkout / "venv" / "site-packages"
    installed.mkdir(parents=True)
    assert environment_module._git(installed) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert environment_module._git(checkout) is None


def test_reports_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import vase_cli.evaluation.summary, vase_cli.runs.folder, vase_cli.runs.environment\n"
        "import vase_cli.evaluation.repetition, vase_cli.evaluation.accuracy\n"
        "print(sorted({'torch', 'transformers', 'rich', 'datasets', 'math_verify', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
