"""``vase eval``: tasks in, a run folder and a table out."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.output import AsJson, echo, print_summary, print_tables
from vase_cli.cli.startup import quick_imports
from vase_cli.errors import ConfigError, user_path

if TYPE_CHECKING:
    from vase_cli.tasks.base import Task

_DATA_HELP = "Problems from a local file (JSONL, JSON, CSV or Parquet), or a folder of TASK.jsonl or such."
_GRADER_HELP = "How a problem file is graded: choice, integer, math or number."
_SKIP_HELP = "Leave out rows that cannot be used, and count them."
_SAMPLES = typer.Option(help="Samples of each problem.", show_default="the recipe's, or the task's")


@options.with_overrides("method", "budget")
def evaluate(
    overrides: options.Overrides,
    tasks: Annotated[list[str] | None, typer.Argument(help="Tasks, groups of tasks, or problem files.")] = None,
    samples: Annotated[int | None, _SAMPLES] = None,
    limit: Annotated[int | None, typer.Option(help="Take only the first so many problems.")] = None,
    data: Annotated[Path | None, typer.Option(help=_DATA_HELP)] = None,
    grader: Annotated[str | None, typer.Option(help=_GRADER_HELP)] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help=_SKIP_HELP)] = False,
    raw: options.Raw = False,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: AsJson = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print what every key of the report means.")] = False,
) -> None:
    """Evaluate a model on tasks, under one eviction method and budget or several side by side.

    Without a recipe or model it takes the best recipe that fits the device and solves the tasks, and says which;
    without tasks, the recipe's own. The same command again goes on where it stopped.
    """
    if schema:
        from vase_cli.runs.schema import schema_json, schema_text

        echo(schema_json() if as_json else schema_text())
        return
    from vase_cli.tasks.base import resolve_tasks

    out = user_path(out, ConfigError)
    changes = overrides.changes(samples=samples, limit=limit)  # first: `-o n_large 64` looks like a task named 64
    named = resolve_tasks(tasks, grader) if tasks else []
    overrides = overrides.with_recipe([task.name for task in named])
    compared = [options.with_budget(resolved) for resolved in overrides.compared(changes)]
    named = named or resolve_tasks(compared[0].recipe.tasks, grader)
    _check_sources(named, data)

    with quick_imports(compared[0].recipe.device):
        from vase_cli.cli.progress import EvalProgress
        from vase_cli.engine.factory import EngineFactory
        from vase_cli.engine.plan import plan_run
        from vase_cli.evaluation.comparison import FinishedRun, comparison_tables
        from vase_cli.evaluation.evaluate import evaluate as run_evaluation
        from vase_cli.evaluation.evaluate import prepare

    first, *others = [plan_run(recipe, entry) for recipe, entry in compared]
    factories = [shared := EngineFactory(first), *(EngineFactory(plan, beside=shared) for plan in others)]
    # Everything is checked before the first run starts.
    prepared = [prepare(factory.plan, named, data=data, skip_bad_rows=skip_bad_rows) for factory in factories]
    runs: list[FinishedRun] = []
    with EvalProgress() as progress:
        for number, (factory, eval_tasks) in enumerate(zip(factories, prepared, strict=True), 1):
            if len(factories) > 1:
                progress.note(f"run {number} of {len(factories)}: {factory.plan.method}")
            runs.append(run_evaluation(factory, eval_tasks, root=out, command=sys.argv, progress=progress, raw=raw))
            progress.note(f"run folder: {runs[-1].path}")
    if as_json or len(runs) == 1:
        for run in runs:
            print_summary(run.summary, as_json=as_json)
    else:
        print_tables(comparison_tables(runs))


def _check_sources(tasks: "Sequence[Task]", data: Path | None) -> None:
    """Refuse no task, and local data that is not for the tasks that are named."""
    from vase_cli.tasks._files import data_path

    if not tasks:
        raise ConfigError("no task: name one, such as gsm8k, or a problem file; see `vase tasks list`")
    files = [task.path for task in tasks if task.path is not None]
    if data is not None and files:
        raise ConfigError(f"--data {data}: {files[0]} is a problem file already; leave one out")
    source, registered = data_path(data), len(tasks) - len(files)
    if source is not None and source.is_file() and registered > 1:
        origin = "$VASE_DATA" if data is None else "--data"
        raise ConfigError(f"{origin} {source} is one file, for one task, and {registered} are named: give a folder")
