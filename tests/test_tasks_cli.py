"""``vase tasks list`` and ``vase tasks show``."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from vase_cli import plugins
from vase_cli.cli.tasks import app
from vase_cli.errors import ConfigError

NAMES = plugins.names("tasks")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_list_has_one_plain_row_for_each() -> None:
    header, *rows = run("list").splitlines()
    assert header.split() == ["NAME", "PROBLEMS", "GRADER", "SAMPLES", "GROUPS", "SOURCE"]
    assert [row.split()[0] for row in rows] == NAMES
    (gsm8k,) = [row.split() for row in rows if row.startswith("gsm8k ")]
    assert gsm8k == ["gsm8k", "1,319", "number", "4", "-", "openai/gsm8k"]
    assert not any(character in "".join(rows) for character in "\x1b│┃")


def test_list_json() -> None:
    rows = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert [row["name"] for row in rows] == NAMES
    by_name = {row["name"]: row for row in rows}
    assert by_name["aime26"]["problems"] == 30
    assert by_name["aime26"]["groups"] == ["aime"]
    assert [source["id"] for source in by_name["hmmt25"]["hub"]] == [
        "MathArena/hmmt_feb_2025",
        "MathArena/hmmt_nov_2025",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_show_has_all_facts(name: str) -> None:
    task = plugins.load("tasks", name)
    text = run("show", name)
    for source in task.hub:
        assert source.id in text and f"split {source.split}" in text
        assert source.revision is not None and source.revision in text
    for fact in (task.title, task.license, task.url, task.grader, f"{task.samples} per problem", "32,768", task.note):
        assert fact in text
    for rule in task.fallbacks:
        assert rule in text
    assert "step by step" in text and "How much is 2 + 2?" in text
    for policy in plugins.load("graders", task.grader).policies:
        assert policy in text


@pytest.mark.parametrize("name", NAMES)
def test_show_json(name: str) -> None:
    (line,) = run("show", name, "--json").splitlines()
    facts = json.loads(line)
    task = plugins.load("tasks", name)
    assert facts["hub"][0]["revision"] == task.hub[0].revision
    assert facts["fallbacks"] == list(task.fallbacks)
    assert facts["policies"] == list(plugins.load("graders", task.grader).policies)
    assert facts["example_prompt"].startswith("How much is 2 + 2?")


def test_show_says_what_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    task = plugins.load("tasks", "gsm8k")
    loose = dataclasses.replace(task, hub=(dataclasses.replace(task.hub[0], revision=None),))
    load = plugins.load
    monkeypatch.setattr(plugins, "load", lambda group, name: loose if group == "tasks" else load(group, name))
    assert "revision: not pinned" in " ".join(run("show", "gsm8k").split())


def test_show_says_what_is_gated() -> None:
    assert "hf auth login" in run("show", "gpqa")
    assert "hf auth login" not in run("show", "gsm8k")


def test_show_unknown() -> None:
    with pytest.raises(ConfigError, match="no task 'gsm9k'; did you mean 'gsm8k'"):
        run("show", "gsm9k")
