"""Read zoo entries and recipes, and put the layers of a run over each other."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from vase_cli import plugins
from vase_cli.config.architecture import read_architecture
from vase_cli.config.budget import parse_budget
from vase_cli.config.schema import (
    COMMAND_LINE,
    SAMPLING_KEYS,
    Comparison,
    ModelEntry,
    ModelShape,
    Recipe,
    RecipeFile,
    SamplingParams,
    Thinking,
    is_hub_id,
)
from vase_cli.config.yaml import Fields, Rule, Scalar, choice, flag, number, read_mapping, scalar, text, whole
from vase_cli.errors import ConfigError, did_you_mean

T = TypeVar("T")


def _sampling(key: str) -> Rule[Any]:
    convert: Rule[float] = whole("tokens", minimum=0) if key == "top_k" else number()

    def rule(value: Scalar) -> float:
        converted = convert(value)
        try:
            SamplingParams(**{key: converted})  # type: ignore[arg-type]
        except ConfigError as error:
            raise ValueError(str(error).removeprefix(f"{key}: ")) from None
        return converted

    return rule


def _budget(written: Scalar) -> int | str:
    value = scalar(written)
    try:
        parsed = parse_budget(value)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("budget ")) from None
    return parsed if isinstance(parsed, int) else str(value).strip().lower()


def _slots(written: Scalar) -> int | str:
    if str(written) == "auto":
        return "auto"
    try:
        return whole("sequences")(written)
    except ValueError as error:
        given = str(error).partition(", not ")[2]
        raise ValueError(f"must be a whole number of sequences, at least 1, or auto, not {given}") from None


def _registered(group: str) -> Rule[str]:
    """A registered name; looked up when asked, so that other packages' plug-ins count."""

    def rule(written: Scalar) -> str:
        return choice(*plugins.names(group), *(["auto"] if group == "attention" else []))(written)

    return rule


def _device(written: Scalar) -> str:
    device = str(written)
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device):
        return device
    raise ValueError(f"'{device}' is not a device; write auto, cpu, cuda or cuda:0")


def _hub_id(written: Scalar) -> str:
    if is_hub_id(str(written)):
        return str(written)
    raise ValueError(f"'{written}' is not a hub id; write organisation/name")


_SAMPLING_RULES = {key: _sampling(key) for key in SAMPLING_KEYS}
_DTYPE = choice("auto", "bfloat16", "float16", "float32")
_RULES: dict[str, Rule[Any]] = {
    "model": text,
    "method": _registered("eviction"),
    "budget": _budget,
    "window": whole("tokens"),
    "samples": whole("samples per problem"),
    "seed": whole(minimum=0, maximum=2**63 - 1),
    "limit": whole("problems"),
    "max_new_tokens": whole("tokens"),
    "max_total_tokens": whole("tokens"),
    "think": flag,
    "system_prompt": text,
    "slots": _slots,
    "dtype": _DTYPE,
    "attention": _registered("attention"),
    "compile": choice("auto", "on", "off"),
    "device": _device,
}
_TASK_RULES: dict[str, Rule[Any]] = {"budgets": _budget, "dense_tokens": number("tokens", positive=True)}
RECIPE_KEYS = (*_RULES, *_TASK_RULES, "method_options", "tasks", "sampling", "compare")

_ENTRY_RULES: dict[str, Rule[Any]] = {
    "hub_id": _hub_id,
    "revision": text,
    "parameters": whole("parameters"),
    "dtype": _DTYPE,
    "context_tokens": whole("tokens"),
    "configured_tokens": whole("tokens"),
    "license": text,
    "url": text,
}
_ENTRY_TASK_RULES: dict[str, Rule[Any]] = {"budgets": whole("tokens"), "dense_tokens": _TASK_RULES["dense_tokens"]}
_ENTRY_KEYS = (*_ENTRY_RULES, *_ENTRY_TASK_RULES, "path", "thresholds", "shape", "architecture", "thinking", "sampling")


