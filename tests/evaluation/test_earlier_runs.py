"""A model that changed makes another run, which says what has changed since the one before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.cli_examples import SMALL, Shell, open_shell, problem_rows, write_rows
from safetensors.torch import load_file, save_file

from vase_cli.evaluation.earlier_runs import why_anew
from vase_cli.runs.schema import Run

RUNS = Path("runs")


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    write_rows(Path("mine.jsonl"), problem_rows(1))
    return shell


@pytest.fixture
def model(model_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(model_folder("qwen3"), tmp_path / "model")


def evaluate(vase: Shell, model: Path, *more: object) -> tuple[Path, list[str], bool]:
    """The run's folder, the lines that say why it is new, and whether it was there already."""
    command = ("eval", "mine.jsonl", "--grader", "number", "--model", model, *SMALL, "--max-new-tokens", 2)
    outcome = vase(*command, *more)
    folder = RUNS / outcome.lines()[0]
    notes = [line for line in outcome.err.splitlines() if line.startswith("a new run: ")]
    return folder, notes, "stored already" in outcome.err


def edit(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def edit_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


CHANGES: dict[str, Callable[[Path], object]] = {
    "config.json": lambda folder: edit(folder / "config.json", rms_norm_eps=0.5),
    "generation_config.json": lambda folder: edit(folder / "generation_config.json", eos_token_id=[1, 2, 3]),
    "chat_template.jinja": lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}"),
    "tokenizer.json": lambda folder: (folder / "tokenizer.json").write_text(
        (folder / "tokenizer.json").read_text().replace('"a": 1,', '"a": 2,').replace('"b": 2,', '"b": 1,')
    ),
    "model.safetensors": edit_weights,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_another_run_and_is_named(vase: Shell, model: Path, name: str) -> None:
    first, notes, stored = evaluate(vase, model)
    assert (notes, stored) == ([], False)
    assert evaluate(vase, model) == (first, [], True)
    CHANGES[name](model)
    second, notes, stored = evaluate(vase, model)
    assert second != first and not stored
    assert notes == [f"a new run: {name} of the model has changed since {first}"]
    assert evaluate(vase, model) == (second, [], True)


def test_several_files_are_named_and_what_does_not_matter_is_not(vase: Shell, model: Path) -> None:
    first, _, _ = evaluate(vase, model)
    (model / "README.md").write_text("what it is")
    assert evaluate(vase, model) == (first, [], True)
    for change in CHANGES.values():
        change(model)
    named = "chat_template.jinja, config.json, generation_config.json and 2 more files"
    assert evaluate(vase, model)[1] == [f"a new run: {named} of the model have changed since {first}"]


def test_other_settings_are_not_compared(vase: Shell, model: Path) -> None:
    evaluate(vase, model)
    CHANGES["config.json"](model)
    _, notes, _ = evaluate(vase, model, "--seed", 3)
    assert notes == []


def test_a_folder_that_cannot_be_read_is_no_earlier_run(vase: Shell, model: Path) -> None:
    first, _, _ = evaluate(vase, model)
    stem = first.name.rpartition("-")[0]
    for number, content in enumerate((None, b"{", b"[]", b'{"config": 3}', b'{"config": {"a": NaN}}', b"[" * 99999)):
        (folder := RUNS / f"{stem}-0000000{number}").mkdir()
        if content is not None:
            (folder / "run.json").write_bytes(content)
    CHANGES["config.json"](model)
    assert evaluate(vase, model)[1] == [f"a new run: config.json of the model has changed since {first}"]


def test_of_several_runs_the_newest_is_named(vase: Shell, model: Path) -> None:
    first, _, _ = evaluate(vase, model)
    CHANGES["config.json"](model)
    second, _, _ = evaluate(vase, model)
    for folder, date in ((first, "2026-01-02"), (second, "2026-01-01")):
        edit(folder / "run.json", started_at=f"{date}T00:00:00+00:00")
    CHANGES["tokenizer.json"](model)
    assert evaluate(vase, model)[1] == [
        f"a new run: config.json, tokenizer.json of the model have changed since {first}"
    ]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"revision": None}, "2" * 40, "runs/a-00000000 is of a commit that it does not name of the model"),
        ({"revision": "1" * 40}, "2" * 40, f"runs/a-00000000 is of revision {'1' * 40} of the model"),
        ({"revision": "2" * 40}, "2" * 40, None),
    ],
)
def test_another_commit_of_a_hub_model_is_said(
    vase: Shell, before: dict[str, object], now: str, said: str | None
) -> None:
    config = {"model": "me/tiny", "weights": None, "seed": 0}
    (folder := RUNS / "a-00000000").mkdir(parents=True)
    stored = {"config": config | before, "started_at": "2026-01-01"}
    (folder / "run.json").write_text(json.dumps(stored))
    run = Run.model_construct(name="a-11111111", config=config | {"revision": now})
    assert why_anew(RUNS, run) == ([] if said is None else [f"a new run: {said}"])
