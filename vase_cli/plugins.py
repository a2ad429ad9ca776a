"""Methods, tasks, graders and attention backends by name.

A plug-in is one file: its name, with ``-`` for ``_``, is its registered name, found without importing
it. Each module defines one constant, named after its group (``METHOD``, ``TASK``, ``GRADER``,
``BACKEND``). Other packages add theirs through the entry-point groups ``vase.eviction``,
``vase.tasks``, ``vase.graders`` and ``vase.attention``, whose values name the same kind of object.
"""

import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vase_cli.errors import ConfigError, did_you_mean

_GROUPS = {
    "eviction": ("method", "METHOD"),
    "tasks": ("task", "TASK"),
    "graders": ("grader", "GRADER"),
    "attention": ("attention backend", "BACKEND"),
}


def names(group: str) -> list[str]:
    """Registered names of a group, built-in and third-party, sorted; nothing is imported but the package."""
    return sorted({*_built_in(group), *_third_party(group)})


def load(group: str, name: str) -> Any:
    """The object registered under ``name``; a built-in wins over an entry point of the same name.

    Raises:
        ConfigError: no such name, with the nearest one suggested.
    """
    kind, constant = _GROUPS[group]
    if module := _built_in(group).get(name):
        return getattr(importlib.import_module(module), constant)
    if entry := _third_party(group).get(name):
        return entry.load()
    raise ConfigError(f"no {kind} '{name}'; {did_you_mean(name, names(group))}")


def _built_in(group: str) -> dict[str, str]:
    package = importlib.import_module(f"vase_cli.{group}")
    modules = (module.name for module in pkgutil.iter_modules(package.__path__))
    files = [name for name in modules if name != "base" and not name.startswith("_")]
    names = [file.replace("_", "-") if group == "eviction" else file for file in files]
    return {name: f"{package.__name__}.{file}" for name, file in zip(names, files, strict=True)}


def _third_party(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"vase.{group}")}