def load_entry(path: Path, name: str) -> ModelEntry:
    """Read one zoo file; a relative ``path`` or ``thresholds`` in it is relative to the file.

    Raises:
        ConfigError: the file breaks a rule, with file, line and key.
    """
    fields = read_mapping(path)
    fields.only(_ENTRY_KEYS)
    if ("hub_id" in fields) == ("path" in fields):
        raise fields.error(None, "needs exactly one of hub_id (organisation/name) and path (a folder)")
    values: dict[str, Any] = {key: fields.get(key, rule) for key, rule in _ENTRY_RULES.items() if key in fields}
    for key, rule in _ENTRY_TASK_RULES.items():
        if key in fields:
            values[key] = _by_task(fields.section(key), rule, plugins.names("tasks"))
    if "path" in fields:
        values["path"] = _beside(fields, "path", Path.is_dir, "folder")
    if "thresholds" in fields:
        values["thresholds"] = str(_beside(fields, "thresholds", Path.is_file, "file"))
    if "shape" in fields:
        values["shape"] = _shape(fields.section("shape"))
    if "architecture" in fields:
        values["architecture"] = read_architecture(fields.section("architecture"))
    if "thinking" in fields:
        values["thinking"] = _thinking(fields.section("thinking"))
    if "sampling" in fields:
        values["sampling"] = _entry_sampling(fields.section("sampling"))
    origins = {key: f"{path}:{line}" for key, line in fields.lines().items()}
    return ModelEntry(name, **values, source=path, origins=origins)


def load_recipe(path: Path, name: str) -> RecipeFile:
    """Read one recipe file; a ``model`` or task that starts with ``./``, ``../``, ``~`` or ``/`` is a path.

    A relative path is relative to the file.

    Raises:
        ConfigError: the file breaks a rule, with file, line and key.
    """
    fields = read_mapping(path)
    fields.only(RECIPE_KEYS)
    if "model" not in fields:
        raise fields.error("model", "is missing; name a zoo entry, a hub id or a folder")
    values: dict[str, Any] = {key: fields.get(key, rule) for key, rule in _RULES.items() if key in fields}
    values["model"] = _from_file(path, values["model"])
    if "tasks" in fields:
        tasks = [_from_file(path, task) for task in fields.sequence("tasks", text)]
        if twice := [task for index, task in enumerate(tasks) if task in tasks[:index]]:
            raise fields.error("tasks", f"{twice[0]} is there twice; keep one")
        values["tasks"] = tuple(tasks)
    known_tasks = [*plugins.names("tasks"), *(Path(task).stem for task in values.get("tasks", ()))]
    for key, rule in _TASK_RULES.items():
        if key in fields:
            values[key] = _by_task(fields.section(key), rule, known_tasks)
    if "method_options" in fields:
        options = fields.section("method_options")
        values["method_options"] = {key: options.get(key, scalar) for key in options}
    if "sampling" in fields:
        sampling = fields.section("sampling")
        sampling.only(SAMPLING_KEYS)
        values["sampling"] = {key: sampling.get(key, _SAMPLING_RULES[key]) for key in sampling}
    if "compare" in fields:
        values["compare"] = _comparison(fields.section("compare"))
    if values.get("method") == "full" and (given := {"budget", "budgets"} & values.keys()):
        raise fields.error(min(given), "method full evicts nothing and takes no budget; remove the line")
    return RecipeFile(name, path, values, fields.lines())


