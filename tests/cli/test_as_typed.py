"""The commands as a new user types them, in an empty folder: what they take, and what they print about it."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_examples import Shell, a_device, clean_environment, only_run, open_shell, problem_rows, write_rows

from vase_cli.cli import calibrate
from vase_cli.config import default_recipe
from vase_cli.config.catalog import built_in_folder

PROMPT = "How many primes are below 100?"
CHOOSE = "choose another with --recipe, --model or $VASE_RECIPE"
NO_FILES = (
    "qwen3-0.6b fits this machine (no GPU, 6.0 GiB of memory free), but its files are not here and "
    "https://huggingface.co is not reachable (no route to host)"
)
EMBEDDED = f"recipe tiny-reasoner: it solves recurrence only (`vase tasks show recurrence`); {NO_FILES}; {CHOOSE}"
FEW = ("--max-new-tokens", "8", "--slots", "1")
SETTINGS = "budget: 32\nwindow: 8\nmethod: snapkv\nmax_new_tokens: 40\nlimit: 2\nslots: 2\nsampling: {temperature: 0}\n"


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A laptop without a network, in an empty folder."""

    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://huggingface.co")
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr(calibrate, "write_page", lambda folder: [])  # slow, and tested by itself
    laptop = a_device("cpu", 6 * 2**30, "no GPU, 6.0 GiB of memory free")
    monkeypatch.setattr(default_recipe, "Device", laptop)
    return open_shell(tmp_path, monkeypatch, capsys)


def write_recipe(config: Path, name: str, model: Path, settings: str = SETTINGS) -> None:
    """A recipe of the user's own, beside a zoo folder that stays empty."""
    (config / "vase" / "recipes").mkdir(parents=True, exist_ok=True)
    (config / "vase" / "recipes" / f"{name}.yaml").write_text(f"model: {model}\n{settings}")


def write_problems(folder: Path) -> Path:
    """Problem files of the tasks, as ``$VASE_DATA`` takes them."""
    folder.mkdir()
    for task in ("gsm8k", "aime24", "aime25", "aime26"):
        write_rows(folder / f"{task}.jsonl", problem_rows(2))
    return folder


# --- on a laptop without a network -----------------------------------------------------------------------------


