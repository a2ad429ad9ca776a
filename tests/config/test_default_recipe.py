"""The one rule for the recipe that is taken where none is named: every branch of it, and what it says."""

import contextlib
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_examples import a_device

from vase_cli import hub
from vase_cli.config import default_recipe
from vase_cli.config.catalog import Catalog
from vase_cli.config.default_recipe import PROMPTS, Candidates, Choice
from vase_cli.errors import ConfigError

H200, LAPTOP = ("cuda", 139, "NVIDIA H200, 139.0 GiB free"), ("cpu", 6, "no GPU, 6.0 GiB of memory free")
SERVER, SMALL_GPU = ("cpu", 200, "no GPU, 200.0 GiB of memory free"), ("cuda", 24, "a GPU, 24.0 GiB free")
OLD, NO_MEMORY = ("cpu", 2, "no GPU, 2.0 GiB of memory free"), ("cpu", 0, "no GPU, 0 B of memory free")
DOWN = "https://huggingface.co is not reachable (timed out)"
SMALL, EIGHT, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"


class Machine:
    """A device, what the hub's cache holds, and whether the hub answers; the user's own files are in ``own``."""

    def __init__(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own, self.patch, self.asked = own, monkeypatch, 0
        self.silent: str | None = DOWN
        monkeypatch.setattr(default_recipe, "resolve_device", lambda name: name)

    def has(self, device: tuple[str, int, str], *cached: str, online: bool = False) -> "Machine":
        kind, free_gib, description = device
        folder = write_weights(self.own / "cached", 100)
        self.patch.setattr(default_recipe, "Device", a_device(kind, free_gib * 2**30, description))
        self.patch.setattr(hub, "cached_model", lambda hub_id, revision: folder if hub_id in cached else None)
        self.silent, self.asked = None if online else DOWN, 0
        return self

    def silence(self) -> str | None:
        self.asked += 1
        return self.silent

    def choose(self, *tasks: str, changes: dict[str, Any] | None = None, **options: bool) -> Choice:
        found = Candidates.find(Catalog.open(), "auto", changes)
        return found.choose(tasks, silence=self.silence, **options)

    def refused(self, *tasks: str) -> str:
        with pytest.raises(ConfigError) as refusal:
            self.choose(*tasks)
        return str(refusal.value)

    def writes(self, kind: str, name: str, text: str) -> None:
        (self.own / kind).mkdir(exist_ok=True)
        (self.own / kind / f"{name}.yaml").write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("VASE_PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Machine(tmp_path, monkeypatch)


def write_weights(folder: Path, size_bytes: int) -> Path:
    """A model folder as far as the rule looks; the weights take no room on the disk."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"dtype": "bfloat16"}')
    (folder / "chat_template.jinja").write_text("{{ enable_thinking }}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size_bytes)
    return folder


def told(choice: Choice) -> tuple[str, str]:
    return choice.recipe, choice.why


def test_the_largest_that_fits_and_is_here_is_taken_and_the_hub_not_asked(machine: Machine) -> None:
    machine.has(H200, SMALL, EIGHT, online=True)
    choice = machine.choose("gsm8k", "aime24")
    machine_text = "this machine (NVIDIA H200, 139.0 GiB free)"
    why = f"the largest thinking model of the 2 recipes that fit {machine_text} and have their files here"
    assert choice.line == f"recipe qwen3-8b: {why}; choose another with --recipe, --model or $VASE_RECIPE"
    assert machine.asked == 0
    machine.has(SMALL_GPU, SMALL, LARGE)
    assert told(machine.choose("gsm8k")) == (
        "qwen3-0.6b",
        "the only recipe that fits this machine (a GPU, 24.0 GiB free) and has its files here",
    )


def test_equal_ones_are_taken_by_name_and_it_says_so(machine: Machine) -> None:
    machine.has(H200, EIGHT, "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", SMALL)
    name, why = told(machine.choose("gsm8k"))
    assert name == "deepseek-r1-0528-qwen3-8b"
    assert why.startswith("the first by name of the largest thinking models of the 3 recipes that fit")


def test_without_files_the_hub_counts_where_it_answers(machine: Machine) -> None:
    assert told(machine.has(H200, online=True).choose("gsm8k")) == (
        "qwen3-32b",
        "the largest thinking model of the 10 recipes that fit this machine (NVIDIA H200, 139.0 GiB free); its files "
        "are not here, 61.0 GiB come from the hub",
    )
    assert machine.asked == 1
    assert machine.has(H200).refused("gsm8k", "math500") == (
        "no recipe for gsm8k, math500: qwen3-32b fits this machine (NVIDIA H200, 139.0 GiB free), but its files are "
        f"not here and {DOWN}; name a folder of them with --recipe qwen3-32b --model FOLDER"
    )


def test_a_cpu_takes_small_models_only(machine: Machine) -> None:
    small = "with at most 1 billion parameters that fits this machine"
    assert told(machine.has(SERVER, online=True).choose(*PROMPTS)) == (
        "qwen3-0.6b",
        f"the only recipe {small} (no GPU, 200.0 GiB of memory free); its files are not here, 1.1 GiB come from the "
        "hub",
    )
    assert told(machine.has(LAPTOP, SMALL).choose("gsm8k")) == (
        "qwen3-0.6b",
        f"the only recipe {small} (no GPU, 6.0 GiB of memory free) and has its files here",
    )
    assert machine.has(LAPTOP).refused("gsm8k") == (
        "no recipe for gsm8k: qwen3-0.6b fits this machine (no GPU, 6.0 GiB of memory free), but its files are not "
        f"here and {DOWN}; name a folder of them with --recipe qwen3-0.6b --model FOLDER"
    )


def test_a_larger_one_on_the_disk_of_a_cpu_comes_after_the_small_one_of_the_hub(machine: Machine) -> None:
    assert machine.has(SERVER, EIGHT, online=True).choose("gsm8k").recipe == "qwen3-0.6b"
    assert told(machine.has(SERVER, EIGHT).choose("gsm8k")) == (
        "qwen3-8b",
        "the only recipe with over 1 billion parameters that fits this machine (no GPU, 200.0 GiB of memory free) and "
        "has its files here",
    )
    assert machine.has(SERVER, EIGHT, SMALL).choose("gsm8k").recipe == "qwen3-0.6b"


def test_a_large_one_is_not_downloaded_for_a_cpu(machine: Machine) -> None:
    machine.writes("recipes", "qwen3-0.6b", "broken: yes\n")  # no small one is left
    refusal = machine.has(LAPTOP, online=True).refused("gsm8k")
    assert refusal.startswith("no recipe for gsm8k: qwen3-1.7b, the smallest, needs 7.5 GiB of free memory, too much")
    refusal = machine.has(SERVER, online=True).refused("gsm8k")
    assert machine.asked == 0
    assert refusal == (
        "no recipe for gsm8k: qwen3-32b fits this machine (no GPU, 200.0 GiB of memory free), but its files are not "
        "here, and over 1 billion parameters are slow without a CUDA GPU; take it all the same with --recipe qwen3-32b"
    )


def test_what_would_fit_is_said_where_nothing_does(machine: Machine) -> None:
    assert machine.has(OLD, SMALL, online=True).refused("gsm8k") == (
        "no recipe for gsm8k: qwen3-0.6b, the smallest, needs 2.6 GiB of free memory, too much for this machine (no "
        "GPU, 2.0 GiB of memory free); free some, name another --device, or a smaller model with --model"
    )
    assert machine.has(NO_MEMORY).refused().startswith("no recipe: tiny-reasoner, the smallest, needs 17.8 MiB")


def test_a_model_that_is_made_for_a_task_comes_first(machine: Machine) -> None:
    assert told(machine.has(H200, EIGHT).choose("recurrence")) == (
        "tiny-reasoner",
        "the only recipe made for recurrence that fits this machine (NVIDIA H200, 139.0 GiB free) and has its files "
        "here",
    )
    assert machine.choose("recurrence", "gsm8k").recipe == "qwen3-8b", "it solves only one of them"
    assert machine.choose("mine").recipe == "qwen3-8b"


def test_prompts_and_calibrations_fall_back_to_a_model_of_few_tasks(machine: Machine) -> None:
    choice = machine.has(LAPTOP).choose(*PROMPTS, or_own=True)
    assert choice.limited
    assert told(choice) == (
        "tiny-reasoner",
        "it solves recurrence only (`vase tasks show recurrence`); qwen3-0.6b fits this machine (no GPU, 6.0 GiB of "
        f"memory free), but its files are not here and {DOWN}",
    )
    assert machine.has(OLD, online=True).choose("gsm8k", or_own=True).recipe == "tiny-reasoner"
    assert not machine.has(H200, EIGHT).choose(*PROMPTS, or_own=True).limited


def test_without_tasks_a_recipe_is_taken_for_its_own_and_nothing_is_downloaded(machine: Machine) -> None:
    for device in (H200, LAPTOP):
        assert machine.has(device, online=True).choose().recipe == "tiny-reasoner"
    assert machine.has(H200, EIGHT, online=True).choose().recipe == "qwen3-8b"
    assert machine.asked == 0
    machine.writes("recipes", "qwen3-8b", "model: qwen3-8b\nbudget: 512\n")
    assert machine.has(H200, EIGHT).choose().recipe == "tiny-reasoner", "a recipe without tasks has none to solve"


def test_a_users_own_recipes_and_entries_count(machine: Machine) -> None:
    folder = write_weights(machine.own / "mine", 3 * 2**30)
    machine.writes("recipes", "mine", f"model: {folder}\nbudget: 512\n")
    assert machine.has(H200, SMALL).choose("gsm8k").recipe == "mine", "its size is that of its files"
    machine.writes("zoo", "qwen3-8b", "path: ../mine\nparameters: 8190735360\n")
    assert machine.choose("gsm8k").recipe == "qwen3-8b"
    machine.writes("zoo", "qwen3-8b", "path: ../mine\nparameters: 8190735360\nsolves: [aime24, aime25]\n")
    assert machine.choose("gsm8k").recipe == "mine"
    assert machine.choose("aime25").why.startswith("the only recipe made for aime25 that fits")
    (folder / "model.safetensors").unlink()
    assert machine.has(H200, online=True).choose("aime25").recipe == "qwen3-32b", "a folder without weights is no model"


def test_a_model_that_thinks_comes_before_a_larger_one_that_does_not(machine: Machine) -> None:
    folder = write_weights(machine.own / "plain", 100 * 2**20)
    machine.writes("zoo", "plain", f"path: {folder}\nparameters: 20000000000\nthinking: {{mode: never}}\n")
    machine.writes("recipes", "plain", "model: plain\nbudget: 512\n")
    machine.has(H200, SMALL)
    assert told(machine.choose("gsm8k"))[0] == "qwen3-0.6b"
    assert machine.has(H200).choose("gsm8k").why.startswith("the only recipe that fits")
    machine.writes("recipes", "other", "model: plain\nbudget: 256\n")
    assert "the first by name of the largest models of the 2 recipes" in machine.choose("gsm8k").why


def test_what_was_typed_decides_what_fits(machine: Machine) -> None:
    machine.has(SMALL_GPU, EIGHT, SMALL)
    assert machine.choose("gsm8k").recipe == "qwen3-8b"
    assert machine.choose("gsm8k", changes={"dtype": "float32"}).recipe == "qwen3-0.6b"
    machine.has(LAPTOP)
    with pytest.raises(ConfigError, match=r"^no recipe: "):
        machine.choose(changes={"think": False})  # the embedded model always thinks


def test_a_recipe_for_another_kind_of_device_is_left_out(machine: Machine) -> None:
    machine.writes("recipes", "qwen3-8b", "model: qwen3-8b\nbudget: 512\ndevice: cuda:1\n")
    assert machine.has(SERVER, EIGHT, SMALL).choose("gsm8k").recipe == "qwen3-0.6b"
    assert "qwen3-8b" not in [candidate.recipe.name for candidate in Candidates.find(Catalog.open(), "auto").fitting]
    assert machine.has(H200, EIGHT, SMALL).choose("gsm8k").recipe == "qwen3-8b"


def test_a_model_of_unknown_size_is_not_taken(machine: Machine) -> None:
    machine.writes("recipes", "unknown", "model: somebody/some-model\nbudget: 512\n")
    assert machine.has(H200, online=True).choose("gsm8k").recipe == "qwen3-32b"
    machine.has(H200, "somebody/some-model")
    assert machine.choose("gsm8k").recipe == "unknown", "its size is that of the files in the cache"


def shards(folder: Path, *names: str) -> None:
    index = {"weight_map": {f"layer.{number}": f"{name}.safetensors" for number, name in enumerate("ab")}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        (folder / f"{name}.safetensors").write_bytes(b"0")


def test_the_cache_of_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Qwen--Qwen3-0.6B"
    (snapshot := repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")

    def cached(revision: str | None = "abc") -> Path | None:
        return hub.cached_model(SMALL, revision)

    assert cached() is None
    (snapshot / "config.json").write_text("{}")
    assert cached() is None, "a download that was broken off"
    shards(snapshot, "a")
    assert cached() is None, "one file is missing"
    shards(snapshot, "a", "b")
    assert cached() == cached(None) == snapshot
    assert cached("another") is None
    (snapshot / "model.safetensors.index.json").write_text("[]")
    assert cached() is None
    assert hub.cached_model("no--such/id", None) is None


def test_the_hub_is_asked_once_and_says_why_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(answer: Callable[[], object]) -> None:
        monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: answer())

    def fails() -> object:
        raise urllib.error.URLError("no route to host")

    urlopen(lambda: pytest.fail("the hub was asked"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.silence() == "the hub is not asked ($HF_HUB_OFFLINE)"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    urlopen(fails)
    assert hub.silence() == f"{hub.address()} is not reachable (no route to host)"
    urlopen(contextlib.nullcontext)
    assert hub.silence() is None
