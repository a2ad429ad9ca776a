"""What ``vase zoo`` and ``vase recipes`` share: their options, tables, and checking and copying of files."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from vase_cli.cli.output import print_notes
from vase_cli.config.catalog import Catalog, CatalogFile, Kind, user_folder
from vase_cli.errors import ConfigError, VaseError

T = TypeVar("T")


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")]
ZooFolder = Annotated[Path | None, typer.Option("--zoo", help="Folder of zoo entries, searched first.")]
RecipesFolder = Annotated[Path | None, typer.Option("--recipes", help="Folder of recipes, searched first.")]
Names = Annotated[list[str] | None, typer.Argument(help="Names or .yaml files; all of them if none.")]
Destination = Annotated[
    Path | None, typer.Argument(help="Folder, or for one file its new name (.yaml); your own folder if left out.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def flatten(record: Any, skip: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a frozen record by dotted key, nested records and mappings opened."""
    flat: dict[str, Any] = {}
    for key, value in _items(record):
        if key not in skip:
            inner = _items(value)
            flat |= {f"{key}.{name}": each for name, each in flatten(value).items()} if inner else {key: value}
    return flat


def _items(value: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
    return list(value.items()) if isinstance(value, Mapping) else []


def cell(value: Any) -> str:
    """One value as a recipe would write it; "-" for none."""
    if value is None or value in ((), {}):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text.replace("\n", "\\n")  # one row stays one line


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """Where a value, or else the mapping that leaves it to its default, is written."""
    while key not in origins and "." in key:
        key = key.rpartition(".")[0]
    return origins.get(key, "default")


def load_each(catalog: Catalog, kind: Kind, load: Callable[[CatalogFile], T]) -> list[tuple[CatalogFile, T]]:
    """Every file that loads; one that does not is said on stderr and left out, so that it cannot hide the others."""
    loaded: list[tuple[CatalogFile, T]] = []
    for file in catalog.files(kind).values():
        print_notes([file.note] if file.note else [])
        try:
            loaded.append((file, load(file)))
        except ConfigError as error:
            typer.echo(f"left out: {error}", err=True)
    return loaded


def validate(catalog: Catalog, kind: Kind, names: Sequence[str], check: Callable[[CatalogFile], object]) -> None:
    """Check files; one line each, "ok" on stdout or what is wrong on stderr, and exit code 2 if any is wrong."""
    wrong = 0
    for name in names or list(catalog.files(kind)):
        path = name
        try:
            file = catalog.find(kind, name)
            path = str(file.path)
            check(file)
        except VaseError as error:
            wrong += 1
            typer.echo(str(error) if path in str(error) else f"{path}: {error}", err=True)
        else:
            typer.echo(f"{path}: ok")
    if wrong:
        raise typer.Exit(2)


def copy(file: CatalogFile, destination: Path | None, *, beside: Sequence[Path] = (), force: bool) -> Path:
    """Copy an entry's folder, or a file and the files ``beside`` it that it names; returns the copy's path.

    Raises:
        ConfigError: something is there already and ``force`` is false, or it cannot be written.
    """
    source = file.path.parent if file.path.name == "entry.yaml" else file.path
    target = destination if destination is not None else user_folder() / file.kind
    if target.suffix != ".yaml":
        target /= source.name
    elif source.is_dir():
        raise ConfigError(f"{target}: {file.name} is a whole folder; name a folder to copy it into")
    if target.exists() and target.resolve() == source.resolve():
        raise ConfigError(f"{target}: is {file.name} itself; name another folder")
    copies = {source: target} | {path: target.parent / path.name for path in beside}
    if not force and (taken := [path for path in copies.values() if path.exists()]):
        raise ConfigError(f"{taken[0]}: is there already; add --force to replace it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for path, new in copies.items():
            if path.is_dir():
                shutil.copytree(path, new, dirs_exist_ok=True)
            else:
                shutil.copyfile(path, new)
    except (OSError, shutil.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"{target}: cannot be written: {reason}") from None
    return target
