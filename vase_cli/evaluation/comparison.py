"""Several runs of the same problems side by side: one row for each method and budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vase_cli.evaluation.accuracy import Estimate, paired_difference
from vase_cli.evaluation.summary_table import published_note
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
class FinishedRun:
    """What an evaluation leaves."""

    label: str  # the eviction method's name, or another that tables show
    budgets: Mapping[str, int | None]  # tokens by task; None for the full cache
    summary: Summary  # of all samples
    samples: Mapping[str, Sample]  # every one by id
    path: Path | None = None  # the run's folder; None where nothing is stored

    def against(self, full: "FinishedRun | None", task: str) -> Estimate:
        """Accuracy in a task minus that of ``full``; no difference without ``full`` or for that run itself."""
        if full is None or full is self:
            return Estimate()
        return paired_difference(self._scores(task), full._scores(task))

    def _scores(self, task: str) -> dict[str, list[float]]:
        scores: dict[str, list[float]] = {}
        for sample in self.samples.values():
            if sample.task == task:
                scores.setdefault(sample.problem_id, []).append(float(sample.grade == "correct"))
        return scores


def comparison_tables(runs: Sequence[FinishedRun]) -> list[Table]:
    """A table for each task, one row for each run, in their order; the last has a note on how to read them."""
    full = next((run for run in runs if all(budget is None for budget in run.budgets.values())), None)
    tasks = list(runs[0].budgets)
    return [
        Table(
            HEADINGS,
            [_row(run, task, full) for run in runs],
            task,
            [*_published_notes(runs, task), *([READING] if task == tasks[-1] else [])],
            whole=4,
        )
        for task in tasks
    ]


def _published_notes(runs: Sequence[FinishedRun], task: str) -> Iterator[str]:
    for run in runs:
        metrics = run.summary.tasks[task]
        if metrics.verdicts_differ:
            budget = "" if run.budgets[task] is None else f" {number(run.budgets[task])}"
            yield f"{run.label}{budget} {published_note(metrics)}"


def _row(run: FinishedRun, task: str, full: FinishedRun | None) -> list[str]:
    metrics, against = run.summary.tasks[task], run.against(full, task)
    return [
        run.label,
        number(run.budgets[task]),
        points(metrics.accuracy, metrics.standard_error),
        points(against.mean, against.standard_error, "+"),
        *map(number, (metrics.mean_completion_tokens, metrics.mean_cached_tokens)),
        *(percent(share, 0) for share in (metrics.loop_share, metrics.truncated_share)),
        number(run.summary.decode_tokens_per_s),
    ]
