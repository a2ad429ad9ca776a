"""``vase eval``: tasks in, a run folder and a table out."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.output import print_table
from vase_cli.errors import ConfigError

if TYPE_CHECKING:
    from vase_cli.runs.schema import Summary

DEFAULT_RECIPE = "tiny-reasoner"
_GPU_RECIPE = "qwen3-8b"
DEFAULT_OUT = Path("runs")


def evaluate(
    context: typer.Context,
    tasks: Annotated[list[str] | None, typer.Argument(help="Tasks, groups of tasks, or problem files.")] = None,
    recipe: options.RecipeName = None,
    model: options.Model = None,
    think: options.Think = None,
    system: options.System = None,
    zoo: options.Zoo = None,
    recipes: options.Recipes = None,
    method: options.Methods = None,
    budget: options.Budgets = None,
    option: options.MethodOptions = None,
    window: options.Window = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    max_new_tokens: options.MaxNewTokens = None,
    max_total_tokens: options.MaxTotalTokens = None,
    slots: options.Slots = None,
    dtype: options.DType = None,
    attention: options.AttentionName = None,
    compile_decode: options.Compile = None,
    device: options.Device = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", help="Samples of each problem.", show_default="the recipe's, or the task's"),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take only the first so many problems.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Problems from a local file (JSONL, JSON, CSV or Parquet), or a folder of TASK.jsonl or such.",
        ),
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option("--grader", help="How a problem file is graded: choice, integer, math or number."),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be used, and count them.")
    ] = False,
    out: options.Out = DEFAULT_OUT,
    as_json: options.AsJson = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print what every key of the report means.")] = False,
) -> None:
    """Evaluate a model on tasks, under one eviction method and budget or several side by side.

    With nothing named it evaluates the embedded model; tasks without a recipe or model take qwen3-8b, on a GPU that
    holds it. The same command again goes on where it stopped.
    """
    if schema:
        from vase_cli.runs.schema import schema_json, schema_text

        typer.echo(schema_json() if as_json else schema_text())
        return
    from vase_cli.tasks.base import resolve_tasks

    given = options.overrides(context.params)  # first: `-o n_large 64` looks like a task named 64
    named = resolve_tasks(tasks, grader) if tasks else []
    if recipe is None and model is None:
        recipe = _default_recipe(tasks, device, zoo, recipes)
    compared = options.compared(recipe, given, methods=method or [], budgets=budget or [], zoo=zoo, recipes=recipes)
    resolved, entry = compared[0]
    named = named or resolve_tasks(resolved.tasks, grader)
    if not named:
        raise ConfigError("no task: name one, such as gsm8k, or a problem file; see `vase tasks list`")
    if data is not None and (files := [task.path for task in named if task.path is not None]):
        raise ConfigError(f"--data {data}: {files[0]} is a problem file already; leave one out")
    source = data or (Path(os.environ["VASE_DATA"]) if os.environ.get("VASE_DATA") else None)
    registered = [task for task in named if task.path is None]
    if source is not None and source.is_file() and len(registered) > 1:
        origin = "--data" if data is not None else "$VASE_DATA"
        raise ConfigError(
            f"{origin} {source} is one file, for one task, and {len(registered)} are named: give a folder"
        )
    first = options.assemble(resolved, entry)
    assemblies = [first, *(options.assemble(one, entry, beside=first) for one, _ in compared[1:])]

    from vase_cli.cli.progress import EvalProgress
    from vase_cli.evaluation.comparison import ComparedRun, comparison_tables
    from vase_cli.evaluation.evaluate import evaluate as run_evaluation
    from vase_cli.evaluation.evaluate import prepare

    # Everything is checked before the first run starts.
    prepared = [prepare(assembly, named, data=data, skip_bad_rows=skip_bad_rows) for assembly in assemblies]
    runs: list[ComparedRun] = []
    with EvalProgress() as progress:
        for assembly, parts in zip(assemblies, prepared, strict=True):
            if len(assemblies) > 1:
                progress.note(f"run {len(runs) + 1} of {len(assemblies)}: {assembly.recipe.method}")
            finished = run_evaluation(assembly, parts, root=out, command=sys.argv, progress=progress)
            tokens = {one.task.name: one.part.budget.tokens if one.part.budget else None for one in parts}
            runs.append(ComparedRun(assembly.recipe.method, tokens, finished.summary, finished.samples))
            progress.note(f"run folder: {finished.path}")
    if as_json or len(runs) == 1:
        for run in runs:
            print_summary(run.summary, as_json=as_json)
    else:
        for table in comparison_tables(runs):
            print_table(table)


def print_summary(summary: "Summary", *, as_json: bool) -> None:
    """A summary on stdout: a table, or one line of JSON."""
    from vase_cli.evaluation.summary_table import summary_table

    if as_json:
        typer.echo(json.dumps(summary.model_dump(), ensure_ascii=False))
    else:
        print_table(summary_table(summary))


def _default_recipe(tasks: list[str] | None, device: str | None, zoo: Path | None, recipes: Path | None) -> str:
    """The embedded recipe when nothing is named; for named tasks never a silent choice of a toy model."""
    if named := os.environ.get("VASE_RECIPE"):
        return named
    if not tasks:
        return DEFAULT_RECIPE
    from vase_cli.config.catalog import Catalog
    from vase_cli.config.fitting import recipes_that_fit

    fitting = recipes_that_fit(Catalog.open(zoo=zoo, recipes=recipes), device or "auto")
    if fitting.device_type == "cuda" and _GPU_RECIPE in fitting.recipes:
        return _GPU_RECIPE
    useful = [name for name in fitting.recipes if name != DEFAULT_RECIPE]
    raise ConfigError(
        f"no recipe for {' '.join(tasks)}: name one with --recipe or $VASE_RECIPE; on this machine "
        f"({fitting.description}) fit {', '.join(useful) or 'none of them'}"
    )
