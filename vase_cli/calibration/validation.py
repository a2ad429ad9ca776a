"""Does a model need its outliers? The same problems with all of the cache, without the outliers, and in between."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vase_cli.calibration.folder import FORMAT, VALIDATION_FILE
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.engine.assembly import Assembly
from vase_cli.errors import ConfigError
from vase_cli.evaluation.accuracy import paired_difference
from vase_cli.evaluation.comparison import ComparedRun, problem_scores
from vase_cli.evaluation.evaluate import Progress, TaskPart, evaluate, prepare
from vase_cli.runs.files import write_document
from vase_cli.runs.folder import now
from vase_cli.tasks.base import Task

RUNS_FOLDER = "runs"


@dataclass(frozen=True)
class Variant:
    """One run of a validation: its label, its method, and by what the method tells outliers."""

    label: str
    method: str
    outliers: str | None = None


VARIANTS = (
    Variant("full", "full"),
    Variant("evict-large", "evict-large"),
    Variant("random", "random"),
    Variant("vase-attnv count", "vase-attnv", "count"),
    Variant("vase-attnv threshold", "vase-attnv", "threshold"),
)
"""Evicting the largest ranges and evicting at random throw away equally many tokens."""


def variant_recipe(recipe: Recipe, variant: Variant) -> Recipe:
    """A recipe for one run; the recipe's own options stay where the method is its own."""
    options: dict[str, Any] = {}
    if variant.outliers is not None:
        options = {**(recipe.method_options if recipe.method == variant.method else {}), "outliers": variant.outliers}
    changes: dict[str, Any] = {"method": variant.method, "method_options": options, "samples": 1}
    if variant.method == "full":
        changes |= {"budget": None, "budgets": {}}
    return dataclasses.replace(recipe, **changes)


def check_validation(recipe: Recipe, entry: ModelEntry, beside: Assembly, task: Task, data: Path | None) -> None:
    """Refuse a validation that cannot work before anything is measured.

    Raises:
        ConfigError: no budget, or one that does not fit a method.
    """
    if recipe.budget_for(task.name) is None:
        raise ConfigError("--validate compares methods at a budget, and the recipe has none: give --budget")
    for variant in VARIANTS:
        counted = variant if variant.outliers is None else dataclasses.replace(variant, outliers="count")
        prepare(Assembly(variant_recipe(recipe, counted), entry, beside=beside), [task], data=data)


def validate(
    folder: Path,
    recipe: Recipe,
    entry: ModelEntry,
    beside: Assembly,
    task: Task,
    *,
    rule: str,
    data: Path | None,
    command: Sequence[str],
    progress: Progress,
) -> tuple[dict[str, Any], list[ComparedRun]]:
    """Run every variant on the same problems; the runs are kept in the folder, and go on where they stopped.

    Args:
        folder: the calibration's folder.
        recipe: with its budget.
        entry: the model, its ``thresholds`` those that are tried.
        beside: an assembly of the same model.
        task, data: the problems.
        rule: how the thresholds were fitted.
        command, progress: as for :func:`vase_cli.evaluation.evaluate.evaluate`.

    Returns:
        What validation.json says, and the runs for a table.

    Raises:
        VaseError: one line; the runs that were finished are whole.
    """
    runs: list[ComparedRun] = []
    budget: int | None = None
    n_large: int | None = None
    for variant in VARIANTS:
        progress.note(f"validation {len(runs) + 1} of {len(VARIANTS)}: {variant.label}")
        assembly = Assembly(variant_recipe(recipe, variant), entry, beside=beside)
        parts: list[TaskPart] = prepare(assembly, [task], data=data)
        finished = evaluate(assembly, parts, root=folder / RUNS_FOLDER, command=command, progress=progress)
        tokens = {one.task.name: one.part.budget.tokens if one.part.budget else None for one in parts}
        runs.append(ComparedRun(variant.label, tokens, finished.summary, finished.samples))
        budget = tokens[task.name] or budget
        n_large = getattr(assembly.policy, "n_large", None) or n_large
    validation = {
        "format": FORMAT,
        "model": entry.name,
        "task": task.name,
        "problems": runs[0].summary.tasks[task.name].problems,
        "samples": 1,
        "budget": budget,
        "n_large": n_large if n_large is not None or budget is None else budget // 4,
        "rule": rule,
        "seed": recipe.seed,
        "date": now(),
        "complete": all(run.summary.complete for run in runs),
        "runs": [_row(variant, run, runs[0], task.name) for variant, run in zip(VARIANTS, runs, strict=True)],
    }
    write_document(folder / VALIDATION_FILE, validation)
    return validation, runs


_FIGURES = (
    "accuracy",
    "standard_error",
    "loop_share",
    "truncated_share",
    "mean_completion_tokens",
    "mean_cached_tokens",
    "samples",
)


def _row(variant: Variant, run: ComparedRun, full: ComparedRun, task: str) -> dict[str, Any]:
    metrics = run.summary.tasks[task]
    difference = error = None
    if run is not full:
        scores = problem_scores(run.samples, task), problem_scores(full.samples, task)
        difference, error, _ = paired_difference(*scores)
    return {
        "label": variant.label,
        "method": variant.method,
        "outliers": variant.outliers,
        **{key: getattr(metrics, key) for key in _FIGURES},
        "difference": difference,
        "difference_standard_error": error,
    }
