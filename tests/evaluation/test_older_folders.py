"""A run folder that an earlier version wrote is gone on with, graded and read as one of our own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_examples import Shell, only_run, open_shell, read_jsonl

from vase_cli.runs.folder import StoredRun, config_hash
from vase_cli.runs.schema import SampleText, described

(BEFORE,) = (Path(__file__).parents[1] / "data" / "runs_before").iterdir()
RUNS = Path("runs")
# The command that wrote it; the data are of a CPU.
COMMAND = (
    "eval", "--recipe", "tiny-reasoner", "--method", "snapkv", "--budget", "160", "--limit", "4", "--samples", "2",
    "--slots", "2", "--max-new-tokens", "260", "--device", "cpu",
)  # fmt: skip


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    shutil.copytree(BEFORE, RUNS / BEFORE.name)
    return shell


def without_timing(folder: Path) -> dict[str, dict[str, Any]]:
    timing = {entry["name"] for entry in described(SampleText) if entry["timing"]}
    records = read_jsonl(folder / "completions.jsonl")
    return {record["id"]: {key: record[key] for key in record if key not in timing} for record in records}


def summary(folder: Path) -> dict[str, Any]:
    """summary.json without the time, which was taken before the session was closed."""
    return {**json.loads((folder / "summary.json").read_text()), "wall_s": None}


def test_every_file_reads_as_it_was_written() -> None:
    stored = StoredRun(BEFORE)
    assert stored.notes == [] and len(stored.samples) == 8 and len(stored.sessions) == 1
    run = json.loads((BEFORE / "run.json").read_text())
    assert stored.run.model_dump() == run
    assert config_hash(stored.run.config) == run["config_hash"] == stored.run.config_hash
    assert [dict(session) for session in stored.sessions] == read_jsonl(BEFORE / "sessions.jsonl")
    for sample, line in zip(stored.samples.values(), read_jsonl(BEFORE / "completions.jsonl"), strict=True):
        assert {name: getattr(sample, name) for name in line} == line
        assert sample.published is None


def test_only_what_is_missing_is_computed(vase: Shell) -> None:
    vase(*COMMAND, "--out", "fresh").lines()
    fresh = only_run(Path("fresh"))
    assert fresh.name == BEFORE.name
    assert StoredRun(fresh).run.config_hash == StoredRun(BEFORE).run.config_hash
    anew, before = without_timing(fresh), without_timing(BEFORE)
    folder = RUNS / BEFORE.name
    path = folder / "completions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for torn in (b"", lines[-3][:100]):
        shutil.copy(BEFORE / "sessions.jsonl", folder)
        path.write_bytes(b"".join(lines[:-3]) + torn)
        outcome = vase(*COMMAND)
        assert outcome.lines()[0] == BEFORE.name
        assert "recurrence: 5 of 8 samples are stored already" in outcome.err
        assert ("ended in a cut line (100 bytes), which is left out" in outcome.err) == bool(torn)
        assert only_run(RUNS) == folder
        assert (folder / "run.json").read_bytes() == (BEFORE / "run.json").read_bytes()
        assert path.read_bytes().startswith(b"".join(lines[:-3]))
        first, second = read_jsonl(folder / "sessions.jsonl")
        assert [first] == read_jsonl(BEFORE / "sessions.jsonl") and second["samples"] == 3
        resumed = without_timing(folder)
        added = {json.loads(line)["id"] for line in lines[-3:]}
        assert {name: resumed[name] for name in added} == {name: anew[name] for name in added}
        # Texts may differ in their bits from machine to machine; what was asked may not.
        asked = ("task", "problem_id", "sample", "seed", "prompt_tokens", "gold", "thought_open", "metadata")
        assert {name: [resumed[name][key] for key in asked] for name in resumed} == {
            name: [before[name][key] for key in asked] for name in before
        }


def test_grading_it_adds_the_published_verdicts_and_changes_no_text(vase: Shell) -> None:
    folder = RUNS / BEFORE.name
    outcome = vase("grade", folder)
    kept = f"0 grades changed; the old ones are in {folder / 'completions.jsonl'}"
    assert outcome.lines()[0] == BEFORE.name and outcome.err.splitlines() == [kept]
    assert {path.name for path in folder.iterdir()} == {path.name for path in BEFORE.iterdir()} | {
        ".lock", "grades.jsonl",
    }  # fmt: skip
    for name in ("run.json", "completions.jsonl", "sessions.jsonl"):
        assert (folder / name).read_bytes() == (BEFORE / name).read_bytes()
    before, graded = summary(BEFORE)["overall"], summary(folder)["overall"]
    assert {name: graded.get(name) for name in before if name != "strict_accuracy"} == {
        name: value for name, value in before.items() if name != "strict_accuracy"
    }
    assert graded["published_accuracy"] == before["accuracy"] and graded["boxed_accuracy"] == before["strict_accuracy"]
    assert all(sample.published == sample.grade for sample in StoredRun(folder).samples.values())
    assert vase("grade", folder).err.splitlines() == ["0 grades changed"]


def test_a_finished_one_is_shown_without_the_model(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vase_cli.engine.factory.load", None)
    (line,) = vase(*COMMAND, "--json").lines()
    shown, before = json.loads(line)["overall"], summary(BEFORE)["overall"]
    assert (shown["accuracy"], shown["published_accuracy"]) == (before["accuracy"], None)
    assert (RUNS / BEFORE.name / "completions.jsonl").read_bytes() == (BEFORE / "completions.jsonl").read_bytes()