def test_tasks_that_the_embedded_model_does_not_solve_are_refused_and_it_says_what_would_do(vase: Shell) -> None:
    advice = "name a folder of them with --recipe qwen3-0.6b --model FOLDER"
    assert vase.refused("eval", "gsm8k", "aime") == f"no recipe for gsm8k, aime24, aime25, aime26: {NO_FILES}; {advice}"
    Path("mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    assert vase.refused("eval", "mine.jsonl", "--grader", "math").startswith("no recipe for mine: qwen3-0.6b fits")
    assert vase.refused("calibrate", "--task", "gsm9k") == "no task 'gsm9k'; did you mean 'gsm8k'?"
    assert vase.refused("calibrate", "--task", "aime").startswith("--task aime is 3 tasks; name one of aime24")
    assert vase.refused("calibrate", "--task", "gsm8k") == f"no recipe for gsm8k: {NO_FILES}; {advice}"


def test_its_own_task_is_solved_by_the_embedded_model(vase: Shell) -> None:
    outcome = vase("eval", "recurrence", "--limit", "1", "--method", "snapkv", "--budget", "64", *FEW)
    assert outcome.code == 0
    machine = "this machine (no GPU, 6.0 GiB of memory free)"
    only = f"recipe tiny-reasoner: the only recipe made for recurrence that fits {machine} and has its files here"
    assert outcome.err.splitlines()[0] == f"{only}; {CHOOSE}"
    outcome = vase("eval", "--limit", "1", "--method", "snapkv", "--budget", "64", *FEW)
    assert outcome.code == 0
    only = f"the only recipe with at most 1 billion parameters that fits {machine} and has its files here"
    assert outcome.err.splitlines()[0] == f"recipe tiny-reasoner: {only}; {CHOOSE}"
    assert only_run(Path("runs")).name.startswith("tiny-reasoner-recurrence"), "the recipe's own task is the same run"


def test_a_calibration_takes_the_embedded_model_and_its_task(vase: Shell) -> None:
    outcome = vase("calibrate", "--problems", "1", "--max-new-tokens", "40", "--slots", "1")
    assert outcome.code == 0
    assert outcome.err.splitlines()[0] == EMBEDDED
    assert only_run(Path("calibrations")).name.startswith("tiny-reasoner-recurrence")


def test_a_prompt_is_answered_by_the_embedded_model_which_says_what_it_solves(vase: Shell) -> None:
    unnamed = vase("run", PROMPT, *FEW)
    assert unnamed.code == 0 and unnamed.out.strip()
    assert unnamed.err == f"{EMBEDDED}\n"
    named = vase("run", PROMPT, "--recipe", "tiny-reasoner", *FEW)
    assert (named.out, named.err) == (unnamed.out, "")


# --- with a model folder ----------------------------------------------------------------------------------------


def commands(*, model: Path | None = None) -> dict[str, tuple[object, ...]]:
    """The three commands; the recipe's own limits make them short."""
    more = () if model is None else ("--model", model)
    return {"eval": ("eval", "gsm8k", "aime", *more), "calibrate": ("calibrate", *more), "run": ("run", PROMPT, *more)}


@pytest.mark.parametrize("command", commands())
def test_the_largest_recipe_whose_folder_is_here_is_taken_on_a_gpu(
    vase: Shell,
    model_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(default_recipe, "Device", a_device("cuda", 139 * 2**30, "NVIDIA H200, 139.0 GiB free"))
    monkeypatch.setenv("VASE_DATA", str(write_problems(tmp_path / "data")))
    write_recipe(tmp_path / "config", "small", model_folder("qwen3"))
    write_recipe(tmp_path / "config", "larger", model_folder("qwen3", layers=3))
    outcome = vase(*commands()[command])
    assert outcome.code == 0, outcome.err
    which = "the largest thinking model of the 2 recipes that fit this machine (NVIDIA H200, 139.0 GiB free)"
    assert outcome.err.splitlines()[0] == f"recipe larger: {which} and have their files here; {CHOOSE}"
    if command == "eval":
        assert re.findall("^(gsm8k|aime..) ", outcome.out, re.MULTILINE) == ["gsm8k", "aime24", "aime25", "aime26"]
    if command == "calibrate":
        assert only_run(Path("calibrations")).name.partition("-gsm8k-")[1], "its task by default"
    monkeypatch.setenv("VASE_RECIPE", "small")
    outcome = vase(*commands()[command])
    assert outcome.code == 0 and "recipe larger" not in outcome.err, outcome.err


def test_a_model_folder_alone_keeps_a_quarter_of_the_full_cache(
    vase: Shell, model_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VASE_DATA", str(write_problems(tmp_path / "data")))
    model = model_folder("qwen3")
    for command in (("run", PROMPT, "--out", "prompts"), ("eval", "gsm8k", "aime", "--limit", "1", "--out", "tasks")):
        outcome = vase(*command, "--model", model, *FEW)
        assert outcome.code == 0, outcome.err
        assert not outcome.err.startswith("recipe ")
        recorded = json.loads((only_run(Path(command[-1])) / "run.json").read_text())
        assert "-4x-" in recorded["name"] and recorded["origins"]["budget"] == "default"
        assert {task["budget"] for task in recorded["config"]["tasks"].values()} == {2048}
    assert vase("run", PROMPT, "--model", model, "--method", "full", *FEW).code == 0
    assert vase("calibrate", "--model", model, "--problems", "1", "--max-new-tokens", "40", "--slots", "1").code == 0


@pytest.mark.gpu
def test_the_three_commands_on_a_gpu(model_folder: Callable[..., Path], tmp_path: Path) -> None:
    """With the embedded model in a folder, and a larger model of random weights, each with a recipe of its own."""
    environment: dict[str, Any] = clean_environment(tmp_path) | {
        "VASE_DATA": str(write_problems(tmp_path / "data")), "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in (os.getcwd(), os.environ.get("PYTHONPATH")) if path),
    }  # fmt: skip
    config = tmp_path / "config"
    small = shutil.copytree(built_in_folder("zoo") / "tiny-reasoner", tmp_path / "small")
    shape = {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 8}
    large = model_folder("qwen3", layers=8, dtype="bfloat16", num_key_value_heads=4, **shape)
    (work := tmp_path / "work").mkdir()

    def vase(*arguments: object) -> list[str]:
        """The lines of stderr."""
        line = [sys.executable, "-m", "vase_cli", *map(str, arguments)]
        done = subprocess.run(line, env=environment, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        return done.stderr.splitlines()

    limits = SETTINGS.replace("budget: 32", "budget: 64").replace("window: 8", "window: 32")
    for folder, chosen in (
        (small, "small: the only recipe that fits"),
        (large, "large: the largest thinking model of"),
    ):
        write_recipe(config, folder.name if folder is small else "large", folder, limits)
        for command in commands().values():
            first = vase(*command)[0]
            assert first.startswith(f"recipe {chosen}") and first.endswith(f"files here; {CHOOSE}"), first
            assert re.search(r"this machine \([^()]+, [\d,.]+ GiB free\)", first), first
    for command in commands(model=small).values():
        assert not [line for line in vase(*command, *FEW) if line.startswith("recipe ")]
