"""``vase calibrate``: measure a model's value states once, and write what its zoo entry needs."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vase_cli.cli import options
from vase_cli.cli.output import print_table
from vase_cli.config.catalog import BUILT_IN, Catalog, user_folder
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.errors import ConfigError, RunError, file_error

if TYPE_CHECKING:
    from vase_cli.calibration.calibrate import Calibration
    from vase_cli.evaluation.comparison import ComparedRun

DEFAULT_RECIPE = "tiny-reasoner"
DEFAULT_TASK = "gsm8k"
DEFAULT_OUT = Path("calibrations")
DEFAULT_PROBLEMS = 64


def calibrate(
    context: typer.Context,
    recipe: options.RecipeName = None,
    model: options.Model = None,
    think: options.Think = None,
    system: options.System = None,
    zoo: options.Zoo = None,
    recipes: options.Recipes = None,
    budget: options.Budget = None,
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
    task: Annotated[
        str | None, typer.Option("--task", help="Whose problems are solved; gsm8k, or the recipe's if it has one only.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Problems from a local file: JSONL, JSON, CSV or Parquet.")
    ] = None,
    problems: Annotated[
        int, typer.Option("--problems", min=1, help="How many problems, one text each.")
    ] = DEFAULT_PROBLEMS,
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="Where each head's threshold is: quantile:0.95, the value range that 95% of the tokens stay within; "
            "mad:6, the median and 6 median absolute deviations; share:0.25, what a quarter of the tokens exceed.",
        ),
    ] = "quantile:0.95",
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Also run the problems with and without the outliers, at the budget."),
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder of all calibrations.")] = DEFAULT_OUT,
    as_json: options.AsJson = False,
) -> None:
    """Measure a model's value states, and fit the thresholds above which a token is an outlier.

    Problems are solved with the full cache. The figures, a page and the thresholds go into a folder, and the
    thresholds into the model's zoo entry, in your own folder. The same command again goes on where it stopped.
    """
    from vase_cli.config.threshold_facts import entry_to_write, parse_rule
    from vase_cli.tasks.base import resolve_tasks

    unused = [name for name, value in (("--budget", budget), ("-o", option)) if value]
    if unused and not validate:
        raise ConfigError(f"{' and '.join(unused)} without --validate: only its runs evict; add it, or leave them out")
    fitted = parse_rule(rule)
    if recipe is None and model is None:
        recipe = os.environ.get("VASE_RECIPE") or DEFAULT_RECIPE
    given = options.overrides(context.params) | {"limit": problems}
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    own, entry = options.resolve(recipe, given, zoo=zoo, recipes=recipes)
    name = task or (own.tasks[0] if len(own.tasks) == 1 else DEFAULT_TASK)
    named = resolve_tasks([name])
    if len(named) != 1:
        raise ConfigError(f"--task {name} is {len(named)} tasks; name one of {', '.join(one.name for one in named)}")
    full = dataclasses.replace(own, method="full", method_options={}, budget=None, budgets={}, samples=1)
    assembly = options.assemble(full, entry)

    from vase_cli.calibration.calibrate import calibrate as run_calibration
    from vase_cli.calibration.calibrate import write_to_zoo
    from vase_cli.calibration.validation import check_validation
    from vase_cli.cli.progress import CalibrationProgress
    from vase_cli.evaluation.evaluate import prepare

    destination = zoo if zoo is not None else user_folder() / "zoo"
    built_in = entry.source is not None and catalog.find("zoo", entry.name).source == BUILT_IN
    entry_to_write(entry, destination, built_in=built_in)
    (part,) = prepare(assembly, named, data=data)
    if validate:
        check_validation(own, entry, assembly, named[0], data)
    with CalibrationProgress() as progress:
        measured = run_calibration(assembly, part, root=out, rule=fitted, command=sys.argv, progress=progress)
    entry_path, thresholds = write_to_zoo(measured, entry, destination, built_in=built_in)
    runs: Sequence[ComparedRun] = ()
    if validate:
        runs = _validate(
            measured, own, dataclasses.replace(entry, thresholds=str(thresholds)), assembly, named[0], data
        )
    _print(measured, runs, as_json=as_json)
    written = [entry_path, thresholds, *write_page(measured.path)]
    for line in (f"calibration folder: {measured.path}", *(f"written: {path}" for path in written)):
        typer.echo(line, err=True)
    if entry.source is None:
        named_now = entry_path.parent.name if entry_path.name == "entry.yaml" else entry_path.stem
        typer.echo(f"use the thresholds with --model {named_now} -o outliers=threshold", err=True)


def _validate(
    measured: "Calibration", recipe: Recipe, entry: ModelEntry, beside: Any, task: Any, data: Path | None
) -> "list[ComparedRun]":
    from vase_cli.calibration.validation import validate
    from vase_cli.cli.progress import EvalProgress

    with EvalProgress() as progress:
        _, runs = validate(
            measured.path,
            recipe,
            entry,
            beside,
            task,
            rule=measured.facts["rule"],
            data=data,
            command=sys.argv,
            progress=progress,
        )
    return runs


def write_page(folder: Path) -> list[Path]:
    """Write the page of a calibration folder and its pictures into it; a picture without data is removed.

    Returns:
        The files, the page first.

    Raises:
        VaseError: a file of the folder is missing or broken, or one cannot be written.
    """
    from vase_cli.calibration.folder import read_calibration
    from vase_cli.reports.calibration_page import PICTURE_FILES, calibration_page
    from vase_cli.runs.files import write_file

    facts, tensors, validated = read_calibration(folder)
    numbers = {name: tensor.tolist() for name, tensor in tensors.items()}
    contents = calibration_page(facts, numbers, validated)
    for name in set(PICTURE_FILES) - set(contents):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise file_error("remove", folder / name, error, RunError) from error
    for name, content in contents.items():
        write_file(folder / name, content)
    return [folder / name for name in contents]


def _print(measured: "Calibration", runs: "Sequence[ComparedRun]", *, as_json: bool) -> None:
    """The figures on stdout: tables, or one line of JSON."""
    from vase_cli.calibration.table import calibration_table
    from vase_cli.evaluation.comparison import comparison_tables

    if as_json:
        typer.echo(json.dumps(measured.facts, ensure_ascii=False))
        return
    for table in (calibration_table(measured.facts, measured.tensors), *(comparison_tables(runs) if runs else ())):
        print_table(table)
