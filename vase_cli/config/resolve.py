"""Read zoo entries and recipes, and merge the layers of a run."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.config.schema import SAMPLING_KEYS, ModelEntry, Recipe, RecipeFile, SamplingParams
from vase_cli.config.types import check_values, partial
from vase_cli.config.yaml import COMMAND_LINE, Document, Place, dotted, read_document
from vase_cli.errors import ConfigError, did_you_mean, user_path

_EntryValues = partial(ModelEntry, "name", "source", "origins")
_RecipeValues = partial(Recipe, "name", "origins", sampling=partial(SamplingParams))
RECIPE_KEYS = tuple(_RecipeValues.model_fields)
_FULL = "method full evicts nothing and takes no budget"
_BY_NAME = ("budgets", "dense_tokens", "method_options", "sampling")  # their mappings are merged name by name


def load_entry(path: Path, name: str) -> ModelEntry:
    """Read a zoo file; paths in it are relative to it. ConfigError, with file, line and key, if it breaks a rule."""
    document = read_document(path)
    values = check_values(_EntryValues, document.values, document.error)
    if ("hub_id" in values) == ("path" in values):
        raise document.error((), "needs exactly one of hub_id (organization/name) and path (a folder)")
    if (shape := values.get("shape")) and shape.heads % shape.kv_heads:
        problem = f"{shape.heads} heads do not divide into {shape.kv_heads} KV heads"
        raise document.error(("shape", "kv_heads"), problem)
    _check_tasks(document, plugins.names("tasks"))
    for key, exists, kind in (("path", Path.is_dir, "folder"), ("thresholds", Path.is_file, "file")):
        if key in values:
            found = _path(document, (key,), values[key])
            if not exists(found):
                raise document.error((key,), f"no {kind} {found}; a relative path starts from the YAML file")
            values[key] = found if key == "path" else str(found)
    origins = {key: f"{path}:{line}" for key, line in document.key_lines().items()}
    return ModelEntry(name, **values, source=path, origins=origins)


def load_recipe(path: Path, name: str) -> RecipeFile:
    """Read a recipe file; a ``model`` or task that starts with ``./``, ``../``, ``~`` or ``/`` is a path from there.

    ConfigError, with file, line and key, if the file breaks a rule.
    """
    document = read_document(path)
    values = check_values(_RecipeValues, document.values, document.error)
    if "model" not in values:
        raise document.error(("model",), "is missing; name a zoo entry, a hub id or a folder")
    values["model"] = _from_file(document, ("model",), values["model"])
    tasks = tuple(_from_file(document, ("tasks", index), task) for index, task in enumerate(values.get("tasks", ())))
    if twice := [task for index, task in enumerate(tasks) if task in tasks[:index]]:
        raise document.error(("tasks",), f"{twice[0]} is there twice; keep one")
    _check_tasks(document, [*plugins.names("tasks"), *(Path(task).stem for task in tasks)])
    if values.get("method") == "full" and (budgets := {"budget", "budgets"} & values.keys()):
        raise document.error((min(budgets),), f"{_FULL}; remove the line")
    origins = {key: f"recipe {name} ({path}:{line})" for key, line in document.key_lines().items()}
    return RecipeFile(name, values | ({"tasks": tasks} if tasks else {}), origins)


def resolve_recipe(file: RecipeFile, entry: ModelEntry, overrides: Mapping[str, Any]) -> Recipe:
    """Merge the layers, the later wins: zoo entry, recipe, command line.

    ``overrides`` has recipe keys and the keys of ``sampling``; None for one that was left out. A budget for every task
    hides the budgets per task of earlier layers. Another method on the command line drops the recipe's
    ``method_options``, and another model its ``budgets`` and ``dense_tokens``. ConfigError for a value out of range, a
    budget for ``full``, or a thinking mode that the model lacks.
    """
    options = {key: value for key, value in overrides.items() if value is not None}
    sampling = options.pop("sampling", {}) | {key: options.pop(key) for key in SAMPLING_KEYS if key in options}
    changes = check_values(_RecipeValues, options | ({"sampling": sampling} if sampling else {}), _typed_error)
    own_method, own_model = file.values.get("method", Recipe.method), file.values.get("model")
    method = changes.get("method", own_method)
    dropped = {"method_options"} if method != own_method else set()
    if changes.get("model", own_model) != own_model:
        dropped |= {"budgets", "dense_tokens"}
    if {"method", "budget", "budgets"} & changes.keys():
        dropped |= {"compare"}
    own = {key: value for key, value in file.values.items() if key not in dropped}
    facts = {"think": entry.thinking.mode != "never", "budgets": entry.budgets, "dense_tokens": entry.dense_tokens}
    thinks = (facts | own | changes)["think"]
    facts["sampling"] = vars(entry.sampling["thinking" if thinks else "plain"])
    entry_origin = f"zoo entry {entry.name}" if entry.source else entry.origins.get("sampling", "default")
    layers: list[tuple[dict[str, Any], str | None]] = [(facts, entry_origin), (own, None), (changes, COMMAND_LINE)]
    if method == "full":
        if {"budget", "budgets"} & changes.keys():
            raise ConfigError(f"{_FULL}; leave --budget out, or change the method")
        layers.append(({"budget": None}, "method full"))
    values: dict[str, Any] = {"model": entry.name}
    origins = dict.fromkeys((key for key in RECIPE_KEYS if key not in (*_BY_NAME, "compare")), "default")
    for layer, origin in layers:
        if "budget" in layer:  # one for every task hides those of single tasks under it
            values.pop("budgets", None)
            origins = {key: place for key, place in origins.items() if not key.startswith("budgets.")}
        for key, value in layer.items():
            values[key] = {**values.get(key, {}), **value} if key in _BY_NAME else value
            dotted_keys = [f"{key}.{name}" for name in value] if key in _BY_NAME else [key]
            origins |= {dotted_key: origin or file.origins[dotted_key] for dotted_key in dotted_keys}
    _check_thinking(entry, values["think"], origins["think"])
    return Recipe(file.name, **values, origins=origins)


def check_option(key: str, value: Any) -> Any:
    """A value of the command line by the recipe's type for ``key``; ConfigError, which names the option, if refused."""
    return check_values(_RecipeValues, {key: value}, _typed_error)[key]