def resolve_recipe(file: RecipeFile, entry: ModelEntry, overrides: Mapping[str, Any]) -> Recipe:
    """Put the layers over each other: zoo entry < recipe < command line.

    ``overrides`` has recipe keys, and ``temperature``, ``top_k``, ``top_p``, ``min_p`` for ``sampling``'s; None is "not
    given". A budget for every task hides the budgets per task of the layers under it. Another method or model on
    the command line drops the recipe's ``method_options``, or its ``budgets`` and ``dense_tokens``: those belong to
    the recipe's own.

    Raises:
        ConfigError: a value out of range, a budget for ``full``, or a thinking mode that the model lacks.
    """
    given = _check_overrides({key: value for key, value in overrides.items() if value is not None})
    written = dict(file.values)
    own_method = written.get("method", Recipe.method)
    if given.get("method", own_method) != own_method:
        written.pop("method_options", None)
    if given.get("model", written.get("model")) != written.get("model"):
        written.pop("budgets", None)
        written.pop("dense_tokens", None)
    facts = {"budgets": entry.budgets, "dense_tokens": entry.dense_tokens}
    layers: list[_Layer] = [
        (facts, lambda key: _entry_origin(entry)),
        (written, file.origin),
        (given, lambda key: COMMAND_LINE),
    ]
    compared = not {"method", "budget", "budgets"} & given.keys()
    values: dict[str, Any] = {"model": entry.name, "think": entry.thinking.mode != "never"}
    origins = dict.fromkeys((*_RULES, "tasks"), "default") | {"think": _entry_origin(entry)}
    for layer, origin in layers:
        for key in (*_RULES, "tasks"):
            if key in layer:
                values[key], origins[key] = layer[key], origin(key)
    for key in (*_TASK_RULES, "method_options"):
        values[key], places = _merge(key, layers)
        origins |= places
    if values.get("method") == "full":
        if {"budget", "budgets"} & given.keys():
            raise ConfigError(
                "method full evicts nothing and takes no budget; leave --budget out, or change the method"
            )
        values |= {"budget": None, "budgets": {}}
        origins = {key: where for key, where in origins.items() if not key.startswith("budgets.")}
        origins["budget"] = "method full"
    _check_thinking(entry, values["think"], origins["think"])
    facts["sampling"] = dataclasses.asdict(entry.sampling["thinking" if values["think"] else "plain"])
    sampling, places = _merge("sampling", layers)
    if compared and "compare" in written:
        values["compare"], origins["compare"] = written["compare"], file.origin("compare")
    return Recipe(file.name, **values, sampling=SamplingParams(**sampling), origins=origins | places)


# What one layer says, and where a dotted key of it is written.
_Layer: TypeAlias = tuple[Mapping[str, Any], Callable[[str], str]]


