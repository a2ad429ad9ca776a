"""``vase calibrate`` as a user meets it: what it prints and writes, and every mistake in one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.cli_examples import (
    Shell,
    clean_environment,
    files_under,
    help_words,
    only_run,
    open_shell,
    problem_rows,
    read_jsonl,
    terminal,
    write_rows,
)

from vase_cli.calibration.folder import read_calibration
from vase_cli.cli import calibrate
from vase_cli.config.catalog import entry_from_folder
from vase_cli.models.identity import model_files
from vase_cli.models.tokenizer import load_tokenizer

OUTS = ("killed", "undisturbed")
PROBLEMS = 6
SMALL = ("--max-new-tokens", "24", "--slots", "3", "--problems", PROBLEMS, "--temperature", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def _page_is_drawn_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than the calibration: only the test of what is written draws them."""
    if request.function is not test_it_measures_writes_and_says_where:
        monkeypatch.setattr(calibrate, "write_page", lambda folder: [])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    opened = open_shell(tmp_path, monkeypatch, capsys)
    write_rows(tmp_path / "gsm8k.jsonl", gsm8k_rows())
    monkeypatch.setenv("VASE_DATA", str(tmp_path))
    return opened


def gsm8k_rows() -> list[dict[str, object]]:
    """Questions of very different lengths, in the task's own form."""
    return [{"question": row["question"], "answer": f"so\n#### {row['answer']}"} for row in problem_rows(2 * PROBLEMS)]


def user_zoo(tmp_path: Path) -> Path:
    return tmp_path / "config" / "vase" / "zoo"


