"""``vase grade``: stored texts graded again, without a model."""

from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.evaluate import print_summary
from vase_cli.errors import ConfigError
from vase_cli.run_files import RUN_FILE


def grade(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    as_json: options.AsJson = False,
) -> None:
    """Grade the stored texts of a run again, without a model; the old grades are kept beside."""
    _check_folder(run)
    from vase_cli.grading import regrade

    summary, changed, backup = regrade(run)
    print_summary(summary, as_json=as_json)
    kept = f"; the old ones are in {backup}" if backup else ""
    typer.echo(f"{changed} grades changed{kept}", err=True)


def _check_folder(path: Path) -> None:
    """Say which folder to name where this one is not a run's."""
    if not path.is_dir():
        raise ConfigError(f"no run folder at {path}; name one that `vase eval` has written")
    if not (path / RUN_FILE).exists():
        runs = [child for child in path.iterdir() if (child / RUN_FILE).exists()]
        hint = "name one that `vase eval` has written"
        if runs:
            newest = max(runs, key=lambda child: (child.stat().st_mtime, child.name))
            hint = f"name one of the {len(runs)} in it, such as {newest}"
        raise ConfigError(f"{path} is not a run folder: it has no {RUN_FILE}; {hint}")
