"""Several runs of the same problems side by side: one row for each method and budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vase_cli.evaluation.accuracy import PairedDifference, paired_difference
from vase_cli.reports.numbers import number, percent, points
from vase_cli.reports.tables import Table

HEADINGS = ("method", "budget", "accuracy", "against full", "tokens", "cached", "loops", "truncated", "tokens/s")
READING = (
    "Budget: tokens kept for each KV head. Accuracy ± standard error over the problems; against full: the difference "
    "on the same problems ± its standard error. Tokens: mean length of what was written; cached: tokens held at the "
    "end; loops: texts that end repeating themselves; truncated: texts that ran into the limit."
)


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        method: the eviction method's name.
        budgets: tokens by task; None for the full cache.
        summary: the run's summary.
        records: its samples by id.
    """

    method: str
    budgets: Mapping[str, int | None]
    summary: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]


def comparison_tables(runs: Sequence[ComparedRun]) -> list[Table]:
    """A table for each task, one row for each run in the order given; how to read them is under the last."""
    full = next((run for run in runs if all(budget is None for budget in run.budgets.values())), None)
    tasks = list(runs[0].budgets)
    return [
        Table(HEADINGS, [_row(run, task, full) for run in runs], task, [READING] if task == tasks[-1] else [], whole=4)
        for task in tasks
    ]


def _row(run: ComparedRun, task: str, full: ComparedRun | None) -> list[str]:
    metrics, budget = run.summary["tasks"][task], run.budgets[task]
    speed = run.summary["decode_tokens_per_s"]
    return [
        run.method,
        number(budget),
        points(metrics["accuracy"], metrics["standard_error"]),
        "-" if full is None or full is run else _against(run, full, task),
        *(number(metrics[key]) for key in _MEANS),
        *(percent(metrics[key], 0) for key in _SHARES),
        number(speed),
    ]


_MEANS = ("mean_completion_tokens", "mean_cached_tokens")
_SHARES = ("loop_share", "truncated_share")


def _against(run: ComparedRun, full: ComparedRun, task: str) -> str:
    difference: PairedDifference = paired_difference(
        problem_scores(run.records, task), problem_scores(full.records, task)
    )
    return points(difference.difference, difference.standard_error, "+")


def problem_scores(records: Mapping[str, Mapping[str, Any]], task: str) -> dict[str, list[float]]:
    """For each problem of a task the scores of its samples: 1 for a correct one, else 0."""
    scores: dict[str, list[float]] = {}
    for record in records.values():
        if record["task"] == task:
            scores.setdefault(record["problem_id"], []).append(float(record["grade"] == "correct"))
    return scores
