"""Results on stdout, all else on stderr: for a terminal with rich, for a pipe as plain text."""

import sys
from collections.abc import Sequence

import typer

from vase_cli.reports.tables import Table


def print_table(table: Table, *, err: bool = False) -> None:
    """Print a table on stdout, or on stderr."""
    if (sys.stderr if err else sys.stdout).isatty():
        from rich.console import Console

        Console(stderr=err).print(table.rich())
    else:
        typer.echo("\n".join(table.lines()), err=err)


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns of text on stdout, the same on a terminal and in a pipe."""
    typer.echo("\n".join(Table(headings, rows, left=len(headings)).lines()))


def print_notes(notes: Sequence[str]) -> None:
    """Print notes, such as a hidden built-in file, on stderr."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
