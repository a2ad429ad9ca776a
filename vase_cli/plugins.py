"""Methods, tasks, graders and attention backends by name.

A plug-in is one file, whose name (with ``-`` for ``_`` in a method's) is the registered name, and which defines one
constant: ``METHOD``, ``TASK``, ``GRADER`` or ``BACKEND``. Other packages add theirs through the entry-point groups
``vase.eviction``, ``vase.tasks``, ``vase.graders`` and ``vase.attention``, whose values name the same kind of object.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from vase_cli.errors import ConfigError, VaseError, did_you_mean, first_line

_GROUPS = {
    "eviction": ("method", "METHOD"),
    "tasks": ("task", "TASK"),
    "graders": ("grader", "GRADER"),
    "attention": ("attention backend", "BACKEND"),
}

_METHODS = {"graders": ("grade", "parse_gold", "__enter__"), "attention": ("check", "prefill", "decode")}


def names(group: str) -> list[str]:
    """Registered names of a group, built-in and third-party, sorted; nothing is imported but the package."""
    return sorted({*_built_in(group), *_third_party(group)})


def load(group: str, name: str) -> Any:
    """The object registered under ``name``, first a built-in one.

    A ConfigError suggests the nearest name there is, or says which package's plug-in cannot be loaded, and why.
    """
    kind, constant = _GROUPS[group]
    if module := _built_in(group).get(name):
        return getattr(importlib.import_module(module), constant)
    if entry := _third_party(group).get(name):
        with blamed(group, name):
            return entry.load()
    raise ConfigError(f"no {kind} '{name}'; {did_you_mean(name, names(group))}")


def make(group: str, name: str) -> Any:
    """An instance of a grader's or backend's class; ConfigError as in :func:`load`, for a fault or another class."""
    with blamed(group, name):
        made = load(group, name)()
        for method in _METHODS[group]:
            if not hasattr(type(made), method):
                raise TypeError(f"its class {type(made).__name__} has no {method}()")
        return made


@contextlib.contextmanager
def blamed(group: str, name: str) -> Iterator[None]:
    """Run another package's plug-in: what it raises becomes a ConfigError that names it, its package and the fault.

    A VaseError, and what a built-in one raises, stay as they are.
    """
    try:
        yield
    except VaseError:
        raise
    except (Exception, SystemExit) as error:
        entry = _third_party(group).get(name)
        if entry is None or name in _built_in(group):
            raise
        package = f"package {entry.dist.name}" if entry.dist else f"module {entry.module}"
        fault = first_line(error)
        if not fault.startswith(type(error).__name__):
            fault = f"{type(error).__name__}: {fault}"
        raise ConfigError(
            f"the {_GROUPS[group][0]} '{name}' of the {package} fails ({fault}); fix or uninstall the {package}"
        ) from error


def summary(group: str, name: str) -> str:
    """First docstring line of the class under ``name``; a built-in's is read from its source, without importing it."""
    module = _built_in(group).get(name)
    text = _docstring_in_source(module, _GROUPS[group][1]) if module else None
    if text is None:
        with blamed(group, name):
            text = inspect.cleandoc(load(group, name).__doc__ or "")
    return text.partition("\n")[0]


def _docstring_in_source(module: str, constant: str) -> str | None:
    """Docstring of the class that a module's constant is; None if the module's own file does not say."""
    package, _, file = module.rpartition(".")
    try:
        body = ast.parse(pkgutil.get_data(package, f"{file}.py") or b"").body
    except OSError:
        return None
    docstrings = {node.name: ast.get_docstring(node) for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=name)) if target == constant:
                return docstrings.get(name)
    return None


def _built_in(group: str) -> dict[str, str]:
    package = importlib.import_module(f"vase_cli.{group}")
    modules = (module.name for module in pkgutil.iter_modules(package.__path__))
    files = (name for name in modules if name != "base" and not name.startswith("_"))
    dash = "-" if group == "eviction" else "_"
    return {file.replace("_", dash): f"{package.__name__}.{file}" for file in files}


def _third_party(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in _installed(group, tuple(sys.path))}


@functools.cache
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Entry points of a group in the packages on a search path; looking through them takes milliseconds."""
    return entry_points(group=f"vase.{group}")
