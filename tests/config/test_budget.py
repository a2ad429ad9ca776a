import json

import pytest

from vase_cli.config.budget import Budget, Ratio, parse_budget, resolve_budget
from vase_cli.errors import ConfigError

DENSE = {"aime26": 15325.0, "exact": 4048.0}


def resolve(spec: object, task: str | None = "aime26", window: int = 64, token_limit: int = 32768) -> Budget:
    budget = None if spec is None else parse_budget(spec)
    return resolve_budget(budget, task=task, window=window, token_limit=token_limit, dense_tokens=DENSE)


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [(4096, 4096), ("4096", 4096), (" 4096 ", 4096), (4100, 4100), (65, 65), ("4x", 3840), ("4X", 3840), ("1x", 15360)],
)
def test_tokens(spec: object, tokens: int) -> None:
    assert resolve(spec).tokens == tokens


def test_ratio_says_how() -> None:
    budget = resolve("4x")
    assert budget.message == "4x -> 3840 tokens: 15,325 mean full-cache tokens of aime26 / 4, rounded up to 64s"
    assert budget.warning is None


def test_ratio_rounds_up_to_the_window() -> None:
    assert resolve("3.7x").tokens == 4160  # 4141.9
    assert resolve("3.7x", window=16).tokens == 4144


def test_ratio_is_exact() -> None:
    # In floats 4048 / 2.3 is a hair above 1760, which would add a window.
    assert resolve("2.3x", task="exact", window=16).tokens == 1760


@pytest.mark.parametrize("task", ["gsm8k", None])
def test_ratio_of_the_limit_where_no_length_is_known(task: str | None) -> None:
    budget = resolve("4x", task=task, token_limit=30000)
    assert budget.tokens == 7552  # 7500, in 64s
    assert "limit of 30,000 tokens" in budget.message


def test_absolute_budget_keeps_its_value_off_the_window() -> None:
    assert resolve(4100).message == "4100 tokens, as given"


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (None, "no budget for aime26; give tokens or a ratio"),
        (64, "budget 64 for aime26: not above the window of 64 tokens"),
        ("10", "not above the window"),
        (0, "0 is not a positive number"),
        (-4096, "-4096 is not a positive number"),
        ("-1", "-1 is not a positive number"),
        ("0x", "N of 'Nx' must be at least 1"),
        ("0.5x", "N of 'Nx' must be at least 1"),
        ("nan", "not a number of tokens nor a ratio"),
        ("inf", "not a number of tokens nor a ratio"),
        ("nanx", "not a number of tokens nor a ratio"),
        ("x", "not a number of tokens nor a ratio"),
        ("", "not a number of tokens nor a ratio"),
        ("4k", "not a number of tokens nor a ratio"),
        ("4096.0", "not a number of tokens nor a ratio"),
        (4096.0, "not a number of tokens nor a ratio"),
        (True, "not a number of tokens nor a ratio"),
        ("9" * 5000, "not a number of tokens nor a ratio"),
        ("1" * 5000 + "x", "not a number of tokens nor a ratio"),
        ("1000x", "1000x -> 64 tokens"),
    ],
)
def test_refused(spec: object, part: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        resolve(spec)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parsed_budget_stays_what_a_recipe_shows() -> None:
    budget = parse_budget(" 4X ")
    assert budget == "4x" and isinstance(budget, Ratio)
    assert parse_budget(budget) == budget
    assert json.dumps({"budget": budget, "tokens": parse_budget("512")}) == '{"budget": "4x", "tokens": 512}'


@pytest.mark.parametrize(("spec", "warned"), [(32704, False), (32705, True), (40000, True), ("1x", False)])
def test_a_budget_that_never_evicts_is_a_warning(spec: object, warned: bool) -> None:
    warning = resolve(spec).warning
    assert (warning is not None) == warned
    if warning:
        assert "nothing will ever be evicted" in warning
