"""A calibration folder that an earlier version wrote is gone on with, found and shown as one of our own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import Outcome, Shell, only_run, open_shell, read_jsonl

from vase_cli.calibration.folder import read_calibration

BEFORE = Path(__file__).parents[1] / "data" / "calibrations_before"
OUT = Path("calibrations")
(NAME,) = (path.name for path in (BEFORE / "finished").iterdir())
# The command that wrote it; the data are of a CPU.
COMMAND = (
    "calibrate", "--recipe", "tiny-reasoner", "--task", "recurrence", "--problems", "3", "--max-new-tokens", "40",
    "--slots", "1", "--device", "cpu",
)  # fmt: skip
COUNTED = (
    "name",
    "weights",
    "shape",
    "problems",
    "texts",
    "truncated",
    "failed",
    "tokens",
    "counts",
    "lengths",
    "rule",
)


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return open_shell(tmp_path, monkeypatch, capsys)


def facts(folder: Path) -> dict[str, Any]:
    return read_calibration(folder)[0]


def test_a_finished_one_measures_nothing_anew_and_has_its_page(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(BEFORE / "finished", OUT)
    monkeypatch.setattr("vase_cli.engine.factory.load", None)
    outcome: Outcome = vase(*COMMAND)
    assert outcome.lines()[0] == NAME
    assert "recurrence: 3 of 3 samples are stored already" in outcome.err
    folder, before = only_run(OUT), BEFORE / "finished" / NAME
    for name in ("state.safetensors", "texts.jsonl", "validation.json"):
        assert (folder / name).read_bytes() == (before / name).read_bytes(), name
    assert {key: facts(folder)[key] for key in COUNTED} == {key: facts(before)[key] for key in COUNTED}
    tensors, tensors_before = (read_calibration(path)[1] for path in (folder, before))
    torch.testing.assert_close(tensors, tensors_before)
    assert "<title>" in (folder / "calibration.html").read_text(encoding="utf-8")
    assert (folder / "validation.png").is_file()


def test_a_killed_one_goes_on(vase: Shell) -> None:
    shutil.copytree(BEFORE / "stopped", OUT)
    texts = OUT / NAME / "texts.jsonl"
    left = texts.read_bytes()
    assert len(left.splitlines()) == 4 and not left.endswith(b"\n")  # one that no state counts, and a cut one
    outcome = vase(*COMMAND)
    outcome.lines()
    assert "recurrence: 2 of 3 samples are stored already" in outcome.err
    vase(*COMMAND, "--out", "fresh").lines()
    folder, fresh = only_run(OUT), only_run(Path("fresh"))
    assert folder.name == fresh.name == NAME
    resumed, anew, before = (read_jsonl(path / "texts.jsonl") for path in (folder, fresh, BEFORE / "finished" / NAME))
    assert resumed[:2] == [json.loads(line) for line in left.splitlines()[:2]]
    assert resumed[2:] == anew[2:]
    asked = ("index", "id", "problem_id", "prompt_token_ids")
    assert [[text[key] for key in asked] for text in resumed] == [[text[key] for key in asked] for text in before]
    for key in ("problems", "texts", "failed", "shape"):
        assert facts(folder)[key] == facts(fresh)[key] == facts(BEFORE / "finished" / NAME)[key]