def test_it_measures_writes_and_says_where(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    folder = model_folder("qwen3")
    outcome = shell("calibrate", "--model", folder, *SMALL)
    lines = outcome.lines()
    run = only_run(Path("calibrations"))
    assert lines[0] == run.name and run.name.startswith(f"{folder.name}-gsm8k-")
    assert lines[1].split()[:2] == ["layer", "median"]
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert lines[4].startswith("gsm8k: 6 texts, ") and "full cache" in lines[4]
    entry = user_zoo(tmp_path) / f"{folder.name}.yaml"
    said = outcome.err.splitlines()
    assert f"calibration folder: calibrations/{run.name}" in said
    for path in (entry, entry.with_suffix(".thresholds.yaml"), Path("calibrations") / run.name / "calibration.html"):
        assert f"written: {path}" in said and path.is_file()
    facts = json.loads((run / "calibration.json").read_text())
    assert (facts["task"], facts["rule"], facts["texts"], facts["problems"]) == ("gsm8k", "quantile:0.95", 6, 6)
    names = {path.name for path in files_under(run)}
    assert {"calibration.json", "calibration.safetensors", "texts.jsonl", "state.safetensors"} <= names


def test_the_zoo_knows_what_was_measured(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    folder = model_folder("qwen3")
    shell("calibrate", "--model", folder, *SMALL, "--rule", "mad:6").lines()
    name, thresholds = folder.name, user_zoo(tmp_path) / f"{folder.name}.thresholds.yaml"
    shown = [line.split() for line in shell("zoo", "show", name).lines()]
    rows = {row[0]: row[1:] for row in shown}
    (record,) = shell("zoo", "show", name, "--json").lines()
    assert json.loads(record)["threshold_facts"]["rule"] == "mad:6"
    assert rows["thresholds"][0] == str(thresholds)
    assert rows["thresholds.rule"] == ["mad:6", f"{thresholds}:{written_line(thresholds, 'rule')}"]
    assert rows["thresholds.task"][0] == "gsm8k" and rows["thresholds.problems"][0] == "6"
    assert rows["dense_tokens.gsm8k"][0] == str(round(json.loads(shell_facts())["lengths"]["gsm8k"]["mean"], 1))
    assert [line.split()[0] for line in shell("zoo", "list").lines()].count(name) == 1
    assert shell("zoo", "list").err == ""
    assert shell("zoo", "validate", name).lines()
    shell("zoo", "copy", name, "copied/").lines()
    assert {path.name for path in Path("copied").iterdir()} == {
        f"{name}.yaml", f"{name}.thresholds.yaml", f"{name}.thresholds.safetensors",
    }  # fmt: skip
    thresholds.with_suffix(".safetensors").unlink()
    refused = shell("zoo", "validate", name)
    assert refused.code == 2 and "no such file, and" in refused.err


def written_line(path: Path, key: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(f"{key}:"))


def shell_facts() -> str:
    return (only_run(Path("calibrations")) / "calibration.json").read_text()


def test_the_calibrated_model_is_used_by_its_name_and_goes_on(
    shell: Shell, model_folder: Callable[..., Path], tmp_path: Path
):
    folder = model_folder("qwen3")
    shell("calibrate", "--model", folder, *SMALL).lines()
    before = json.loads(shell_facts())
    again = shell("calibrate", "--model", folder.name, *SMALL, "--rule", "share:0.25", "--json")
    (line,) = again.lines()
    after = json.loads(line)
    assert after == json.loads(shell_facts()) and after["rule"] == "share:0.25"
    assert "gsm8k: 6 of 6 samples are stored already" in again.err
    assert {**after, "rule": 0, "date": 0, "example": 0} == {**before, "rule": 0, "date": 0, "example": 0}
    entry = (user_zoo(tmp_path) / f"{folder.name}.yaml").read_text()
    assert entry.count("thresholds:") == 1 and entry.count("path:") == 1


def test_a_terminal_gets_a_table(shell: Shell, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch, "stdout") as written:
        assert shell("calibrate", "--model", model_folder("qwen3"), *SMALL).code == 0
    (text,) = written
    assert "max/p50" in text and "─" in text and "Threshold by quantile:0.95" in text


def test_the_zoo_folder_that_is_named_takes_the_entry(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    (tmp_path / "zoo").mkdir()
    folder = model_folder("qwen3")
    (tmp_path / "zoo" / "mine.yaml").write_text(f"# Mine.\npath: {folder}\n")
    shell("calibrate", "--model", "mine", "--zoo", tmp_path / "zoo", *SMALL).lines()
    assert {path.name for path in (tmp_path / "zoo").iterdir()} == {
        "mine.yaml", "mine.thresholds.yaml", "mine.thresholds.safetensors",
    }  # fmt: skip
    assert (tmp_path / "zoo" / "mine.yaml").read_text().startswith("# Mine.\n")
    assert not user_zoo(tmp_path).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "quantile:2"], "rule 'quantile:2': quantile takes a share between 0 and 1"),
        (["--rule", "tail"], "rule 'tail': write quantile:0.95, mad:6 or share:0.25"),
        (["--problems", "0"], "Invalid value for '--problems'"),
        (["--task", "nope"], "nope"),
        (["--task", "aime"], "--task aime is 3 tasks; name one of aime24, aime25, aime26"),
        (["--validate"], "--validate compares methods at a budget, and the recipe has none: give --budget"),
        (["--validate", "--budget", "16", "--window", "16"], "16"),
        (["--validate", "--budget", "16", "--window", "4", "-o", "n_large=2"], "n_large is 2: it must be at least 4"),
        (["-o", "nonsense=3"], "-o without --validate: only its runs evict; add it, or leave them out"),
        (["-o", "sinks=3", "--budget", "7"], "--budget and -o without --validate: only its runs evict"),
        (["--data", "missing.jsonl"], "missing.jsonl"),
        (["--slots", "none"], "slots"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    shell: Shell, model_folder: Callable[..., Path], arguments: list[str], message: str
):
    assert message in shell.refused("calibrate", "--model", model_folder("qwen3"), "--device", "cpu", *arguments)


def test_another_models_entry_is_not_written_over(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    folder = model_folder("qwen3")
    user_zoo(tmp_path).mkdir(parents=True)
    (user_zoo(tmp_path) / f"{folder.name}.yaml").write_text("hub_id: a/b\n")
    message = shell.refused("calibrate", "--model", str(folder) + "/", "--zoo", user_zoo(tmp_path), *SMALL)
    assert "the entry of another model of this name" in message


def test_an_unknown_model_is_one_line(shell: Shell):
    assert shell.refused("calibrate", "--model", "tiny-reasoned").endswith("did you mean 'tiny-reasoner'?")


def test_validation_compares_five_runs_on_the_same_problems(
    shell: Shell, model_folder: Callable[..., Path], tmp_path: Path
):
    arguments = ("--model", model_folder("qwen3"), *SMALL, "--budget", "32", "--window", "8", "--validate")
    outcome = shell("calibrate", *arguments)
    lines = outcome.lines()
    labels = ["full", "evict-large", "random", "vase-attnv count", "vase-attnv threshold"]
    start = next(number for number, line in enumerate(lines) if line.startswith("method"))
    assert all(line.startswith(label) for label, line in zip(labels, lines[start + 1 :], strict=False))
    run = only_run(Path("calibrations"))
    validation = json.loads((run / "validation.json").read_text())
    assert [run["label"] for run in validation["runs"]] == labels
    assert (validation["budget"], validation["n_large"], validation["problems"]) == (32, 8, PROBLEMS)
    assert validation["complete"] and validation["task"] == "gsm8k"
    full, *others = validation["runs"]
    assert full["difference"] is None
    assert all(run["difference"] == pytest.approx(run["accuracy"] - full["accuracy"]) for run in others)
    assert all(run["samples"] == PROBLEMS for run in validation["runs"])
    assert all(run["mean_cached_tokens"] < full["mean_cached_tokens"] for run in others)
    configs = [json.loads(path.read_text())["config"] for path in (run / "runs").glob("*/run.json")]
    told = {
        config["method_options"].get("outliers"): "thresholds" in config
        for config in configs
        if config["method"] == "vase-attnv"
    }
    assert told == {"count": False, "threshold": True}
    again = shell("calibrate", *arguments)
    assert again.lines() and again.err.count("6 of 6 samples are stored already") == 6
    measured = {text["id"]: len(text["token_ids"]) for text in read_jsonl(run / "texts.jsonl")}
    (whole,) = [path for path in (run / "runs").iterdir() if "-full-" in path.name]
    assert measured == {sample["id"]: sample["completion_tokens"] for sample in read_jsonl(whole / "completions.jsonl")}


def test_thresholds_without_a_calibration_fall_back_to_the_count_and_say_so(
    shell: Shell, model_folder: Callable[..., Path]
):
    common = ("eval", "gsm8k", "--model", model_folder("qwen3"), "--limit", "2", "--max-new-tokens", "24",
              "--device", "cpu", "--method", "vase-attnv", "--budget", "32", "--window", "8")  # fmt: skip
    outcome = shell(*common, "--out", "a", "-o", "outliers=threshold")
    outcome.lines()
    notes = [line for line in outcome.err.splitlines() if "has no thresholds" in line]
    assert len(notes) == 1 and "`vase calibrate` makes thresholds" in notes[0]
    counted = shell(*common, "--out", "b")
    assert counted.lines() and "thresholds" not in counted.err
    assert only_run(Path("a")).name == only_run(Path("b")).name


def test_a_killed_calibration_goes_on_and_ends_the_same(
    shell: Shell, model_folder: Callable[..., Path], tmp_path: Path
):
    """SIGKILL at some moment of a process of its own."""
    given = ("calibrate", "--model", model_folder("qwen3"), *SMALL, "--problems", 2 * PROBLEMS)
    arguments = [str(argument) for argument in given]
    shell(*arguments, "--out", OUTS[1]).lines()
    code = (
        "import vase_cli.calibration.calibrate as module, sys\nfrom vase_cli.cli.app import main\n"
        "module._SECONDS_BETWEEN_SAVES, module._SAVING_SHARE = 0.0, float('inf')\nmain(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--out", OUTS[0]],
        env=clean_environment(tmp_path / "other") | {"VASE_DATA": os.environ["VASE_DATA"]},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(Path(OUTS[0]).glob("*/state.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = shell(*arguments, "--out", OUTS[0])
    again.lines()
    assert " samples are stored already" in again.err
    (found, numbers, _), (expected, exact, _) = (read_calibration(only_run(Path(name))) for name in OUTS)
    texts = [(only_run(Path(name)) / "texts.jsonl").read_bytes() for name in OUTS]
    assert texts[0] == texts[1]
    for key in ("texts", "tokens", "counts", "lengths"):
        assert found[key] == expected[key]
    for name in [name for name in exact if name not in ("top.text", "top.position")]:
        # Another row of the batch may round otherwise.
        torch.testing.assert_close(numbers[name], exact[name], rtol=1e-4, atol=1e-4)


def test_help_and_the_command_list_name_it(shell: Shell):
    assert "calibrate" in shell("--help").out
    said = help_words(shell, "calibrate")
    assert "--rule" in said and "the median and 6 median absolute deviations" in said
    assert "[default: calibrations]" in said


def test_a_model_without_a_chat_template_needs_raw(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    bare = shutil.copytree(model_folder("qwen3"), tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    weights = (bare / "model.safetensors").read_bytes()
    (bare / "model.safetensors").unlink()  # it is refused before they are read
    refusal = "bare has no chat template: add --raw to give prompts as they are"
    assert shell.refused("calibrate", "--model", bare, *SMALL) == refusal
    (bare / "model.safetensors").write_bytes(weights)
    shell("calibrate", "--model", bare, *SMALL, "--raw", "--validate", "--budget", 16, "--window", 4).lines()
    run = only_run(Path("calibrations"))
    runs = [json.loads((path / "run.json").read_text()) for path in (run / "runs").iterdir()]
    assert len(runs) == 5 and all(one["config"]["raw"] for one in runs)
    marks = load_tokenizer(entry_from_folder(bare)).encode_text("<|user|>").token_ids
    assert not [text for text in read_jsonl(run / "texts.jsonl") if set(marks) & set(text["prompt_token_ids"])]


def test_a_calibration_names_the_files_of_its_model(shell: Shell, model_folder: Callable[..., Path], tmp_path: Path):
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    shell("calibrate", "--model", folder, *SMALL).lines()
    first = only_run(Path("calibrations"))
    facts = json.loads((first / "calibration.json").read_text())
    assert facts["files"] == model_files(folder) and "model.safetensors" in facts["files"]
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    shell("calibrate", "--model", folder, *SMALL).lines()
    assert len(list(Path("calibrations").iterdir())) == 2
