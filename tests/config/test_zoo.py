"""Every built-in zoo entry and recipe, whatever there is: a new file is tested without touching this one."""

from pathlib import Path

import pytest

from vase_cli import plugins
from vase_cli.config.architecture import Architecture
from vase_cli.config.budget import resolve_budget
from vase_cli.config.catalog import Catalog, built_in_folder
from vase_cli.config.method_options import make_method
from vase_cli.config.resolve import load_entry, load_recipe, resolve_recipe
from vase_cli.config.schema import ModelShape, SamplingParams
from vase_cli.tasks.base import resolve_tasks

BUILT_IN = Catalog(zoo=((built_in_folder("zoo"), "built-in"),), recipes=((built_in_folder("recipes"), "built-in"),))
ENTRIES = BUILT_IN.files("zoo")
RECIPES = BUILT_IN.files("recipes")
QWEN3_SHAPES = {
    "qwen3-0.6b": (28, 16, 8, 128),
    "qwen3-1.7b": (28, 16, 8, 128),
    "qwen3-4b": (36, 32, 8, 128),
    "qwen3-8b": (36, 32, 8, 128),
    "qwen3-14b": (40, 40, 8, 128),
    "qwen3-32b": (64, 64, 8, 128),
    "qwen3-30b-a3b": (48, 32, 4, 128),
}

QWEN3_ARCHITECTURES = {
    "qwen3-0.6b": Architecture("qwen3", 1024, 3072, 151936, tied=True),
    "qwen3-1.7b": Architecture("qwen3", 2048, 6144, 151936, tied=True),
    "qwen3-4b": Architecture("qwen3", 2560, 9728, 151936, tied=True),
    "qwen3-8b": Architecture("qwen3", 4096, 12288, 151936, tied=False),
    "qwen3-14b": Architecture("qwen3", 5120, 17408, 151936, tied=False),
    "qwen3-32b": Architecture("qwen3", 5120, 25600, 151936, tied=False),
    "qwen3-30b-a3b": Architecture("qwen3_moe", 2048, 6144, 151936, False, 128, 8, 768),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entry(name: str) -> None:
    entry = load_entry(ENTRIES[name].path, name)
    assert entry.shape is not None
    assert entry.parameters is not None
    assert entry.license
    assert entry.context_tokens is not None and entry.configured_tokens is not None
    assert entry.context_tokens <= entry.configured_tokens
    if entry.hub_id:
        assert entry.url == f"https://huggingface.co/{entry.hub_id}"
        assert entry.revision is not None
        # A commit, or a branch that says so.
        assert entry.revision == "main" or (len(entry.revision) == 40 and int(entry.revision, 16))


@pytest.mark.parametrize("name", ENTRIES)
def test_a_model_of_random_weights_has_the_parameters_of_the_real_one(name: str) -> None:
    import torch

    from vase_cli.models.random_weights import RandomWeights

    entry = load_entry(ENTRIES[name].path, name)
    facts = RandomWeights(max_tokens=4096, seed=0).describe(entry, "bfloat16", torch.device("cpu"))
    assert facts.parameters == entry.parameters
    assert facts.shape == entry.shape


def test_an_embedded_entry_says_what_its_config_says() -> None:
    import torch

    from vase_cli.models.describe import describe

    for name, file in ENTRIES.items():
        entry = load_entry(file.path, name)
        if entry.path is not None:
            assert describe(entry, None, torch.device("cpu")).parameters == entry.parameters


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str) -> None:
    file = load_recipe(RECIPES[name].path, name)
    recipe = resolve_recipe(file, BUILT_IN.find_model(file.values["model"]), {})
    method = make_method(recipe)
    assert recipe.tasks
    for task in resolve_tasks([task for task in recipe.tasks if not Path(task).suffix]):
        if method.evicts:
            budget = resolve_budget(
                recipe.budget_for(task.name),
                task=task.name,
                window=recipe.window,
                token_limit=recipe.max_total_tokens or task.max_total_tokens,
                dense_tokens=recipe.dense_tokens,
            )
            assert budget.warning is None
            method.check(budget.tokens, recipe.window)


@pytest.mark.parametrize("name", QWEN3_SHAPES)
def test_qwen3(name: str) -> None:
    entry = load_entry(ENTRIES[name].path, name)
    assert entry.shape == ModelShape(*QWEN3_SHAPES[name])
    assert entry.architecture == QWEN3_ARCHITECTURES[name]
    assert (entry.context_tokens, entry.configured_tokens) == (32768, 40960)
    assert (entry.thinking.mode, entry.thinking.opened_by) == ("switch", "model")
    assert entry.sampling == {"thinking": SamplingParams(0.6, 20, 0.95), "plain": SamplingParams(0.7, 20, 0.8)}


def test_every_model_has_a_recipe_of_its_name() -> None:
    assert ENTRIES.keys() <= RECIPES.keys()


def test_published_lengths_are_of_the_14b_alone() -> None:
    lengths = {name: dict(load_entry(file.path, name).dense_tokens) for name, file in ENTRIES.items()}
    assert lengths["qwen3-14b"] == {"aime26": 15325.0, "hmmt25": 17847.0}
    assert not any(of_task for name, of_task in lengths.items() if name.startswith("qwen3-") and name != "qwen3-14b")


def test_the_papers_budgets() -> None:
    paper = {"gsm8k": 512, "math500": 1024, "gpqa": 2048, "aime25": 4096, "aime26": 4096, "hmmt25": 4096}
    for name in ("qwen3-4b", "qwen3-14b"):
        assert load_entry(ENTRIES[name].path, name).budgets == paper
        recipe, _ = BUILT_IN.resolve(name, {})
        assert {task: recipe.budget_for(task) for task in paper} == paper
    assert paper.keys() <= set(plugins.names("tasks"))
