"""``vase zoo``: the models there are, and the facts of one."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

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
    origin_of,
    validate,
)
from vase_cli.cli.output import print_columns, print_notes
from vase_cli.config.catalog import Catalog, CatalogFile
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import files_of, read_facts

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
    print_columns(rows[0], rows[1:])


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
    facts = None if entry.thresholds is None else read_facts(Path(entry.thresholds))
    if as_json:
        typer.echo(_json(entry, {} if facts is None else {"threshold_facts": facts.shown()}))
        return
    rows = [("FACT", "VALUE", "FROM")]
    for key, value in flatten(entry, skip=("origins", "source")).items():
        nothing = value in (None, {}) or key == "name"
        rows.append((key, cell(value), "-" if nothing else origin_of(entry.origins, key)))
        if key == "thresholds" and facts is not None:
            rows += [
                (f"thresholds.{fact}", cell(said), f"{entry.thresholds}:{facts.lines[fact]}")
                for fact, said in facts.shown().items()
            ]
    print_columns(rows[0], rows[1:])


@app.command("validate")
def validate_entries(names: Names = None, zoo: ZooFolder = None) -> None:
    """Check zoo files; exit code 2 if any is wrong, a line for each."""
    catalog = Catalog.open(zoo=zoo)
    validate(catalog, "zoo", names or [], _check)


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
    beside = [] if whole_folder or entry.thresholds is None else files_of(Path(entry.thresholds))
    typer.echo(copy(file, destination, beside=beside, force=force))


def _check(file: CatalogFile) -> None:
    entry = load_entry(file.path, file.name)
    if entry.thresholds is not None:
        files_of(Path(entry.thresholds))


def _json(entry: ModelEntry, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps(
        dataclasses.asdict(entry) | dict(more or {}), default=str, ensure_ascii=False
    )  # a Path is its text
