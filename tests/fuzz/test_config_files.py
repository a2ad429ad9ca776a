"""Recipes, zoo entries, model folders and thresholds of any content: taken, or refused in a line that names it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.mutations import SCALARS, SHORT_TEXT, TEXTS, VALUES, file_contents, files_of, mangled, one_line
from hypothesis import given
from hypothesis import strategies as st

from vase_cli import plugins
from vase_cli.config.budget import parse_budget, resolve_budget
from vase_cli.config.catalog import Catalog, entry_from_folder
from vase_cli.config.method_options import make_method, parse_option
from vase_cli.config.resolve import RECIPE_KEYS, check_option, load_entry
from vase_cli.config.schema import Recipe
from vase_cli.config.threshold_facts import read_facts
from vase_cli.models.describe import describe
from vase_cli.models.thresholds import load_thresholds

ZOO = Path(__file__).parents[2] / "zoo"
TINY = ZOO / "tiny-reasoner"
RECIPE = {
    "model": "tiny-reasoner",
    "method": "vase-attnv",
    "method_options": {"n_large": 16, "sinks": 4},
    "budget": "2x",
    "budgets": {"recurrence": 64, "gsm8k": "4x"},
    "dense_tokens": {"recurrence": 610.5},
    "window": 32,
    "tasks": ["recurrence", "gsm8k"],
    "samples": 2,
    "seed": 0,
    "limit": 8,
    "max_new_tokens": 100,
    "max_total_tokens": 900,
    "sampling": {"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
    "think": True,
    "system_prompt": "Be brief.",
    "slots": 4,
    "dtype": "float32",
    "attention": "auto",
    "compile": "off",
    "device": "cpu",
    "compare": {"methods": ["full", "snapkv"], "budgets": ["2x", 64]},
}


def as_yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


@given(content=file_contents(RECIPE, as_yaml))
def test_a_recipe(content: bytes) -> None:
    path = Path("mine.yaml")
    path.write_bytes(content)

    def use() -> None:
        recipe, _ = Catalog.open().resolve(str(path), {})
        recipe.budget_for("recurrence")
        make_method(recipe)

    one_line(use, path)
    assert files_of(Path.cwd()) == {Path.cwd() / path: content}


@given(content=file_contents(yaml.safe_load((ZOO / "qwen3-8b.yaml").read_text()), as_yaml))
def test_a_zoo_entry_of_the_hub(content: bytes) -> None:
    path = Path("mine.yaml")
    path.write_bytes(content)
    one_line(lambda: load_entry(path, "mine"), path)


@given(content=file_contents(yaml.safe_load((TINY / "entry.yaml").read_text()), as_yaml))
def test_a_zoo_entry_of_a_folder(tmp_path: Path, content: bytes) -> None:
    zoo = tmp_path / "zoo"
    if not zoo.exists():
        shutil.copytree(TINY, zoo / "mine")
    (zoo / "mine" / "entry.yaml").write_bytes(content)
    one_line(lambda: Catalog.open(zoo=zoo).find_model("mine"), zoo / "mine")


@given(content=file_contents(yaml.safe_load((TINY / "tiny-reasoner.thresholds.yaml").read_text()), as_yaml))
def test_the_facts_of_thresholds(content: bytes) -> None:
    path = Path("mine.thresholds.yaml")
    path.write_bytes(content)
    one_line(lambda: read_facts(path), path)


@given(content=mangled((TINY / "tiny-reasoner.thresholds.safetensors").read_bytes()))
def test_the_numbers_of_thresholds(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        shutil.copytree(TINY, folder)
    entry = load_entry(folder / "entry.yaml", "tiny-reasoner")
    (folder / "tiny-reasoner.thresholds.safetensors").write_bytes(content)
    assert entry.shape is not None
    one_line(lambda: load_thresholds(entry, entry.shape), folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_model_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(TINY / file, folder)
    valid = json.loads((folder / name).read_bytes())

    @given(content=file_contents(valid))
    def check(content: bytes) -> None:
        (folder / name).write_bytes(content)

        def use() -> None:
            entry = entry_from_folder(folder)
            if name == "config.json":
                describe(entry, None, torch.device("cpu"))

        one_line(use, folder)

    check()


@given(written=VALUES)
def test_a_budget(written: Any) -> None:
    try:
        budget = parse_budget(written)
    except ValueError as error:
        assert str(error)
        return
    lengths = {"task": 100.0}
    one_line(lambda: resolve_budget(budget, task="task", window=8, token_limit=1000, dense_tokens=lengths))


@given(key=st.sampled_from(RECIPE_KEYS), value=VALUES)
def test_an_option_of_the_command_line(key: str, value: Any) -> None:
    one_line(lambda: check_option(key, value), "--", "command line: ")


@given(
    method=st.sampled_from(plugins.names("eviction")),
    key=st.sampled_from(["sinks", "n_large", "outliers", "protect_prompt", "alpha", "n-large", ""]) | SHORT_TEXT,
    value=SCALARS.map(str) | st.sampled_from(TEXTS),
)
def test_an_option_of_a_method(method: str, key: str, value: str) -> None:
    def use() -> None:
        name, parsed = parse_option(f"{key}={value}")
        make_method(Recipe("mine", "tiny-reasoner", method=method, method_options={name: parsed}))

    one_line(use)
