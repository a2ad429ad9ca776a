"""The figures of one run, as a table and as plain lines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vase_cli.device import readable_bytes

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]

_HEADINGS = ["task", "accuracy", "samples", "no answer", "truncated", "loops", "tokens", "cached", "cuts"]


def summary_table(summary: Record) -> "Table":
    """The summary's figures by task for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    # Text, as a name in square brackets would be taken for markup.
    caption = Text("\n".join(_footer(summary)))
    table = Table(title=Text(summary["name"]), caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number < 2)
    for row in _rows(summary):
        table.add_row(*map(Text, row))
    return table


def summary_lines(summary: Record) -> list[str]:
    """The summary as plain text for a pipe: a heading, one line for each task, then what holds for the whole run."""
    rows = [_HEADINGS, *_rows(summary)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]))
    return [summary["name"], *lines, *_footer(summary)]


def _rows(summary: Record) -> list[list[str]]:
    named = dict(summary["tasks"])
    if len(named) > 1:
        named["overall"] = summary["overall"]
    return [
        [
            name,
            _accuracy(metrics),
            str(metrics["samples"]) if metrics["complete"] else f"{metrics['samples']} of {metrics['planned_samples']}",
            *(_percent(metrics[share]) for share in ("no_answer_share", "truncated_share", "loop_share")),
            *(_number(metrics[mean], digits=0) for mean in ("mean_completion_tokens", "mean_cached_tokens")),
            _number(metrics["mean_cuts"], digits=1),
        ]
        for name, metrics in named.items()
    ]


def _footer(summary: Record) -> list[str]:
    lines = []
    if not summary["complete"]:
        lines.append(f"not complete: {summary['samples']} of {summary['planned_samples']} samples")
    for name, metrics in summary["tasks"].items():
        passes = [f"pass@{k} {_percent(value)}" for k, value in metrics["pass_at_k"].items() if k != "1"]
        if passes:
            lines.append(f"{name}: {', '.join(passes)}")
        if metrics["fallback_rules"]:
            counts = ", ".join(f"{rule} {count}" for rule, count in metrics["fallback_rules"].items())
            strict = _percent(metrics["strict_accuracy"])
            lines.append(f"{name}: answers outside \\boxed{{}}: {counts}; accuracy without them {strict}")
        if metrics["error_share"]:
            lines.append(f"{name}: {_percent(metrics['error_share'])} of the samples failed; see their 'error'")
        if metrics["garbage_share"]:
            lines.append(f"{name}: {_percent(metrics['garbage_share'])} of the samples end in what is not text")
        if metrics["skipped_rows"]:
            lines.append(f"{name}: rows of the problem file left out: {metrics['skipped_rows']}")
    speeds = [
        f"{kind} {_number(summary[key], digits=0)} tokens/s"
        for kind, key in (("decode", "decode_tokens_per_s"), ("prefill", "prefill_tokens_per_s"))
        if summary[key] is not None
    ]
    if speeds:
        lines.append(
            f"{summary['device']}, {summary['slots']} slots: {', '.join(speeds)}; {summary['wall_s']:,.0f} s in all"
        )
    memory = [
        f"{kind} {readable_bytes(summary[key])}"
        for kind, key in (
            ("weights", "weights_bytes"),
            ("cache", "cache_bytes"),
            ("the same text in a dense cache", "dense_cache_bytes"),
            ("peak", "peak_bytes"),
        )
        # With fewer texts than slots the cache would be set against texts that were not there.
        if summary[key] is not None and (key != "dense_cache_bytes" or summary["samples"] >= summary["slots"])
    ]
    return [*lines, ", ".join(memory)] if memory else lines


def _accuracy(metrics: Record) -> str:
    if metrics["accuracy"] is None:
        return "-"
    error = "" if metrics["standard_error"] is None else f" ± {100 * metrics['standard_error']:.1f}"
    return f"{100 * metrics['accuracy']:.1f}%{error}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _number(value: float | None, *, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
