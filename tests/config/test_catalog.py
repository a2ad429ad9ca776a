import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vase_cli.config.catalog import BUILT_IN, Catalog, built_in_folder, entry_from_folder, user_folder
from vase_cli.config.schema import DEFAULT_SAMPLING, ModelShape, SamplingParams, Thinking
from vase_cli.errors import ConfigError

QWEN3 = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 32,
    "max_position_embeddings": 512, "dtype": "float32",
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that the user's own files do not count; returns the folder of the app."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VASE_PATH", raising=False)
    return tmp_path / "config" / "vase"


def put(path: Path, text: str = "hub_id: a/b\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_search_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / "given", tmp_path / "first" / "zoo", tmp_path / "second" / "zoo", home / "zoo"]
    for place in places:
        put(place / "qwen3-8b.yaml")
    monkeypatch.setenv("VASE_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    for number, place in enumerate(places):
        file = Catalog.open(zoo=places[0] if number == 0 else None).find("zoo", "qwen3-8b")
        assert file.path == place / "qwen3-8b.yaml"
        assert file.source == str(place)
        assert f"{file.path} is used instead of the built-in" in file.notes[0]
        (place / "qwen3-8b.yaml").unlink()
    file = Catalog.open().find("zoo", "qwen3-8b")
    assert (file.source, file.notes) == (BUILT_IN, [])


def test_only_a_hidden_built_in_is_said(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASE_PATH", str(tmp_path))
    put(tmp_path / "zoo" / "mine.yaml")
    put(home / "zoo" / "mine.yaml")
    assert Catalog.open().find("zoo", "mine").notes == []


def test_the_users_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_folder() == home
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert user_folder() == tmp_path / "home" / ".config" / "vase"


def test_resolve_says_what_is_hidden(home: Path) -> None:
    put(home / "zoo" / "qwen3-8b.yaml", "hub_id: me/mine\n")
    catalog = Catalog.open()
    recipe, entry = catalog.resolve("qwen3-8b", {"seed": 3})
    assert (recipe.model, recipe.seed, entry.hub_id) == ("qwen3-8b", 3, "me/mine")
    assert [note.partition(":")[0] for note in catalog.notes("qwen3-8b", entry)] == ["zoo entry qwen3-8b"]


def test_resolve_without_a_recipe() -> None:
    recipe, entry = Catalog.open().resolve(None, {"model": "qwen3-14b", "budget": "4x"})
    assert (recipe.name, recipe.model, recipe.budget) == ("qwen3-14b", "qwen3-14b", "4x")
    assert Catalog.open().notes(None, entry) == []
    assert recipe.dense_tokens == entry.dense_tokens != {}
    with pytest.raises(ConfigError, match="no recipe and no model"):
        Catalog.open().resolve(None, {})


def test_a_folder_entry(home: Path) -> None:
    put(home / "zoo" / "tiny" / "entry.yaml", "path: .\n")
    put(home / "zoo" / "tiny" / "README.md")
    put(home / "zoo" / "no-entry" / "notes.txt")
    put(home / "zoo" / ".hidden.yaml")
    catalog = Catalog.open()
    assert not {"no-entry", ".hidden", "README"} & catalog.files("zoo").keys()
    entry = catalog.find_model("tiny")
    assert entry.path == home / "zoo" / "tiny"
    assert entry.name == "tiny"


def test_an_entry_of_a_folder_says_what_the_folder_says_where_it_is_silent(home: Path, tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.3, "top_k": 7}
    weights = model_folder(tmp_path / "weights", QWEN3, generation_config=generation)
    own = entry_from_folder(weights)
    put(home / "zoo" / "mine.yaml", f"path: {weights}\ndense_tokens: {{gsm8k: 300}}\n")
    entry = Catalog.open().find_model("mine")
    for key in ("shape", "dtype", "configured_tokens", "thinking", "sampling"):
        assert getattr(entry, key) == getattr(own, key)
    assert entry.origins["sampling"] == str(weights / "generation_config.json")
    put(home / "zoo" / "mine.yaml", f"path: {weights}\nsampling: {{thinking: {{temperature: 0.9}}}}\ndtype: float16\n")
    entry = Catalog.open().find_model("mine")
    assert (entry.dtype, entry.sampling["thinking"].temperature, entry.shape) == ("float16", 0.9, own.shape)
    assert entry.origins["sampling"] == f"{home / 'zoo' / 'mine.yaml'}:2"


def test_a_hub_id_is_the_entry_that_names_it(home: Path) -> None:
    catalog = Catalog.open()
    assert catalog.find_model("Qwen/Qwen3-0.6B") == catalog.find_model("qwen3-0.6b")
    put(home / "zoo" / "broken.yaml", "hub_id: 3\n")
    put(home / "zoo" / "mine.yaml", "hub_id: me/mine\ndense_tokens: {gsm8k: 300}\n")
    assert Catalog.open().find_model("me/mine").dense_tokens == {"gsm8k": 300.0}
    assert Catalog.open().find_model("me/other").name == "me/other"


def test_a_file_and_a_folder_of_one_name(home: Path) -> None:
    put(home / "zoo" / "tiny" / "entry.yaml")
    put(home / "zoo" / "tiny.yaml")
    with pytest.raises(ConfigError, match=r"both tiny\.yaml and tiny/entry\.yaml; keep one"):
        Catalog.open().files("zoo")


def test_unknown_names() -> None:
    catalog = Catalog.open()
    with pytest.raises(ConfigError, match=r"no recipe 'qwen3-9b'; did you mean 'qwen3-8b'\?"):
        catalog.find("recipes", "qwen3-9b")
    with pytest.raises(ConfigError, match=r"no recipe 'gemma3-4b'; there are: "):  # half of its letters are another's
        catalog.find("recipes", "gemma3-4b")
    with pytest.raises(ConfigError, match=r"no zoo entry 'zzz'; there are: .*qwen3-8b"):
        catalog.find("zoo", "zzz")
    with pytest.raises(ConfigError, match="model 'qwen3-9b' is no zoo entry, folder or hub id; did you mean"):
        catalog.find_model("qwen3-9b")
    with pytest.raises(ConfigError, match=r"recipe nowhere/mine\.yaml: no such file"):
        catalog.find("recipes", "nowhere/mine.yaml")


def test_a_recipe_by_path(tmp_path: Path) -> None:
    path = put(tmp_path / "mine.yaml", "model: qwen3-8b\n")
    assert Catalog.open().find("recipes", str(path)).name == "mine"


def test_folders_that_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--zoo .*nowhere: not a folder"):
        Catalog.open(zoo=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"--recipes .*nowhere: not a folder"):
        Catalog.open(recipes=tmp_path / "nowhere")
    monkeypatch.setenv("VASE_PATH", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"\$VASE_PATH: .*gone is not a folder"):
        Catalog.open()


def test_built_in_folder_of_a_wheel_and_of_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "vase_cli"
    put(tmp_path / "zoo" / "a.yaml")
    package.mkdir()
    # Beside the package but no checkout: somebody else's folder named zoo.
    with pytest.raises(ConfigError, match="the built-in zoo folder is missing"):
        built_in_folder("zoo", package)
    put(tmp_path / "pyproject.toml", "")
    assert built_in_folder("zoo", package) == tmp_path / "zoo"
    put(package / "_data" / "zoo" / "a.yaml")
    assert built_in_folder("zoo", package) == package / "_data" / "zoo"


def model_folder(folder: Path, config: Any, **files: Any) -> Path:
    put(folder / "config.json", json.dumps(config))
    for name, content in files.items():
        put(folder / f"{name}.json", json.dumps(content))
    return folder


def test_a_model_folder_without_an_entry(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "weights", QWEN3)
    entry = Catalog.open().find_model(str(folder))
    assert (entry.name, entry.path, entry.hub_id, entry.source) == ("weights", folder, None, None)
    assert entry.shape == ModelShape(2, 4, 2, 16)
    assert (entry.dtype, entry.configured_tokens) == ("float32", 512)
    assert entry.sampling == {"thinking": DEFAULT_SAMPLING, "plain": DEFAULT_SAMPLING}


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"head_dim": None}, ModelShape(2, 4, 2, 8)),  # hidden / heads
        ({"num_key_value_heads": None}, ModelShape(2, 4, 4, 16)),  # multi-head attention
        ({"num_hidden_layers": None}, None),
        ({"num_attention_heads": 0, "num_key_value_heads": None, "head_dim": None}, None),
    ],
)
def test_shapes_that_a_config_leaves_out(tmp_path: Path, changes: dict[str, Any], shape: ModelShape | None) -> None:
    assert entry_from_folder(model_folder(tmp_path / "weights", QWEN3 | changes)).shape == shape


