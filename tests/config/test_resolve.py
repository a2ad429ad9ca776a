"""Precedence of zoo entry, recipe and command line, and where each value says it came from."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from vase_cli import plugins
from vase_cli.config.method_options import make_method, parse_option
from vase_cli.config.resolve import load_recipe, resolve_recipe
from vase_cli.config.schema import ModelEntry, Recipe, RecipeFile, SamplingParams, Thinking
from vase_cli.errors import ConfigError

ENTRY = ModelEntry(
    "zoo-model",
    hub_id="a/b",
    sampling={"thinking": SamplingParams(0.6, 20, 0.95), "plain": SamplingParams(0.7, 20, 0.8)},
    dense_tokens={"aime26": 15325.0, "hmmt25": 17847.0},
    budgets={"gsm8k": 512, "math500": 1024},
    source=Path("zoo/zoo-model.yaml"),
)
RECIPE = """\
model: zoo-model
method: vase-attnv
method_options: {n_large: 128, sinks: 8}
budgets: {gsm8k: 256}
dense_tokens: {aime26: 9000}
sampling: {temperature: 1}
seed: 5
"""


@pytest.fixture
def file(tmp_path: Path) -> RecipeFile:
    return written(tmp_path, RECIPE)


def written(folder: Path, text: str) -> RecipeFile:
    path = folder / "mine.yaml"
    path.write_text(text)
    return load_recipe(path, "mine")


def test_every_layer_wins_over_the_one_before(file: RecipeFile) -> None:
    overrides = {"seed": 7, "top_k": 0, "method_options": {"sinks": 2}, "limit": 10, "samples": None}
    recipe = resolve_recipe(file, ENTRY, overrides)
    assert (recipe.seed, recipe.limit, recipe.samples) == (7, 10, None)
    assert recipe.sampling == SamplingParams(temperature=1.0, top_k=0, top_p=0.95)
    assert recipe.method_options == {"n_large": 128, "sinks": 2}
    assert recipe.budgets == {"gsm8k": 256, "math500": 1024}
    assert recipe.dense_tokens == {"aime26": 9000.0, "hmmt25": 17847.0}


def test_origins(file: RecipeFile, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    origins = resolve_recipe(file, ENTRY, {"seed": 7, "top_k": 0, "method_options": {"sinks": 2}}).origins
    assert {
        "seed": "command line",
        "sampling.top_k": "command line",
        "sampling.temperature": f"recipe mine ({path}:6)",
        "sampling.top_p": "zoo entry zoo-model",
        "method_options.n_large": f"recipe mine ({path}:3)",
        "method_options.sinks": "command line",
        "budgets.gsm8k": f"recipe mine ({path}:4)",
        "budgets.math500": "zoo entry zoo-model",
        "dense_tokens.hmmt25": "zoo entry zoo-model",
        "think": "zoo entry zoo-model",
        "window": "default",
    }.items() <= origins.items()


def test_a_budget_for_every_task_hides_the_ones_under_it(file: RecipeFile, tmp_path: Path) -> None:
    recipe = resolve_recipe(file, ENTRY, {"budget": "4x"})
    assert (recipe.budget, recipe.budgets) == ("4x", {})
    assert not [key for key in recipe.origins if key.startswith("budgets.")]
    own = written(tmp_path, "model: zoo-model\nbudget: 2048\nbudgets: {aime26: 4096}\n")
    recipe = resolve_recipe(own, ENTRY, {})
    assert recipe.budgets == {"aime26": 4096}
    assert (recipe.budget_for("gsm8k"), recipe.budget_for("aime26"), recipe.budget_for(None)) == (2048, 4096, 2048)


def test_another_method_drops_the_recipes_options(file: RecipeFile) -> None:
    recipe = resolve_recipe(file, ENTRY, {"method": "snapkv", "method_options": {"protect_prompt": True}})
    assert recipe.method_options == {"protect_prompt": True}
    assert "method_options.n_large" not in recipe.origins
    assert resolve_recipe(file, ENTRY, {"method": "vase-attnv"}).method_options == {"n_large": 128, "sinks": 8}


def test_another_model_drops_what_was_measured_on_the_recipes_own(file: RecipeFile) -> None:
    other = ModelEntry("other", hub_id="c/d", dense_tokens={"aime26": 5.0})
    recipe = resolve_recipe(file, other, {"model": "other"})
    assert (recipe.model, recipe.dense_tokens, recipe.budgets) == ("other", {"aime26": 5.0}, {})
    assert recipe.seed == 5


def test_full_takes_no_budget(file: RecipeFile) -> None:
    recipe = resolve_recipe(file, ENTRY, {"method": "full"})
    assert (recipe.budget, recipe.budgets) == (None, {})
    with pytest.raises(ConfigError, match="method full evicts nothing and takes no budget"):
        resolve_recipe(file, ENTRY, {"method": "full", "budget": "512"})


def test_sampling_follows_the_thinking_mode(file: RecipeFile) -> None:
    recipe = resolve_recipe(RecipeFile("none"), ENTRY, {"think": False})
    assert (recipe.think, recipe.sampling) == (False, SamplingParams(0.7, 20, 0.8))
    assert recipe.model == "zoo-model"


@pytest.mark.parametrize(
    ("mode", "think", "typed", "way_out"),
    [
        ("always", False, "--no-think: m always thinks; leave it out", r"say think: true \(--think\)"),
        ("never", True, "--think: m does not think; leave it out", r"say think: false \(--no-think\)"),
    ],
)
def test_a_thinking_mode_that_the_model_lacks(
    mode: Literal["always", "never"], think: bool, typed: str, way_out: str, tmp_path: Path
) -> None:
    entry = ModelEntry("m", hub_id="a/b", thinking=Thinking(mode))
    assert resolve_recipe(RecipeFile("m"), entry, {}).think is not think
    with pytest.raises(ConfigError) as caught:
        resolve_recipe(RecipeFile("m"), entry, {"think": think})
    assert str(caught.value) == typed
    with pytest.raises(ConfigError, match=rf"mine\.yaml:2\): think: m .*; leave it out or {way_out}$"):
        resolve_recipe(written(tmp_path, f"model: m\nthink: {str(think).lower()}\n"), entry, {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"window": 0}, "--window: must be a whole number of tokens, at least 1, not 0"),
        ({"top_p": 95.0}, "--top-p: 95.0 is not in (0, 1], 1 being off; write 0.95 for 95 percent"),
        ({"temperature": float("nan")}, "--temperature: must be a number, not nan"),
        ({"method": "vase-atnv"}, "--method: 'vase-atnv' is not known; did you mean 'vase-attnv'?"),
        ({"budget": "4k"}, "--budget: '4k' is not a number of tokens nor a ratio"),
        ({"device": "gpu"}, "--device: 'gpu' is not a device"),
        (
            {"slots": "0"},
            "--slots: must be a whole number of sequences, at least 1, or auto, not '0'; write 0 without quotes",
        ),
        ({"slots": 0}, "--slots: must be a whole number of sequences, at least 1, or auto, not 0"),
        ({"system_prompt": " "}, "--system: is empty"),
        ({"max_new_tokens": 0}, "--max-new-tokens: must be a whole number of tokens, at least 1, not 0"),
        ({"budgets": {"gsm8k": 0}}, "command line: budgets.gsm8k: 0 is not a positive number of tokens"),
        ({"seeds": 1}, "command line: seeds: unknown key; did you mean 'seed'?"),
    ],
)
def test_the_command_line_is_checked_like_a_file(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_recipe(RecipeFile("none"), ENTRY, overrides)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("n_large=256", ("n_large", 256)),
        ("alpha=0.5", ("alpha", 0.5)),
        ("alpha=1e-3", ("alpha", 0.001)),
        ("protect-prompt=true", ("protect_prompt", True)),
        ("protect_prompt=no", ("protect_prompt", "no")),
        ("n_large=010", ("n_large", "010")),
        ("alpha=1e999", ("alpha", "1e999")),
        (" name = a=b ", ("name", "a=b")),
    ],
)
def test_options_are_typed(text: str, parsed: tuple[str, object]) -> None:
    key, value = parse_option(text)
    assert (key, value, type(value)) == (*parsed, type(parsed[1]))


@pytest.mark.parametrize("text", ["n_large", "n_large=", "=1", ""])
def test_an_option_needs_key_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match="write key=value"):
        parse_option(text)


@dataclasses.dataclass
class Options:
    """A method with an option of each type."""

    share: float = 0.5
    count: int | None = None
    flag: bool = False
    word: str = ""
    kind: Literal["a", "b"] = "a"


def made(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Options:
    monkeypatch.setattr(plugins, "load", lambda group, name: Options)
    return make_method(Recipe("here", model="m", method_options=options))


def test_options_are_coerced(monkeypatch: pytest.MonkeyPatch) -> None:
    options = made(monkeypatch, share=1, count=3, flag=True, word="x", kind="b")
    assert options == Options(1.0, 3, True, "x", "b")
    assert type(options.share) is float


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("cuont", 3, "here: cuont: unknown option of vase-attnv; did you mean 'count'?"),
        ("count", 1.5, "here: count: must be a whole number, not 1.5"),
        ("count", True, "here: count: must be a whole number, not true"),
        ("count", "010", "here: count: must be a whole number, not '010'; write 10"),
        ("share", "half", "here: share: must be a number, not 'half'"),
        ("share", True, "here: share: must be a number, not true"),
        ("count", 10**17, "here: count: 100000000000000000 is too large; write a number up to 2147483647"),
        ("share", -1e300, "here: share: -1e+300 is too large"),
        ("flag", 1, "here: flag: must be true or false, not 1; write true"),
        ("flag", "no", "here: flag: must be true or false, not 'no'; write false"),
        ("word", 5, "here: word: must be text, not 5"),
        ("kind", "c", "here: kind: 'c' is not known; "),
    ],
)
def test_options_of_the_wrong_type(monkeypatch: pytest.MonkeyPatch, option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(monkeypatch, **{option: value})
    assert str(caught.value).startswith(message)


def test_make_method_names_where_a_bad_option_is_written(file: RecipeFile, tmp_path: Path) -> None:
    method = make_method(resolve_recipe(file, ENTRY, {}))
    assert (method.n_large, method.sinks) == (128, 8)
    with pytest.raises(ConfigError, match="-o nlarge: unknown option of vase-attnv; did you mean 'n_large'"):
        make_method(resolve_recipe(file, ENTRY, {"method_options": {"nlarge": 1}}))
    with pytest.raises(ConfigError, match=r"recipe mine \(.*mine.yaml:2\): sinks: must be a whole number"):
        make_method(resolve_recipe(written(tmp_path, "model: m\nmethod_options: {sinks: few}\n"), ENTRY, {}))
