"""Keys of generation_config.json that would change tokens: served, harmless, or refused by name."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vase_cli.config.catalog import Catalog, entry_from_folder
from vase_cli.config.resolve import resolve_recipe
from vase_cli.config.schema import ModelEntry, Recipe, RecipeFile, SamplingParams
from vase_cli.engine.plan import plan_run
from vase_cli.errors import ModelError
from vase_cli.models.generation_config import read_generation_config

RECIPE = Recipe("mine", "mine", method="full", device="cpu")


@pytest.fixture
def folder(model_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(model_folder("qwen3"), tmp_path / "model")


def write(folder: Path, **keys: object) -> ModelEntry:
    (folder / "generation_config.json").write_text(json.dumps(keys))
    return ModelEntry("mine", path=folder)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("no_repeat_ngram_size", 3, "3"),
        ("bad_words_ids", [[5], [6, 7]], "[[5], [6, 7]]"),
        ("suppress_tokens", [1, 2], "[1, 2]"),
        ("begin_suppress_tokens", list(range(99)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1..."),
        ("forced_bos_token_id", 0, "0"),
        ("forced_eos_token_id", 2, "2"),
        ("encoder_repetition_penalty", 1.2, "1.2"),
        ("encoder_no_repeat_ngram_size", 2, "2"),
        ("min_new_tokens", 5, "5"),
        ("min_length", 10, "10"),
        ("typical_p", 0.9, "0.9"),
        ("top_h", 0.4, "0.4"),
        ("epsilon_cutoff", 3e-4, "0.0003"),
        ("eta_cutoff", 3e-4, "0.0003"),
        ("num_beams", 4, "4"),
        ("num_beam_groups", 2, "2"),
        ("penalty_alpha", 0.6, "0.6"),
        ("dola_layers", "low", '"low"'),
        ("exponential_decay_length_penalty", [10, 1.1], "[10, 1.1]"),
        ("sequence_bias", [[[1], -2.0]], "[[[1], -2.0]]"),
        ("guidance_scale", 1.5, "1.5"),
        ("stop_strings", ["\n\n"], '["\\n\\n"]'),
        ("watermarking_config", {"bias": 2.0}, '{"bias": 2.0}'),
        ("token_healing", True, "true"),
    ],
)
def test_what_is_not_served_is_refused_by_name(folder: Path, key: str, value: object, shown: str):
    entry = write(folder, **{"do_sample": True, "temperature": 0.6, key: value})
    with pytest.raises(ModelError) as caught:
        plan_run(RECIPE, entry)
    where = folder / "generation_config.json"
    changes = "changes what the model writes, and is not served; remove the key"
    assert str(caught.value) == f"{where}: {key}: {shown} {changes}"


@pytest.mark.parametrize(
    "keys",
    [
        {"no_repeat_ngram_size": 0, "num_beams": 1, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0},
        {"min_length": 0, "suppress_tokens": [], "bad_words_ids": None, "encoder_repetition_penalty": 1.0},
        {"forced_eos_token_id": None, "guidance_scale": 1, "penalty_alpha": 0, "length_penalty": 2.0},
        {"do_sample": False, "typical_p": 0.9, "top_h": 0.4, "eta_cutoff": 0.01},  # a greedy text has no filters
        {"max_length": 4096, "max_new_tokens": 20, "use_cache": True, "pad_token_id": 3, "transformers_version": "5"},
    ],
)
def test_what_does_nothing_is_taken(folder: Path, keys: dict[str, Any]):
    assert plan_run(RECIPE, write(folder, **keys)).notes == ()


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_a_broken_file_is_one_line(folder: Path, content: str):
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"^{folder}/generation_config\.json: ") as caught:
        read_generation_config(ModelEntry("mine", path=folder))
    assert "\n" not in str(caught.value)


def test_a_model_without_the_file_has_no_keys(folder: Path):
    (folder / "generation_config.json").unlink()
    assert read_generation_config(ModelEntry("mine", path=folder)) == {}


def test_a_penalty_that_is_not_taken_over_is_said(folder: Path):
    write(folder, do_sample=True, temperature=0.7, repetition_penalty=1.1)
    own = entry_from_folder(folder)
    taken = resolve_recipe(RecipeFile("mine"), own, {"model": "mine", "method": "full", "device": "cpu"})
    assert taken.sampling == SamplingParams(0.7, repetition_penalty=1.1) and plan_run(taken, own).notes == ()
    # An entry that says how to sample hides the file, a hub model has no file to read before it is fetched.
    stated = replace(own, sampling={"plain": SamplingParams(0.6)}, origins={"sampling": "mine.yaml:2"})
    recipe = resolve_recipe(RecipeFile("mine"), stated, {"model": "mine", "method": "full", "device": "cpu"})
    (note,) = plan_run(recipe, stated).notes
    asks = "model: generation_config.json asks for a repetition_penalty of 1.1, which is not applied"
    assert note == f"warning: {asks}; add --repetition-penalty 1.1, or write it into a zoo entry"
    named = resolve_recipe(RecipeFile("mine"), stated, {"method": "full", "device": "cpu", "repetition_penalty": 1.0})
    assert plan_run(named, stated).notes == ()


def test_an_entry_may_switch_a_penalty_off(folder: Path, tmp_path: Path):
    write(folder, repetition_penalty=1.1)
    sampling = "sampling: {plain: {temperature: 0.6, repetition_penalty: 1}}"
    (tmp_path / "mine.yaml").write_text(f"path: {folder}\n{sampling}\n")
    recipe, entry = Catalog.open(zoo=tmp_path).resolve(None, {"model": "mine", "method": "full", "device": "cpu"})
    assert plan_run(recipe, entry).notes == ()
