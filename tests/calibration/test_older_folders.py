"""A calibration folder that an earlier version wrote is read and shown as one of our own.

It names weights and no other files of the model. Where it says what they were, it is gone on with.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import Outcome, Shell, only_run, open_shell, read_jsonl

from vase_cli.calibration.folder import read_calibration
from vase_cli.cli.calibrate import write_page
from vase_cli.tensor_files import load_tensors, tensor_bytes

BEFORE = Path(__file__).parents[1] / "data" / "calibrations_before"
OUT = Path("calibrations")
(NAME,) = (path.name for path in (BEFORE / "finished").iterdir())
# The command that wrote it; the data are of a CPU.
COMMAND = (
    "calibrate", "--recipe", "tiny-reasoner", "--task", "recurrence", "--problems", "3", "--max-new-tokens", "40",
    "--slots", "1", "--device", "cpu",
)  # fmt: skip
COUNTED = (
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


def with_files(vase: Shell, kind: str) -> tuple[Path, Path]:
    """A folder of a ``kind``, as it would be had the earlier version named the model's files, and a fresh one."""
    vase(*COMMAND, "--out", "fresh").lines()
    fresh = only_run(Path("fresh"))
    folder = Path(shutil.copytree(BEFORE / kind / NAME, OUT / fresh.name))
    tensors, told = load_tensors(folder / "state.safetensors")
    told["config_hash"] = load_tensors(fresh / "state.safetensors")[1]["config_hash"]
    (folder / "state.safetensors").write_bytes(tensor_bytes(tensors, told))
    return folder, fresh


def test_a_finished_one_is_read_and_has_its_page(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BEFORE / "finished" / NAME, tmp_path / NAME))
    assert len(facts(folder)["weights"]) == 16 and "files" not in facts(folder)
    page, *_ = write_page(folder)
    assert f"weights {facts(folder)['weights']}" in page.read_text(encoding="utf-8")


def test_a_finished_one_measures_nothing_anew_and_has_its_page(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = with_files(vase, "finished")
    state = (folder / "state.safetensors").read_bytes()
    monkeypatch.setattr("vase_cli.engine.factory.load", None)
    outcome: Outcome = vase(*COMMAND)
    assert outcome.lines()[0] == folder.name
    assert "recurrence: 3 of 3 samples are stored already" in outcome.err
    assert only_run(OUT) == folder
    before = BEFORE / "finished" / NAME
    assert (folder / "state.safetensors").read_bytes() == state
    for name in ("texts.jsonl", "validation.json"):
        assert (folder / name).read_bytes() == (before / name).read_bytes(), name
    assert {key: facts(folder)[key] for key in COUNTED} == {key: facts(before)[key] for key in COUNTED}
    tensors, tensors_before = (read_calibration(path)[1] for path in (folder, before))
    torch.testing.assert_close(tensors, tensors_before)
    assert "<title>" in (folder / "calibration.html").read_text(encoding="utf-8")
    assert (folder / "validation.png").is_file()


def test_a_killed_one_goes_on(vase: Shell) -> None:
    folder, fresh = with_files(vase, "stopped")
    texts = folder / "texts.jsonl"
    left = texts.read_bytes()
    assert len(left.splitlines()) == 4 and not left.endswith(b"\n")  # one that no state counts, and a cut one
    outcome = vase(*COMMAND)
    outcome.lines()
    assert "recurrence: 2 of 3 samples are stored already" in outcome.err
    assert only_run(OUT) == folder
    resumed, anew, before = (read_jsonl(path / "texts.jsonl") for path in (folder, fresh, BEFORE / "finished" / NAME))
    assert resumed[:2] == [json.loads(line) for line in left.splitlines()[:2]]
    assert resumed[2:] == anew[2:]
    asked = ("index", "id", "problem_id", "prompt_token_ids")
    assert [[text[key] for key in asked] for text in resumed] == [[text[key] for key in asked] for text in before]
    for key in ("problems", "texts", "failed", "shape"):
        assert facts(folder)[key] == facts(fresh)[key] == facts(BEFORE / "finished" / NAME)[key]
