"""Several runs of the same problems side by side: one row for each method and budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vase_cli.evaluation.accuracy import paired_difference
from vase_cli.reports.numbers import number, percent, points
from vase_cli.reports.tables import Table
from vase_cli.runs.schema import Sample, Summary

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
        samples: by id.
    """

    method: str
    budgets: Mapping[str, int | None]
    summary: Summary
    samples: Mapping[str, Sample]


def comparison_tables(runs: Sequence[ComparedRun]) -> list[Table]:
    """A table for each task, one row for each run in the order given; how to read them is under the last."""
    full = next((run for run in runs if all(budget is None for budget in run.budgets.values())), None)
    tasks = list(runs[0].budgets)
    return [
        Table(HEADINGS, [_row(run, task, full) for run in runs], task, [READING] if task == tasks[-1] else [], whole=4)
        for task in tasks
    ]


def _row(run: ComparedRun, task: str, full: ComparedRun | None) -> list[str]:
    metrics, against = run.summary.tasks[task], "-"
    if full is not None and full is not run:
        compared = paired_difference(problem_scores(run.samples, task), problem_scores(full.samples, task))
        against = points(compared.difference, compared.standard_error, "+")
    return [
        run.method,
        number(run.budgets[task]),
        points(metrics.accuracy, metrics.standard_error),
        against,
        *map(number, (metrics.mean_completion_tokens, metrics.mean_cached_tokens)),
        *(percent(share, 0) for share in (metrics.loop_share, metrics.truncated_share)),
        number(run.summary.decode_tokens_per_s),
    ]


def problem_scores(samples: Mapping[str, Sample], task: str) -> dict[str, list[float]]:
    """For each problem of a task the scores of its samples: 1 for a correct one, else 0."""
    scores: dict[str, list[float]] = {}
    for sample in samples.values():
        if sample.task == task:
            scores.setdefault(sample.problem_id, []).append(float(sample.grade == "correct"))
    return scores