@pytest.mark.parametrize(
    ("generation", "sampling"),
    [
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}, SamplingParams(0.7, 20, 0.8)),
        ({"do_sample": True}, SamplingParams(temperature=1.0)),
        ({"do_sample": True, "temperature": 0.0}, SamplingParams()),
        ({"do_sample": False, "temperature": 0.7}, SamplingParams()),
        ({"temperature": 0.7, "top_p": 0.5}, SamplingParams(0.7, top_p=0.5)),
        ({"eos_token_id": 3}, DEFAULT_SAMPLING),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            SamplingParams(0.7, 20, 0.8, repetition_penalty=1.05),
        ),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
        ({"repetition_penalty": 1.1}, SamplingParams(0.6, top_p=0.95, repetition_penalty=1.1)),
        ({"repetition_penalty": None}, DEFAULT_SAMPLING),
    ],
)
def test_sampling_of_a_model_folder(tmp_path: Path, generation: dict[str, Any], sampling: SamplingParams) -> None:
    entry = entry_from_folder(model_folder(tmp_path / "weights", QWEN3, generation_config=generation))
    assert entry.sampling["thinking"] == entry.sampling["plain"] == sampling


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        ("{{ x }}{% if add_generation_prompt %}a{% if enable_thinking is false %}<think></think>", Thinking("switch")),
        ("{{ x }}{% if add_generation_prompt %}{{'<a><think>\\n'}}{% endif %}", Thinking("always", "prompt")),
        ("{{ x.split('</think>')[-1] }}{% if add_generation_prompt %}<a>{% endif %}", Thinking("always", "model")),
        ("{{ x }}{% if add_generation_prompt %}<a>{% endif %}", Thinking("never")),
    ],
)
def test_thinking_of_a_model_folder(tmp_path: Path, template: str, thinking: Thinking) -> None:
    folder = model_folder(tmp_path / "weights", QWEN3, tokenizer_config={"chat_template": template})
    assert entry_from_folder(folder).thinking == thinking
    put(folder / "chat_template.jinja", "{{ x }}")  # the newer place wins
    assert entry_from_folder(folder).thinking == Thinking("never")


