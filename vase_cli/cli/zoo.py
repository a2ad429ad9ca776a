"""``vase zoo``: models and their facts."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli import catalog_files
from vase_cli.cli.catalog_files import Destination, Force, Names, ZooFolder, cell, value_rows
from vase_cli.cli.output import AsJson, print_columns, print_json, print_list, print_notes
from vase_cli.config.catalog import Catalog, CatalogFile
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import files_of, read_facts

_ModelName = Annotated[str, typer.Argument(help="Zoo name, model folder or hub id.")]
_ZooName = Annotated[str, typer.Argument(help="Zoo name.")]

app = typer.Typer(help="List models, show one, check or copy their files.", no_args_is_help=True)


@app.command("list")
def list_entries(as_json: AsJson = False, zoo: ZooFolder = None) -> None:
    """One row for each model: name, parameters, shape, thinking, where its weights are, where the entry is."""
    entries = []
    for file, entry in catalog_files.loaded(Catalog.open(zoo=zoo), "zoo", _load):
        parameters = f"{entry.parameters:,}" if entry.parameters else "-"
        shape = map(str, vars(entry.shape).values()) if entry.shape else ["-"] * 4
        row = (entry.name, parameters, *shape, entry.thinking.mode, entry.hub_id or str(entry.path), file.source)
        entries.append((dataclasses.asdict(entry), row))
    headings = ("NAME", "PARAMETERS", "LAYERS", "HEADS", "KV HEADS", "HEAD DIM", "THINKS", "WEIGHTS", "ENTRY")
    print_list(headings, entries, as_json=as_json)


@app.command("show")
def show_entry(name: _ModelName, as_json: AsJson = False, zoo: ZooFolder = None) -> None:
    """Every fact of a model, and the line of the file that states it."""
    catalog = Catalog.open(zoo=zoo)
    entry = catalog.find_model(name)
    print_notes(catalog.notes(None, entry))
    facts = None if entry.thresholds is None else read_facts(Path(entry.thresholds))
    if as_json:
        print_json(dataclasses.asdict(entry) | ({} if facts is None else {"threshold_facts": facts.shown()}))
        return
    rows = []
    for key, value, origin in value_rows(entry, skip="source"):
        rows.append((key, value, "-" if value == "-" or key == "name" else origin))
        if key == "thresholds" and facts is not None:
            origins = {fact: f"{entry.thresholds}:{facts.lines[fact]}" for fact in facts.shown()}
            rows += [(f"thresholds.{fact}", cell(stated), origins[fact]) for fact, stated in facts.shown().items()]
    print_columns(("FACT", "VALUE", "FROM"), rows)


@app.command("validate")
def validate_entries(names: Names = None, zoo: ZooFolder = None) -> None:
    """Check zoo entries, one line each; the exit code is 2 if any is wrong."""
    catalog_files.validate(Catalog.open(zoo=zoo), "zoo", names or [], lambda file: _thresholds(_load(file)))


@app.command("copy")
def copy_entry(name: _ZooName, destination: Destination = None, force: Force = False, zoo: ZooFolder = None) -> None:
    """Copy an entry into your own folder, to edit it there; prints where it is."""
    file = Catalog.open(zoo=zoo).find("zoo", name)
    entry = _load(file)
    beside = [] if file.path.name == "entry.yaml" else _thresholds(entry)
    catalog_files.copy(file, destination, beside=beside, force=force)


def _load(file: CatalogFile) -> ModelEntry:
    return load_entry(file.path, file.name)


def _thresholds(entry: ModelEntry) -> list[Path]:
    return [] if entry.thresholds is None else files_of(Path(entry.thresholds))
