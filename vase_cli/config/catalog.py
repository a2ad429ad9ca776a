"""Finds zoo entries and recipes: built-in, the user's own, or a path.

Searched in this order, first wins: ``--zoo DIR`` and ``--recipes DIR``; each folder of ``$VASE_PATH``; the user's
folder (``~/.config/vase`` or ``$XDG_CONFIG_HOME/vase`` on Linux); the built-in files. The last three hold ``zoo/`` and
``recipes/``. An entry is ``NAME.yaml``, or for a model with files of its own the folder ``NAME`` with ``entry.yaml``.
``NAME.thresholds.yaml`` beside an entry is no entry: it is what the entry's ``thresholds`` names.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from vase_cli.config.resolve import load_entry, load_recipe, resolve_recipe
from vase_cli.config.schema import (
    DEFAULT_SAMPLING,
    SAMPLING_KEYS,
    ModelEntry,
    ModelShape,
    Recipe,
    RecipeFile,
    SamplingParams,
    Thinking,
)
from vase_cli.config.types import HUB_ID, DType
from vase_cli.errors import ConfigError, did_you_mean, file_access, first_line, user_path

Kind = Literal["zoo", "recipes"]
_NOUNS: dict[Kind, str] = {"zoo": "zoo entry", "recipes": "recipe"}
BUILT_IN = "built-in"


@dataclass(frozen=True)
class CatalogFile:
    """The file of a name; ``source`` is "built-in" or a folder, ``hides`` the built-in file of the same name."""

    kind: Kind
    name: str
    path: Path
    source: str
    hides: Path | None = None

    @property
    def notes(self) -> list[str]:
        """A line to print where this file hides a built-in one."""
        hiding = f"{_NOUNS[self.kind]} {self.name}: {self.path} is used instead of the built-in {self.hides}"
        return [hiding] if self.hides else []


class Resolved(NamedTuple):
    """A recipe with every value, and the model that it runs."""

    recipe: Recipe
    entry: ModelEntry


@dataclass(frozen=True)
class Catalog:
    """The folders to search, first wins: (folder, source) pairs."""

    zoo: tuple[tuple[Path, str], ...]
    recipes: tuple[tuple[Path, str], ...]

    @classmethod
    def open(cls, zoo: Path | None = None, recipes: Path | None = None) -> "Catalog":
        """The search path, ``zoo`` and ``recipes`` first; ConfigError if one, or a ``$VASE_PATH`` one, is no folder."""
        roots = [user_path(part, ConfigError) for part in os.environ.get("VASE_PATH", "").split(os.pathsep) if part]
        for root in roots:
            if not root.is_dir():
                raise ConfigError(f"$VASE_PATH: {root} is not a folder; correct or unset it")

        def search(kind: Kind, first: Path | None, content: str) -> tuple[tuple[Path, str], ...]:
            if first is not None and not (first := user_path(first, ConfigError)).is_dir():
                raise ConfigError(f"--{kind} {first}: not a folder; name one with {content} in it, or leave it out")
            folders = [*([first] if first else []), *(root / kind for root in (*roots, user_folder()))]
            return *((path, str(path)) for path in folders if path.is_dir()), (built_in_folder(kind), BUILT_IN)

        return cls(search("zoo", zoo, "zoo entries"), search("recipes", recipes, "recipes"))

    def files(self, kind: Kind) -> dict[str, CatalogFile]:
        """Files by name, sorted, not parsed; ConfigError if a folder cannot be listed or has a name twice."""
        found: dict[str, CatalogFile] = {}
        for folder, source in getattr(self, kind):
            for name, path in _scan(folder).items():
                if name not in found:
                    found[name] = CatalogFile(kind, name, path, source)
                elif source == BUILT_IN:
                    found[name] = dataclasses.replace(found[name], hides=path)
        return dict(sorted(found.items()))

    def find(self, kind: Kind, name: str) -> CatalogFile:
        """The file of a name, or of a ``.yaml`` path; ConfigError, with the nearest name, if there is none."""
        if name.endswith((".yaml", ".yml")):
            path = user_path(name, ConfigError)
            if not path.exists():
                raise ConfigError(f"{_NOUNS[kind]} {name}: no such file")
            return CatalogFile(kind, path.parent.resolve().name if path.name == "entry.yaml" else path.stem, path, name)
        files = self.files(kind)
        if name not in files:
            raise ConfigError(f"no {_NOUNS[kind]} '{name}'; {did_you_mean(name, files)}")
        return files[name]

    def find_model(self, name: str) -> ModelEntry:
        """The entry of a zoo name, of a folder with a ``config.json``, or of a hub id; searched in this order.

        A hub id that an entry names stands for that entry. ConfigError if it is none of these, or a file breaks a rule.
        """
        files = self.files("zoo")
        if name in files:
            return _completed(load_entry(files[name].path, name))
        folder, hub_id = user_path(name, ConfigError), re.fullmatch(HUB_ID, name)
        if (folder / "config.json").is_file() or (folder.is_dir() and not hub_id):
            return entry_from_folder(folder)
        if hub_id:
            for file in files.values():
                with contextlib.suppress(ConfigError):  # a file that breaks a rule matters to those who name it
                    if (entry := load_entry(file.path, file.name)).hub_id == name:
                        return entry
            return ModelEntry(name, hub_id=name)
        if os.sep in name or name.startswith("~"):
            raise ConfigError(f"model {name}: no such folder; name one with config.json and safetensors files")
        raise ConfigError(f"model '{name}' is no zoo entry, folder or hub id; {did_you_mean(name, files)}")

    def resolve(self, recipe: str | None, overrides: Mapping[str, Any]) -> Resolved:
        """Resolve a recipe (None: only ``overrides``, a ``model`` at least) and find its model; or a ConfigError."""
        model = overrides.get("model")
        if model is None and recipe is None:
            raise ConfigError("no recipe and no model; name one with --recipe or --model")
        file = None if recipe is None else self.find("recipes", recipe)
        written = RecipeFile(Path(str(model)).name) if file is None else load_recipe(file.path, file.name)
        try:
            entry = self.find_model(written.values["model"] if model is None else model)
        except ConfigError as error:
            raise error if model is not None else ConfigError(f"{written.origins['model']}: {error}") from None
        return Resolved(resolve_recipe(written, entry, overrides), entry)

    def notes(self, recipe: str | None, entry: ModelEntry) -> list[str]:
        """The lines to print where the file of a recipe or of a model hides a built-in one."""
        files = [] if recipe is None else [self.find("recipes", recipe)]
        files += [] if entry.source is None else [self.find("zoo", entry.name)]
        return [note for file in files for note in file.notes]


def user_folder() -> Path:
    """The user's own folder, which holds ``zoo/`` and ``recipes/``; it need not exist."""
    import platformdirs

    return platformdirs.user_config_path("vase", appauthor=False, roaming=True)