def _merge(key: str, layers: Sequence[_Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """One mapping over all layers, later wins name by name; and where each value came from."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, origin in layers:
        if key == "budgets" and "budget" in layer:  # one budget for every task hides what lies under it
            merged, origins = {}, {}
        for name, value in layer.get(key, {}).items():
            merged[name], origins[f"{key}.{name}"] = value, origin(f"{key}.{name}")
    return merged, origins


def _check_overrides(given: dict[str, Any]) -> dict[str, Any]:
    sampling = {**given.pop("sampling", {}), **{key: given.pop(key) for key in SAMPLING_KEYS if key in given}}
    if unknown := [key for key in given if key not in RECIPE_KEYS]:
        raise ConfigError(f"{COMMAND_LINE}: {unknown[0]}: unknown; {did_you_mean(unknown[0], RECIPE_KEYS)}")
    checked = {key: check_given(key, value) if key in _RULES else value for key, value in given.items()}
    for key, rule in _TASK_RULES.items():
        if key in given:
            checked[key] = {
                task: _check(f"{COMMAND_LINE}: {key}.{task}", rule, value) for task, value in given[key].items()
            }
    if sampling:
        checked["sampling"] = {
            key: _check(_typed(key), _SAMPLING_RULES[key], value)
            for key, value in sampling.items()
            if value is not None
        }
    if "tasks" in given:
        checked["tasks"] = tuple(given["tasks"])
    return checked


def check_given(key: str, value: Any) -> Any:
    """One value of the command line, by the recipe's rule for ``key``.

    Raises:
        ConfigError: the rule refuses it; the message starts with the option as it is typed.
    """
    return _check(_typed(key), _RULES[key], value)


def _typed(key: str) -> str:
    """The option that sets a recipe's key: ``top_p`` -> ``--top-p``."""
    return "--system" if key == "system_prompt" else f"--{key.replace('_', '-')}"


def _check(place: str, rule: Rule[T], value: Any) -> T:
    try:
        return rule(value)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def _check_thinking(entry: ModelEntry, think: bool, where: str) -> None:
    if entry.thinking.mode != ("never" if think else "always"):
        return
    does, option, other = "always thinks", "--no-think", "think: true (--think)"
    if think:
        does, option, other = "does not think", "--think", "think: false (--no-think)"
    if where == COMMAND_LINE:
        raise ConfigError(f"{option}: {entry.name} {does}; leave it out")
    raise ConfigError(f"{where}: think: {entry.name} {does}; leave it out or say {other}")


def _entry_origin(entry: ModelEntry) -> str:
    return f"zoo entry {entry.name}" if entry.source else entry.origins.get("sampling", "default")


def _by_task(section: Fields, rule: Rule[T], known: Collection[str]) -> dict[str, T]:
    for task in section:
        if task not in known:
            raise section.error(task, f"no task of that name; {did_you_mean(task, known)}")
    return {task: section.get(task, rule) for task in section}


def _comparison(section: Fields) -> Comparison:
    section.only([one.name for one in dataclasses.fields(Comparison)])
    methods = section.sequence("methods", _registered("eviction")) if "methods" in section else []
    budgets = section.sequence("budgets", _budget) if "budgets" in section else []
    return Comparison(tuple(methods), tuple(budgets))


def _shape(section: Fields) -> ModelShape:
    names = [one.name for one in dataclasses.fields(ModelShape)]
    section.only(names)
    if missing := [name for name in names if name not in section]:
        raise section.error(None, f"{missing[0]} is missing; a shape is {', '.join(names)}")
    shape = ModelShape(**{name: section.get(name, whole()) for name in names})
    if shape.heads % shape.kv_heads:
        raise section.error("kv_heads", f"{shape.heads} heads do not divide into {shape.kv_heads} KV heads")
    return shape


def _thinking(section: Fields) -> Thinking:
    section.only(("mode", "opened_by"))
    if "mode" not in section:
        raise section.error(None, "mode is missing; write always, switch or never")
    mode = section.get("mode", choice("always", "switch", "never"))
    opened_by = section.get("opened_by", choice("prompt", "model")) if "opened_by" in section else "model"
    return Thinking(mode, opened_by)  # type: ignore[arg-type]


def _entry_sampling(section: Fields) -> dict[str, SamplingParams]:
    """Both modes; one that is not written samples like the other."""
    section.only(("thinking", "plain"))
    modes = {}
    for mode in section:
        values = section.section(mode)
        values.only(SAMPLING_KEYS)
        if "temperature" not in values:
            raise values.error(None, "temperature is missing; 0 is greedy")
        modes[mode] = SamplingParams(**{key: values.get(key, _SAMPLING_RULES[key]) for key in values})
    if not modes:
        raise section.error(None, "is empty; write thinking, plain or both under it")
    only = next(iter(modes.values()))
    return {"thinking": modes.get("thinking", only), "plain": modes.get("plain", only)}


def _beside(fields: Fields, key: str, exists: Callable[[Path], bool], kind: str) -> Path:
    path = fields.path.parent / Path(fields.get(key, text)).expanduser()
    if not exists(path):
        raise fields.error(key, f"no {kind} {path}; a relative path starts from the YAML file")
    return path


def _from_file(path: Path, name: str) -> str:
    if name in (".", "..") or name.startswith(("./", "../", "~", "/")):
        return str(path.parent / Path(name).expanduser())
    return name
