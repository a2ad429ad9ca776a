"""Several runs of the same problems side by side: one row for each method and budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vase_cli.evaluation.accuracy import PairedDifference, paired_difference

if TYPE_CHECKING:
    from rich.table import Table

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


def rows(runs: Sequence[ComparedRun]) -> dict[str, list[list[str]]]:
    """Cells under :data:`HEADINGS` for each task, one row for each run in the order given."""
    full = next((run for run in runs if all(budget is None for budget in run.budgets.values())), None)
    return {task: [_row(run, task, full) for run in runs] for task in runs[0].budgets}


def comparison_lines(runs: Sequence[ComparedRun]) -> list[str]:
    """The comparison as plain text, with how to read it last."""
    lines = []
    for task, cells in rows(runs).items():
        table = [list(HEADINGS), *cells]
        widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
        lines.append(task)
        for first, *others in table:
            aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return [*lines, READING]


def comparison_tables(runs: Sequence[ComparedRun]) -> "list[Table]":
    """The comparison for a terminal, one table for each task."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    tables = []
    for task, cells in rows(runs).items():
        table = Table(title=Text(task), caption=Text(READING), caption_justify="left", box=SIMPLE_HEAD, padding=0)
        for number, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number < 4)
        for row in cells:
            table.add_row(*map(Text, row))
        tables.append(table)
    return tables


def _row(run: ComparedRun, task: str, full: ComparedRun | None) -> list[str]:
    metrics, budget = run.summary["tasks"][task], run.budgets[task]
    speed = run.summary["decode_tokens_per_s"]
    return [
        run.method,
        "-" if budget is None else f"{budget:,}",
        _with_error(metrics["accuracy"], metrics["standard_error"], sign=""),
        "-" if full is None or full is run else _against(run, full, task),
        *("-" if metrics[key] is None else f"{metrics[key]:,.0f}" for key in _MEANS),
        *("-" if metrics[key] is None else f"{100 * metrics[key]:.0f}%" for key in _SHARES),
        "-" if speed is None else f"{speed:,.0f}",
    ]


_MEANS = ("mean_completion_tokens", "mean_cached_tokens")
_SHARES = ("loop_share", "truncated_share")


def _against(run: ComparedRun, full: ComparedRun, task: str) -> str:
    difference: PairedDifference = paired_difference(
        problem_scores(run.records, task), problem_scores(full.records, task)
    )
    return _with_error(difference.difference, difference.standard_error, sign="+")


def problem_scores(records: Mapping[str, Mapping[str, Any]], task: str) -> dict[str, list[float]]:
    """For each problem of a task the scores of its samples: 1 for a correct one, else 0."""
    scores: dict[str, list[float]] = {}
    for record in records.values():
        if record["task"] == task:
            scores.setdefault(record["problem_id"], []).append(float(record["grade"] == "correct"))
    return scores


def _with_error(value: float | None, error: float | None, *, sign: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:{sign}.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
