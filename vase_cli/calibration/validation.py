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
# Method and its option ``outliers``, together the label. The first two that evict throw away equally many tokens.
_VARIANTS = (
    ("full", None), ("evict-large", None), ("random", None), ("vase-attnv", "count"), ("vase-attnv", "threshold"),
)  # fmt: skip


def variant_recipe(recipe: Recipe, method: str, outliers: str | None) -> Recipe:
    """Make a recipe for one run; the recipe's own options stay where the method is its own."""
    own = recipe.method_options if recipe.method == method else {}
    options = {} if outliers is None else {**own, "outliers": outliers}
    cut = recipe if method != "full" else dataclasses.replace(recipe, budget=None, budgets={})
    return dataclasses.replace(cut, method=method, method_options=options, samples=1)


def check_validation(recipe: Recipe, entry: ModelEntry, task: Task, data: Path | None) -> None:
    """Raise ConfigError, before anything is measured, for no budget or one that does not fit a method."""
    if recipe.budget_for(task.name) is None:
        raise ConfigError("--validate compares methods at a budget, and the recipe has none: give --budget")
    for method, outliers in _VARIANTS:
        prepare(plan_run(variant_recipe(recipe, method, outliers and "count"), entry), [task], data=data)


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
    raw: bool = False,
) -> list[FinishedRun]:
    """Run every variant on the same problems, and write validation.json.

    The runs are kept in the calibration's ``folder``, whole on a VaseError too, and go on where they stopped. The
    recipe has a budget, the entry the thresholds to try, which were fitted by ``rule``; ``beside`` is a factory of the
    model. ``command``, ``progress`` and ``raw`` are as for :func:`vase_cli.evaluation.evaluate.evaluate`.
    """
    runs: list[FinishedRun] = []
    for number, variant in enumerate(_VARIANTS, 1):
        label = " ".join(filter(None, variant))
        progress.note(f"validation {number} of {len(_VARIANTS)}: {label}")
        factory = EngineFactory(plan_run(variant_recipe(recipe, *variant), entry), beside=beside)
        tasks = prepare(factory.plan, [task], data=data)
        finished = evaluate(factory, tasks, root=folder / "runs", command=command, progress=progress, raw=raw)
        runs.append(dataclasses.replace(finished, label=label))
    budget = finished.budgets[task.name]
    validation = {
        "format": FORMAT,
        "model": entry.name,
        "task": task.name,
        "problems": runs[0].summary.tasks[task.name].problems,
        "samples": 1,
        "budget": budget,
        "n_large": getattr(factory.plan.policy, "n_large", None) or (budget and budget // 4),
        "rule": rule,
        "seed": recipe.seed,
        "date": now(),
        "complete": all(run.summary.complete for run in runs),
        "runs": [_row(run, *variant, runs[0], task.name) for run, variant in zip(runs, _VARIANTS, strict=True)],
    }
    write_document(folder / VALIDATION_FILE, validation)
    return runs


def _row(run: FinishedRun, method: str, outliers: str | None, full: FinishedRun, task: str) -> dict[str, Any]:
    difference, error = run.against(full, task)
    figures = {key: getattr(run.summary.tasks[task], key) for key in _FIGURES}
    figures |= {"difference": difference, "difference_standard_error": error}
    return {"label": run.label, "method": method, "outliers": outliers, **figures}
