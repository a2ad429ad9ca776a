"""``vase grade``: grade stored texts again, without a model."""

from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli.output import AsJson, echo, print_summary


def grade(run: Annotated[Path, typer.Argument(help="A run's folder.")], as_json: AsJson = False) -> None:
    """Grade the stored texts of a run again, without a model; a copy of the old grades is kept."""
    from vase_cli.evaluation.regrade import regrade

    summary, changed, backup = regrade(run)
    print_summary(summary, as_json=as_json)
    kept = f"; the old ones are in {backup}" if backup else ""
    echo(f"{changed} grades changed{kept}", err=True)
