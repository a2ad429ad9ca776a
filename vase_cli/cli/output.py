"""Results on stdout, all else on stderr: for a terminal with rich, for a pipe as plain text."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vase_cli.reports.characters import harmless, harmless_json
from vase_cli.reports.tables import Table

if TYPE_CHECKING:
    from vase_cli.runs.schema import Summary

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line, in place of text.")]


def echo(text: object, *, err: bool = False) -> None:
    """Print a line; on stderr, and on a stdout that is a terminal, what would steer a terminal is made harmless."""
    line = str(text)
    typer.echo(harmless(line) if err or sys.stdout.isatty() else line, err=err)


def print_json(record: Mapping[str, Any]) -> None:
    """Print one line of JSON on stdout; a path is its text. What would steer a terminal is escaped on one."""
    line = json.dumps(record, default=str, ensure_ascii=False)
    typer.echo(harmless_json(line) if sys.stdout.isatty() else line)


def print_tables(tables: Iterable[Table], *, err: bool = False) -> None:
    """Print tables on stdout, or on stderr."""
    for table in tables:
        if (sys.stderr if err else sys.stdout).isatty():
            from rich.console import Console

            Console(stderr=err).print(table.rich())
        else:
            echo("\n".join(table.lines()), err=err)


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns of text on stdout, the same on a terminal and in a pipe."""
    echo("\n".join(Table(headings, rows, left=len(headings)).lines()))


def print_list(
    headings: Sequence[str], entries: Iterable[tuple[Mapping[str, Any], Sequence[str]]], *, as_json: bool
) -> None:
    """Print entries, each a record and a row: the records as lines of JSON, or the rows as columns."""
    if not as_json:
        print_columns(headings, [row for _, row in entries])
        return
    for record, _ in entries:
        print_json(record)


def print_summary(summary: "Summary", *, as_json: bool) -> None:
    """Print the summary of a run on stdout: a table, or one line of JSON."""
    from vase_cli.evaluation.summary_table import summary_table

    if as_json:
        print_json(summary.model_dump())
    else:
        print_tables([summary_table(summary)])


def print_left_out(error: Exception) -> None:
    """Say on stderr why a list lacks an entry."""
    echo(f"left out: {error}", err=True)


def print_notes(notes: Sequence[str]) -> None:
    """Print notes, such as a hidden built-in file, on stderr."""
    for note in notes:
        echo(f"note: {note}", err=True)
