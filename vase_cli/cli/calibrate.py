"""``vase calibrate``: measure a model's value states once, and write what its zoo entry needs."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.output import AsJson, echo, print_json, print_tables
from vase_cli.cli.startup import quick_imports
from vase_cli.config.catalog import BUILT_IN, user_folder
from vase_cli.errors import ConfigError, RunError, file_access, user_path

if TYPE_CHECKING:
    from vase_cli.tasks.base import Task

_TASK = "gsm8k"
_TASK_HELP = "Whose problems are solved; gsm8k, or the recipe's if it has one only."
_RULE_HELP = (
    "Where each head's threshold is: quantile:0.95, the value range that 95% of the tokens stay within; "
    "mad:6, the median and 6 median absolute deviations; share:0.25, what a quarter of the tokens exceed."
)
_VALIDATE_HELP = "Also run the problems with and without the outliers, at the budget."


@options.with_overrides("method", "methods", "budgets")
def calibrate(
    overrides: options.Overrides,
    task: Annotated[str | None, typer.Option(help=_TASK_HELP)] = None,
    data: Annotated[Path | None, typer.Option(help="Problems from a local file: JSONL, JSON, CSV or Parquet.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="How many problems, one text each.")] = 64,
    rule: Annotated[str, typer.Option(help=_RULE_HELP)] = "quantile:0.95",
    validate: Annotated[bool, typer.Option("--validate", help=_VALIDATE_HELP)] = False,
    raw: options.Raw = False,
    out: Annotated[Path, typer.Option(help="Folder of all calibrations.")] = Path("calibrations"),
    as_json: AsJson = False,
) -> None:
    """Measure a model's value states, and fit the thresholds above which a token is an outlier.

    Problems are solved with the full cache. The figures, a page and the thresholds go into a folder, and the
    thresholds into the model's zoo entry, in your own folder. Without a recipe or model it takes the best recipe that
    fits the device, and says which. The same command again goes on where it stopped.
    """
    from vase_cli.config.threshold_facts import entry_to_write, parse_rule

    unused = [name for name, value in (("--budget", overrides.budget), ("-o", overrides.method_options)) if value]
    if unused and not validate:
        raise ConfigError(f"{' and '.join(unused)} without --validate: only its runs evict; add it, or leave them out")
    fit_rule, out = parse_rule(rule), user_path(out, ConfigError)
    asked = None if task is None else _only_task(task)
    overrides = overrides.with_recipe([_TASK if asked is None else asked.name], or_own=asked is None)
    own, entry = overrides.resolve(overrides.changes(limit=problems))
    solved = asked or _only_task(own.tasks[0] if len(own.tasks) == 1 else _TASK)
    full = dataclasses.replace(own, method="full", method_options={}, budget=None, budgets={}, samples=1)

    with quick_imports(full.device):
        from vase_cli.calibration import calibrate as calibration
        from vase_cli.calibration import validation
        from vase_cli.calibration.table import calibration_table
        from vase_cli.cli.progress import EvalProgress
        from vase_cli.engine.factory import EngineFactory
        from vase_cli.engine.plan import plan_run
        from vase_cli.evaluation.comparison import comparison_tables
        from vase_cli.evaluation.evaluate import prepare

    factory = EngineFactory(plan_run(full, entry))
    destination = user_folder() / "zoo" if overrides.zoo is None else user_path(overrides.zoo, ConfigError)
    built_in = entry.source is not None and overrides.catalog().find("zoo", entry.name).source == BUILT_IN
    entry_to_write(entry, destination, built_in=built_in)
    (eval_task,) = prepare(factory.plan, [solved], data=data)
    if validate:
        validation.check_validation(own, entry, solved, data)
    with EvalProgress() as bar:
        measured = calibration.calibrate(
            factory, eval_task, root=out, rule=fit_rule, command=sys.argv, progress=bar, raw=raw
        )
    entry_path, thresholds = calibration.write_to_zoo(measured, entry, destination, built_in=built_in)
    path, facts = measured.path, measured.facts
    tables = [calibration_table(facts, measured.tensors)]
    if validate:
        calibrated = dataclasses.replace(entry, thresholds=str(thresholds))
        with EvalProgress() as bar:
            runs = validation.validate(
                path, own, calibrated, factory, solved, rule=facts["rule"], data=data, command=sys.argv,
                progress=bar, raw=raw,
            )  # fmt: skip
        tables += comparison_tables(runs)
    if as_json:
        print_json(facts)
    else:
        print_tables(tables)
    written = [f"written: {file}" for file in (entry_path, thresholds, *write_page(path))]
    echo("\n".join([f"calibration folder: {path}", *written]), err=True)
    if entry.source is None:
        model = entry_path.parent.name if entry_path.name == "entry.yaml" else entry_path.stem
        echo(f"use the thresholds with --model {model} -o outliers=threshold", err=True)


def _only_task(name: str) -> "Task":
    from vase_cli.tasks.base import resolve_tasks

    task, *others = resolve_tasks([name])
    if others:
        members = ", ".join(member.name for member in (task, *others))
        raise ConfigError(f"--task {name} is {1 + len(others)} tasks; name one of {members}")
    return task


def write_page(folder: Path) -> list[Path]:
    """Write the page of a calibration folder and its pictures, and remove a picture without data; the page comes first.

    VaseError if a file of the folder is missing or broken, or one cannot be written.
    """
    from vase_cli.calibration.folder import read_calibration
    from vase_cli.reports.calibration_page import PICTURE_FILES, calibration_page
    from vase_cli.runs.files import write_file

    facts, tensors, validated = read_calibration(folder)
    numbers = {name: tensor.tolist() for name, tensor in tensors.items()}
    contents = calibration_page(facts, numbers, validated)
    for name in set(PICTURE_FILES) - set(contents):
        with file_access("remove", folder / name, RunError):
            (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        write_file(folder / name, content)
    return [folder / name for name in contents]
