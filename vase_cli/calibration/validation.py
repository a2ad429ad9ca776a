"""A model's need of its outliers: the same problems with all of the cache, without outliers, and in between."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vase_cli.calibration.folder import FORMAT, VALIDATION_FILE
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.errors import ConfigError
from vase_cli.evaluation.comparison import FinishedRun
from vase_cli.evaluation.evaluate import Progress, evaluate, prepare
from vase_cli.runs.files import write_document
from vase_cli.runs.folder import now
from vase_cli.tasks.base import Task

_FIGURES = (
    "accuracy", "standard_error", "loop_share", "truncated_share", "mean_completion_tokens", "mean_cached_tokens",
    "samples",
)  # fmt: skip
VARIANTS: dict[str, tuple[str, str | None]] = {
    "full": ("full", None),
    "evict-large": ("evict-large", None),
    "random": ("random", None),
    "vase-attnv count": ("vase-attnv", "count"),
    "vase-attnv threshold": ("vase-attnv", "threshold"),
}
"""The runs by label: method, and its option ``outliers``. The first two that evict throw away equally many tokens."""


def variant_recipe(recipe: Recipe, method: str, outliers: str | None) -> Recipe:
    """Make a recipe for one run; the recipe's own options stay where the method is its own."""
    options: dict[str, Any] = {}
    if outliers is not None:
        options = {**(recipe.method_options if recipe.method == method else {}), "outliers": outliers}
    changes: dict[str, Any] = {"method": method, "method_options": options, "samples": 1}
    if method == "full":
        changes |= {"budget": None, "budgets": {}}
    return dataclasses.replace(recipe, **changes)


def check_validation(recipe: Recipe, entry: ModelEntry, task: Task, data: Path | None) -> None:
    """Raise ConfigError, before anything is measured, for no budget or one that does not fit a method."""
    if recipe.budget_for(task.name) is None:
        raise ConfigError("--validate compares methods at a budget, and the recipe has none: give --budget")
    for method, outliers in VARIANTS.values():
        counted = variant_recipe(recipe, method, outliers and "count")
        prepare(plan_run(counted, entry), [task], data=data)


def validate(
    folder: Path,
    recipe: Recipe,
    entry: ModelEntry,
    beside: EngineFactory,
    task: Task,
    *,
    rule: str,
    data: Path | None,
    command: Sequence[str],
    progress: Progress,
) -> list[FinishedRun]:
    """Run every variant on the same problems, and write validation.json.

    The runs are kept in the folder, whole on a VaseError too, and go on where they stopped.

    Args:
        folder: the calibration's folder.
        recipe: with its budget.
        entry, beside: the model, its ``thresholds`` those to try, and a factory of it.
        task, data: the problems.
        rule: how the thresholds were fitted.
        command, progress: as for :func:`vase_cli.evaluation.evaluate.evaluate`.
    """
    runs: list[FinishedRun] = []
    budget = n_large = None
    for label, variant in VARIANTS.items():
        progress.note(f"validation {len(runs) + 1} of {len(VARIANTS)}: {label}")
        factory = EngineFactory(plan_run(variant_recipe(recipe, *variant), entry), beside=beside)
        tasks = prepare(factory.plan, [task], data=data)
        finished = evaluate(factory, tasks, root=folder / "runs", command=command, progress=progress)
        runs.append(dataclasses.replace(finished, label=label))
        budget = finished.budgets[task.name] or budget
        n_large = getattr(factory.plan.policy, "n_large", None) or n_large
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
        "runs": [_row(run, runs[0], task.name) for run in runs],
    }
    write_document(folder / VALIDATION_FILE, validation)
    return runs


def _row(run: FinishedRun, full: FinishedRun, task: str) -> dict[str, Any]:
    difference, error = run.against(full, task)
    metrics = run.summary.tasks[task]
    method, outliers = VARIANTS[run.label]
    return {
        "label": run.label,
        "method": method,
        "outliers": outliers,
        **{key: getattr(metrics, key) for key in _FIGURES},
        "difference": difference,
        "difference_standard_error": error,
    }
