"""Plug-ins for one test: a package with entry points, or new files in the rooms of the product."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


@contextlib.contextmanager
def installed_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, modules: Mapping[str, str], entry_points: str
) -> Iterator[None]:
    """A package that is installed in a folder of its own: the source of each module by its path, and entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for path, source in modules.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(source)
    forget(package)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    forget(package)


@contextlib.contextmanager
def files_in_rooms(root: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str]) -> Iterator[None]:
    """Files below ``root``, such as ``vase_cli/eviction/mine.py``, found as if they were in the product's own rooms.

    Processes that are started in between find them, too.
    """
    rooms = {path: importlib.import_module(Path(path).parent.as_posix().replace("/", ".")) for path in paths}
    started = root / "of-other-processes"
    started.mkdir()
    extended = "".join(
        f"import {room.__name__}\n{room.__name__}.__path__.append({str((root / path).parent)!r})\n"
        for path, room in rooms.items()
        if room.__name__ == "vase_cli.graders"
    )
    (started / "sitecustomize.py").write_text(extended)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(started), prepend=os.pathsep)
        for path, room in rooms.items():
            patch.setattr(room, "__path__", [*room.__path__, str((root / path).parent)])
        importlib.invalidate_caches()
        yield
    for path, room in rooms.items():
        forget(f"{room.__name__}.{Path(path).stem}")
        room.__dict__.pop(Path(path).stem, None)


def forget(module: str) -> None:
    """Drop a module and what is in it, so that the next import reads its file."""
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        del sys.modules[name]