def test_model_folders_that_are_not(tmp_path: Path) -> None:
    catalog = Catalog.open()
    with pytest.raises(ConfigError, match=r"no config\.json in it"):
        catalog.find_model(str(tmp_path))
    with pytest.raises(ConfigError, match="no such folder"):
        catalog.find_model(str(tmp_path / "gone"))
    put(tmp_path / "config.json", "{")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
        catalog.find_model(str(tmp_path))
    put(tmp_path / "config.json", "[]")
    with pytest.raises(ConfigError, match=r"config\.json: not a JSON object"):
        catalog.find_model(str(tmp_path))


def test_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Catalog.open().find_model("Qwen/Qwen9-1B")
    assert (entry.name, entry.hub_id, entry.shape) == ("Qwen/Qwen9-1B", "Qwen/Qwen9-1B", None)
    # A folder of results with the model's name is not the model; one with a config is.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen9-1B").mkdir(parents=True)
    assert Catalog.open().find_model("Qwen/Qwen9-1B").path is None
    model_folder(tmp_path / "Qwen" / "Qwen9-1B", QWEN3)
    assert Catalog.open().find_model("Qwen/Qwen9-1B").path == Path("Qwen/Qwen9-1B")


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys, vase_cli.cli.zoo, vase_cli.cli.recipes, vase_cli.cli.methods; "
        "from vase_cli.config.catalog import Catalog; "
        "c = Catalog.open(); [c.resolve(n, {}) for n in c.files('recipes')]; "
        "print({'torch', 'transformers', 'datasets', 'rich'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_a_pipe_is_neither_a_recipe_nor_a_file_of_a_model(tmp_path: Path) -> None:
    catalog = Catalog.open()
    recipe, generation = tmp_path / "mine.yaml", tmp_path / "generation_config.json"
    put(tmp_path / "config.json", json.dumps(QWEN3))
    for path in (recipe, generation):
        os.mkfifo(path)
    with pytest.raises(ConfigError, match=rf"^cannot read {recipe}: it is a pipe or a device; "):
        catalog.resolve(str(recipe), {})
    with pytest.raises(ConfigError, match=rf"^cannot read {generation}: it is a pipe or a device; "):
        catalog.find_model(str(tmp_path))
