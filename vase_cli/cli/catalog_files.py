"""Options, tables, checks and copies that ``vase zoo`` and ``vase recipes`` share."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from vase_cli.cli.output import echo, print_left_out, print_notes
from vase_cli.config.catalog import Catalog, CatalogFile, Kind, user_folder
from vase_cli.errors import ConfigError, VaseError, file_access, user_path

ZooFolder = Annotated[Path | None, typer.Option("--zoo", help="Folder of zoo entries, searched first.")]
RecipesFolder = Annotated[Path | None, typer.Option("--recipes", help="Folder of recipes, searched first.")]
Names = Annotated[list[str] | None, typer.Argument(help="Names or .yaml files; all if none is named.")]
Destination = Annotated[
    Path | None, typer.Argument(help="Folder, or for one file its new name (.yaml); your own folder if left out.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]

T = TypeVar("T")


def value_rows(record: Any, skip: str) -> list[tuple[str, str, str]]:
    """Dotted key, value and origin (its own or its mapping's) of each value of a record, without the field ``skip``."""

    def rows(values: Mapping[str, Any], prefix: str, outer: str) -> Iterator[tuple[str, str, str]]:
        for name, value in values.items():
            key = prefix + name
            origin = record.origins.get(key, outer)
            nested = vars(value) if dataclasses.is_dataclass(value) else value
            if nested and isinstance(nested, Mapping):
                yield from rows(nested, f"{key}.", origin)
            else:
                yield key, cell(value), origin

    shown = {name: value for name, value in vars(record).items() if name not in (skip, "origins")}
    return list(rows(shown, "", "default"))


def cell(value: Any) -> str:
    """A value as a recipe would write it, in one line; "-" for none."""
    if isinstance(value, bool):
        return str(value).lower()
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "-" if value in (None, (), {}) else text.replace("\n", "\\n")


def loaded(catalog: Catalog, kind: Kind, load: Callable[[CatalogFile], T]) -> Iterator[tuple[CatalogFile, T]]:
    """Each file and what it loads as; one that does not load is left out, with its error on stderr."""
    for file in catalog.files(kind).values():
        print_notes(file.notes)
        try:
            yield file, load(file)
        except ConfigError as error:
            print_left_out(error)


def validate(catalog: Catalog, kind: Kind, names: Sequence[str], check: Callable[[CatalogFile], object]) -> None:
    """Check files; a line for each, "ok" on stdout or its error on stderr, and exit code 2 if any is wrong."""
    wrong = False
    for name in names or list(catalog.files(kind)):
        path = name
        try:
            file = catalog.find(kind, name)
            path = str(file.path)
            check(file)
            echo(f"{path}: ok")
        except VaseError as error:
            wrong = True
            echo(str(error) if path in str(error) else VaseError(f"{path}: {error}"), err=True)
    if wrong:
        raise typer.Exit(2)


def copy(file: CatalogFile, destination: Path | None, *, beside: Sequence[Path] = (), force: bool) -> None:
    """Copy an entry's folder, or a file and the files ``beside`` it that it names; print where the copy is.

    ConfigError if something is there already and ``force`` is false, or it cannot be written.
    """
    source = file.path.parent if file.path.name == "entry.yaml" else file.path
    target = user_folder() / file.kind if destination is None else user_path(destination, ConfigError)
    if target.suffix != ".yaml":
        target /= source.name
    elif source.is_dir():
        raise ConfigError(f"{target}: {file.name} is a whole folder; name a folder to copy it into")
    if target.exists() and target.resolve() == source.resolve():
        raise ConfigError(f"{target}: is {file.name} itself; name another folder")
    copies = {source: target, **{path: target.parent / path.name for path in beside}}
    if not force and (taken := [path for path in copies.values() if path.exists()]):
        raise ConfigError(f"{taken[0]}: is there already; add --force to replace it")
    contents = {}
    for path in copies:
        if not path.is_dir():
            with file_access("read", path, ConfigError):
                contents[path] = path.read_bytes()
    with file_access("write", target, ConfigError):
        target.parent.mkdir(parents=True, exist_ok=True)
        for path, new in copies.items():
            if path.is_dir():
                shutil.copytree(path, new, dirs_exist_ok=True)
            else:
                new.write_bytes(contents[path])
    echo(target)
