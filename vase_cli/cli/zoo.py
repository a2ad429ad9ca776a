"""``vase zoo``: the models there are, and the facts of one."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from vase_cli.catalog import Catalog
from vase_cli.cli._files import (
    AsJson,
    Destination,
    Force,
    Names,
    ZooFolder,
    cell,
    copy,
    flatten,
    load_each,
    print_columns,
    print_notes,
    validate,
)
from vase_cli.config import ModelEntry, load_entry

app = typer.Typer(help="List models, show one, check or copy their files.", no_args_is_help=True)


@app.command("list")
def list_entries(as_json: AsJson = False, zoo: ZooFolder = None) -> None:
    """One row for each model: name, parameters, shape, thinking, where its weights are, where the entry is."""
    catalog = Catalog.open(zoo=zoo)
    loaded = load_each(catalog, "zoo", lambda file: load_entry(file.path, file.name))
    if as_json:
        for _, entry in loaded:
            typer.echo(_json(entry))
        return
    rows = [("NAME", "PARAMETERS", "LAYERS", "HEADS", "KV HEADS", "HEAD DIM", "THINKS", "WEIGHTS", "ENTRY")]
    for file, entry in loaded:
        parameters = f"{entry.parameters:,}" if entry.parameters else "-"
        shape = [str(size) for size in flatten(entry.shape).values()] if entry.shape else ["-"] * 4
        weights = entry.hub_id or str(entry.path)
        rows.append(
            (entry.name, parameters, shape[0], shape[1], shape[2], shape[3], entry.thinking.mode, weights, file.source)
        )
    print_columns(rows)


@app.command("show")
def show_entry(
    name: Annotated[str, typer.Argument(help="Zoo name, model folder or hub id.")],
    as_json: AsJson = False,
    zoo: ZooFolder = None,
) -> None:
    """Every fact of a model, and the line of the file that states it."""
    catalog = Catalog.open(zoo=zoo)
    entry = catalog.find_model(name)
    if entry.source is not None and (note := catalog.find("zoo", name).note):
        print_notes([note])
    if as_json:
        typer.echo(_json(entry))
        return
    rows = [("FACT", "VALUE", "FROM")]
    for key, value in flatten(entry, skip=("origins", "source")).items():
        nothing = value in (None, {}) or key == "name"
        rows.append((key, cell(value), "-" if nothing else _origin(entry, key)))
    print_columns(rows)


@app.command("validate")
def validate_entries(names: Names = None, zoo: ZooFolder = None) -> None:
    """Check zoo files; exit code 2 if any is wrong, a line for each."""
    catalog = Catalog.open(zoo=zoo)
    validate(catalog, "zoo", names or [], lambda file: load_entry(file.path, file.name))


@app.command("copy")
def copy_entry(
    name: Annotated[str, typer.Argument(help="Zoo name.")],
    destination: Destination = None,
    force: Force = False,
    zoo: ZooFolder = None,
) -> None:
    """Copy an entry into your own folder, to edit it there; prints where it is."""
    file = Catalog.open(zoo=zoo).find("zoo", name)
    entry = load_entry(file.path, file.name)
    whole_folder = file.path.name == "entry.yaml"
    beside = [Path(entry.thresholds)] if entry.thresholds and not whole_folder else []
    typer.echo(copy(file, destination, beside=beside, force=force))


def _origin(entry: ModelEntry, key: str) -> str:
    """Where a fact, or else the mapping that leaves it to its default, is written."""
    while key not in entry.origins and "." in key:
        key = key.rpartition(".")[0]
    return entry.origins.get(key, "default")


def _json(entry: ModelEntry) -> str:
    return json.dumps(dataclasses.asdict(entry), default=str, ensure_ascii=False)  # a Path is its text
