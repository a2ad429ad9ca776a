"""Records made in Python: checked as files are, frozen, and each field with its help."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from vase_cli.config.architecture import Architecture
from vase_cli.config.budget import Ratio
from vase_cli.config.schema import Comparison, ModelEntry, ModelShape, Recipe, SamplingParams, Thinking
from vase_cli.config.threshold_facts import ThresholdFacts
from vase_cli.errors import ConfigError

RECORDS = (SamplingParams, ModelShape, Thinking, Architecture, ModelEntry, Comparison, Recipe, ThresholdFacts)
SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_has_a_help_text(record: Any) -> None:
    fields = record.__pydantic_fields__
    assert list(fields) == [field.name for field in dataclasses.fields(record)]
    for name, field in fields.items():
        assert field.description and field.description.endswith("."), name


@pytest.mark.parametrize(
    ("record", "values", "message"),
    [
        (ModelShape, SHAPE | {"layers": 0}, "layers: must be a whole number, at least 1, not 0"),
        (ModelShape, SHAPE | {"layers": 2.0}, "layers: must be a whole number, not 2.0; write 2"),
        (ModelShape, SHAPE | {"depth": 2}, "depth: unknown key; "),
        (Recipe, {"name": "r", "model": "m", "window": True}, "window: must be a whole number of tokens, not true"),
        (Recipe, {"name": "r", "model": "m", "seed": 2**63}, f"seed: must be a whole number, at most {2**63 - 1}, not"),
        (Recipe, {"name": "r", "model": "m", "model_options": {}}, "model_options: unknown key; did you mean 'method_"),
        (Recipe, {"name": "r", "model": "m", "sampling": {"top_k": "4"}}, "sampling.top_k: must be a whole number of"),
        (Recipe, {"name": "r", "model": "m", "budgets": {"gsm8k": "0x"}}, "budgets.gsm8k: '0x' is too small: N of"),
        (Recipe, {"name": "r", "model": "m", "device": "cuda:x"}, "device: 'cuda:x' is not a device; write auto, "),
        (ModelEntry, {"name": "m", "dtype": "int8"}, "dtype: 'int8' is not known; there are: auto, bfloat16, "),
        (SamplingParams, {"min_p": -0.5}, "min_p: -0.5 is not in [0, 1), 0 being off"),
        (SamplingParams, {"top_p": 150}, "top_p: 150.0 is not in (0, 1], 1 being off"),
    ],
)
def test_a_value_that_is_refused_is_one_line(record: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_record_is_frozen_and_its_copies_are_checked() -> None:
    recipe = Recipe("r", "m", budget="4X", sampling={"temperature": 1}, tasks=["gsm8k"])
    assert (recipe.budget, type(recipe.budget), recipe.tasks) == ("4x", Ratio, ("gsm8k",))
    assert type(recipe.sampling.temperature) is float
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.window = 32  # type: ignore[misc]
    assert dataclasses.replace(recipe, tasks=(), window=32) == Recipe(
        "r", "m", budget="4x", sampling=SamplingParams(temperature=1.0), window=32
    )
    with pytest.raises(ConfigError, match=r"^window: must be a whole number of tokens, at least 1, not 0$"):
        dataclasses.replace(recipe, window=0)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_devices(device: str) -> None:
    assert Recipe("r", "m", device=device).device == device


def test_what_needs_no_schema_starts_without_pydantic() -> None:
    modules = ("method_options", "yaml")
    code = "; ".join(["import sys", *(f"import vase_cli.config.{name}" for name in modules), "print(*sys.modules)"])
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "yaml" in loaded and not {"pydantic", "platformdirs"} & set(loaded)
