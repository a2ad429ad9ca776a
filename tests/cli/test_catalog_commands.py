"""``vase zoo``, ``vase recipes`` and ``vase methods``: what they print, and where."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer import Typer
from typer.testing import CliRunner

from vase_cli import plugins
from vase_cli.cli import methods, recipes, zoo
from vase_cli.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; returns the user's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VASE_PATH", raising=False)
    return tmp_path / "config" / "vase"


def call(app: Typer, *arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return list(result.stdout.splitlines())


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(("app", "kind"), [(zoo.app, "zoo"), (recipes.app, "recipes")])
def test_list(app: Typer, kind: str) -> None:
    head, *rows = lines(call(app, "list"))
    assert head.split()[0] == "NAME"
    assert [row.split()[0] for row in rows] == sorted(row.split()[0] for row in rows)
    assert "qwen3-8b" in [row.split()[0] for row in rows]
    records = [json.loads(line) for line in lines(call(app, "list", "--json"))]
    assert [record["name"] for record in records] == [row.split()[0] for row in rows]


def test_list_leaves_out_a_broken_file_and_says_so(home: Path) -> None:
    broken = put(home / "zoo" / "broken.yaml", "hub: a/b\n")
    result = call(zoo.app, "list")
    assert "qwen3-8b" in result.stdout
    assert "broken" not in result.stdout
    assert f"left out: {broken}:1: hub: unknown key" in result.stderr
    assert result.exit_code == 0


def test_a_hidden_built_in_is_said_on_stderr(home: Path) -> None:
    put(home / "zoo" / "qwen3-8b.yaml", "hub_id: me/mine\n")
    put(home / "recipes" / "qwen3-8b.yaml", "model: qwen3-8b\n")
    for app, noun in ((zoo.app, "zoo entry"), (recipes.app, "recipe")):
        for arguments in (["list"], ["show", "qwen3-8b"]):
            result = call(app, *arguments)
            assert f"note: {noun} qwen3-8b: {home}" in result.stderr
            assert "note:" not in result.stdout


def test_zoo_show() -> None:
    rows = {row.split()[0]: row for row in lines(call(zoo.app, "show", "qwen3-14b"))}
    assert rows["shape.kv_heads"].split()[1:2] == ["8"]
    assert rows["dense_tokens.aime26"].split()[1] == "15325.0"
    assert rows["hub_id"].endswith("qwen3-14b.yaml:2")
    assert rows["sampling.thinking.min_p"].split("/")[-1].startswith("qwen3-14b.yaml:")
    record = json.loads(call(zoo.app, "show", "qwen3-14b", "--json").stdout)
    assert record["shape"] == {"layers": 40, "heads": 40, "kv_heads": 8, "head_dim": 128}


def test_zoo_show_of_a_hub_id() -> None:
    rows = {row.split()[0]: row.split() for row in lines(call(zoo.app, "show", "Qwen/Qwen9-1B"))}
    assert rows["shape"] == ["shape", "-", "-"]
    assert rows["sampling.plain.temperature"][1:] == ["0.6", "default"]
    named = lines(call(zoo.app, "show", "Qwen/Qwen3-0.6B"))
    assert named == lines(call(zoo.app, "show", "qwen3-0.6b"))


def test_recipes_show_says_where_each_value_is_from(tmp_path: Path) -> None:
    path = put(
        tmp_path / "mine.yaml", 'model: qwen3-14b\nwindow: 32\nbudgets: {gsm8k: 4x}\nsystem_prompt: "one\\ntwo"\n'
    )
    rows = {row.split()[0]: row for row in lines(call(recipes.app, "show", path))}
    assert rows["window"].split(maxsplit=2)[1:] == ["32", f"recipe mine ({path}:2)"]
    assert rows["budgets.gsm8k"].split(maxsplit=2)[1:] == ["4x", f"recipe mine ({path}:3)"]
    assert rows["budgets.math500"].split(maxsplit=2)[1:] == ["1024", "zoo entry qwen3-14b"]
    assert rows["sampling.top_k"].split(maxsplit=2)[1:] == ["20", "zoo entry qwen3-14b"]
    assert rows["attention"].split() == ["attention", "auto", "default"]
    assert rows["system_prompt"].split(maxsplit=2)[1] == "one\\ntwo"
    record = json.loads(call(recipes.app, "show", path, "--json").stdout)
    assert (record["window"], record["origins"]["window"]) == (32, f"recipe mine ({path}:2)")


def test_recipes_show_says_where_what_is_compared_is_from() -> None:
    rows = {row.split()[0]: row for row in lines(call(recipes.app, "show", "tiny-reasoner"))}
    for key in ("compare.methods", "compare.budgets"):
        assert "recipe tiny-reasoner (" in rows[key] and not rows[key].endswith("default")


@pytest.mark.parametrize("app", [zoo.app, recipes.app])
def test_unknown_name(app: Typer) -> None:
    result = call(app, "show", "qwen3-9b")
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'qwen3-8b'?" in str(result.exception)


@pytest.mark.parametrize("app", [zoo.app, recipes.app])
def test_validate_built_in(app: Typer) -> None:
    assert all(line.endswith(".yaml: ok") for line in lines(call(app, "validate")))


def test_validate_says_every_file_that_is_wrong(tmp_path: Path) -> None:
    good = put(tmp_path / "good.yaml", "hub_id: a/b\n")
    bad = put(tmp_path / "bad.yaml", "hub_id: a/b\nlayers: 4\n")
    worse = put(tmp_path / "worse.yaml", "- hub_id\n")
    result = call(zoo.app, "validate", bad, good, worse, "nowhere")
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [f"{good}: ok"]
    first, second, third = result.stderr.splitlines()
    assert first.startswith(f"{bad}:2: layers: unknown key")
    assert second.startswith(f"{worse}:1: not a mapping")
    assert third.startswith("no zoo entry 'nowhere'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: qwen3-9b", "model 'qwen3-9b' is no zoo entry, folder or hub id"),
        (
            "model: qwen3-8b\nmethod_options: {nlarge: 4}",
            ":2): nlarge: unknown option of vase-attnv; did you mean 'n_large'?",
        ),
        ("model: qwen3-8b\ntasks: [gsm8]", "no task 'gsm8'; did you mean 'gsm8k'?"),
        ("model: qwen3-8b\ntasks: [gsm8k]\nbudget: 64", "budget 64 for gsm8k: not above the window of 64 tokens"),
        ("model: qwen3-8b\ntasks: [gsm8k]\nbudget: 512\nmethod_options: {n_large: 500}", "n_large is 500"),
        ("model: deepseek-r1-0528-qwen3-8b\nthink: false", ":2): think: deepseek-r1-0528-qwen3-8b always thinks"),
    ],
)
def test_validate_checks_a_recipe_with_all_it_names(tmp_path: Path, text: str, message: str) -> None:
    path = put(tmp_path / "mine.yaml", text + "\n")
    result = call(recipes.app, "validate", path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert str(path) in result.stderr
    assert message in result.stderr
    assert result.stdout == ""


def test_copy_to_the_users_folder_and_edit(home: Path) -> None:
    assert lines(call(recipes.app, "copy", "qwen3-8b")) == [str(home / "recipes" / "qwen3-8b.yaml")]
    copied = home / "recipes" / "qwen3-8b.yaml"
    copied.write_text(copied.read_text().replace("window: 64", "window: 32"))
    result = call(recipes.app, "show", "qwen3-8b")
    assert f"recipe qwen3-8b ({copied}:" in result.stdout
    again = call(recipes.app, "copy", "qwen3-14b")
    assert again.exit_code == 0


def test_copy_never_replaces_without_force(tmp_path: Path) -> None:
    there = put(tmp_path / "qwen3-8b.yaml", "mine\n")
    result = call(zoo.app, "copy", "qwen3-8b", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert "is there already; add --force to replace it" in str(result.exception)
    assert there.read_text() == "mine\n"
    assert call(zoo.app, "copy", "qwen3-8b", tmp_path, "--force").exit_code == 0
    assert "hub_id: Qwen/Qwen3-8B" in there.read_text()


def test_copy_to_a_new_name(tmp_path: Path) -> None:
    assert lines(call(recipes.app, "copy", "qwen3-8b", tmp_path / "new" / "mine.yaml")) == [
        str(tmp_path / "new/mine.yaml")
    ]


def test_copy_of_a_folder_entry_takes_all_of_it(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "zoo"
    put(own / "tiny" / "entry.yaml", "path: .\n")
    put(own / "tiny" / "sub" / "model.safetensors", "weights")
    assert lines(call(zoo.app, "copy", "tiny", "--zoo", own)) == [str(home / "zoo" / "tiny")]
    assert (home / "zoo" / "tiny" / "sub" / "model.safetensors").read_text() == "weights"
    assert ["path", str(home / "zoo" / "tiny")] in [line.split()[:2] for line in lines(call(zoo.app, "show", "tiny"))]
    result = call(zoo.app, "copy", "tiny", tmp_path / "one.yaml", "--zoo", own)
    assert "tiny is a whole folder" in str(result.exception)
    assert "is tiny itself" in str(call(zoo.app, "copy", "tiny", own, "--zoo", own, "--force").exception)
    assert (own / "tiny" / "sub" / "model.safetensors").read_text() == "weights"


def test_copy_takes_the_thresholds_along(tmp_path: Path) -> None:
    put(tmp_path / "zoo" / "m.yaml", "hub_id: a/b\nthresholds: m.thresholds.yaml\n")
    put(
        tmp_path / "zoo" / "m.thresholds.yaml",
        "format: 1\nnumbers: m.thresholds.safetensors\ndigest: 0123456789abcdef\nmodel: a/b\ntask: gsm8k\n"
        "problems: 1\ntokens: 1\nrule: mad:6\nseed: 0\ndate: today\nlayers: 1\nkv_heads: 1\n",
    )
    put(tmp_path / "zoo" / "m.thresholds.safetensors", "numbers")
    assert call(zoo.app, "copy", "m", tmp_path / "new", "--zoo", tmp_path / "zoo").exit_code == 0
    assert call(zoo.app, "validate", tmp_path / "new" / "m.yaml").exit_code == 0


def test_methods_list() -> None:
    head, *rows = lines(call(methods.app, "list"))
    assert head.split()[0] == "NAME"
    assert [row.split()[0] for row in rows] == plugins.names("eviction")
    assert all(len(row.split()) > 3 for row in rows)  # each says what it does
    records = [json.loads(line) for line in lines(call(methods.app, "list", "--json"))]
    assert [record["name"] for record in records] == plugins.names("eviction")


@pytest.mark.parametrize("name", plugins.names("eviction"))
def test_every_option_of_every_method_is_explained(name: str) -> None:
    record = json.loads(call(methods.app, "show", name, "--json").stdout)
    assert record["options"]
    for option in record["options"]:
        assert option["about"], option
        assert option["type"]


def test_methods_show() -> None:
    rows = {row.split()[0]: row.split() for row in lines(call(methods.app, "show", "vase-attnv")) if row}
    assert rows["n_large"][1:3] == ["int", "-"]
    assert rows["sinks"][1:3] == ["int", "4"]
    assert rows["protect_prompt"][1:3] == ["bool", "false"]
    result = call(methods.app, "show", "vase-attn")
    assert "did you mean 'vase-attnv'?" in str(result.exception)