def built_in_folder(kind: Kind, package: Path = Path(__file__).parents[1]) -> Path:
    """The built-in files: in the package of a wheel or beside a checkout's ``pyproject.toml``, or else ConfigError."""
    packaged, checkout = package / "_data" / kind, package.parent
    if packaged.is_dir():
        return packaged
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    raise ConfigError(f"{package}: the built-in {kind} folder is missing; install vase-cli again")


def _scan(folder: Path) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    with file_access("list", folder, ConfigError):
        children = sorted(folder.iterdir())
    for child in children:
        name, path = (child.name, child / "entry.yaml") if child.is_dir() else (child.stem, child)
        if name.startswith(".") or path.suffix != ".yaml" or name.endswith(".thresholds") or not path.is_file():
            continue
        if name in paths:
            raise ConfigError(f"{folder}: both {name}.yaml and {name}/entry.yaml; keep one")
        paths[name] = path
    return paths


def entry_from_folder(folder: Path) -> ModelEntry:
    """An entry for a model folder that has none, from its JSON files; ConfigError if one is broken, or no config."""
    config = _read_json(folder / "config.json")
    if config is None:
        raise ConfigError(f"model {folder}: no config.json in it; name a folder with config.json and safetensors files")
    dtype: Any = config.get("dtype", config.get("torch_dtype"))
    sampling = _folder_sampling(folder)
    modes: dict[str, Any] = {"sampling": {"plain": sampling}} if sampling else {}
    return ModelEntry(
        folder.resolve().name,
        path=folder,
        shape=_folder_shape(config),
        dtype=dtype if dtype in get_args(DType) else "auto",
        configured_tokens=_count(config, "max_position_embeddings"),
        thinking=_folder_thinking(folder),
        **modes,
        origins={
            "sampling": str(folder / "generation_config.json") if sampling else "default",
            "shape": str(folder / "config.json"),  # less what a family has defaults for
        },
    )


def _completed(entry: ModelEntry) -> ModelEntry:
    """Complete an entry of a model folder from the folder's own files, where the entry's file leaves keys out."""
    keys = ("shape", "dtype", "configured_tokens", "thinking", "sampling")
    missing = [key for key in keys if key not in entry.origins]
    if entry.path is None or not missing or not (entry.path / "config.json").is_file():
        return entry
    own = entry_from_folder(entry.path)
    values: dict[str, Any] = {key: getattr(own, key) for key in missing}
    return dataclasses.replace(entry, **values, origins={**own.origins, **entry.origins})


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, None where there is no such file."""
    if not path.exists():
        return None
    try:
        with file_access("read", path, ConfigError):
            data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {first_line(error)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return data


def _count(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number above 0; None for anything else."""
    value = config.get(key)
    return value if type(value) is int and value > 0 else None


def _folder_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape; None for a family with other names of it, of which the loaded config knows."""
    layers, heads = _count(config, "num_hidden_layers"), _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    head_dim = _count(config, "head_dim") or (_count(config, "hidden_size") or 0) // (heads or 1)
    return ModelShape(layers, heads, kv_heads, head_dim) if layers and heads and kv_heads and head_dim else None


def _folder_sampling(folder: Path) -> SamplingParams | None:
    written = _read_json(folder / "generation_config.json")
    if written is None:
        return None
    values = {key: written[key] for key in SAMPLING_KEYS if written.get(key) is not None}
    how, does_sample = values.keys() - {"repetition_penalty"}, written.get("do_sample")
    penalty = {key: value for key, value in values.items() if key not in how}  # counts for greedy texts too
    try:
        if does_sample is False:
            return SamplingParams(**penalty)
        if does_sample is None and not how:
            return dataclasses.replace(DEFAULT_SAMPLING, **penalty) if penalty else None
        # A key that is not there has transformers' own default, which is 1.0 for the temperature.
        return SamplingParams(**{"temperature": 1.0, **values})
    except ConfigError as error:
        raise ConfigError(f"{folder / 'generation_config.json'}: {error}") from None


def _folder_thinking(folder: Path) -> Thinking:
    """The thinking mode by the text of the chat template."""
    if (template_file := folder / "chat_template.jinja").is_file():
        template = template_file.read_text(encoding="utf-8", errors="replace")
    else:
        template = str((_read_json(folder / "tokenizer_config.json") or {}).get("chat_template", ""))
    if "enable_thinking" in template:
        return Thinking("switch", "model")
    if "<think>" in template.rpartition("add_generation_prompt")[2]:
        return Thinking("always", "prompt")
    return Thinking("always", "model") if "</think>" in template else Thinking("never", "model")