def _typed_error(place: Place, message: str) -> ConfigError:
    """The error for a value of the command line, by the option that sets it: ``top_p`` -> ``--top-p``."""
    key = dotted(place).removeprefix("sampling.")
    option = "--system" if key == "system_prompt" else f"--{key.replace('_', '-')}"
    return ConfigError(f"{option if key in (*RECIPE_KEYS, *SAMPLING_KEYS) else f'{COMMAND_LINE}: {key}'}: {message}")


def _check_thinking(entry: ModelEntry, think: bool, where: str) -> None:
    if entry.thinking.mode == ("never" if think else "always"):
        does, other = ("does not think", "false (--no-think)") if think else ("always thinks", "true (--think)")
        place, advice = f"{where}: think", f" or say think: {other}"
        if where == COMMAND_LINE:
            place, advice = "--think" if think else "--no-think", ""
        raise ConfigError(f"{place}: {entry.name} {does}; leave it out{advice}")


def _check_tasks(document: Document, known: Collection[str]) -> None:
    for key in ("budgets", "dense_tokens", "solves"):
        written = document.values.get(key, ())
        for index, task in enumerate(written):
            if task not in known:
                place = (key, index if isinstance(written, list) else task)
                raise document.error(place, f"no task of that name; {did_you_mean(task, known)}")


def _from_file(document: Document, place: Place, name: str) -> str:
    if name in (".", "..") or name.startswith(("./", "../", "~", "/")):
        return str(_path(document, place, name))
    return name


def _path(document: Document, place: Place, name: str | Path) -> Path:
    """A path that a file names, relative to that file; a ConfigError of that place if there can be none."""
    try:
        return user_path(name, ConfigError, document.path.parent)
    except ConfigError as error:
        raise document.error(place, str(error)) from None
