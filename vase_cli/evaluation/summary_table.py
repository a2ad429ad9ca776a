"""The figures of one run as a table."""

from collections.abc import Mapping
from typing import Any

from vase_cli.reports.numbers import number, percent, points, size
from vase_cli.reports.tables import Table

Record = Mapping[str, Any]

_HEADINGS = ["task", "accuracy", "samples", "no answer", "truncated", "loops", "tokens", "cached", "cuts"]


def summary_table(summary: Record) -> Table:
    """A row for each task, and one over all of several; the notes hold for the whole run."""
    return Table(_HEADINGS, _rows(summary), summary["name"], _footer(summary), whole=2)


def _rows(summary: Record) -> list[list[str]]:
    named = dict(summary["tasks"])
    if len(named) > 1:
        named["overall"] = summary["overall"]
    return [
        [
            name,
            points(metrics["accuracy"], metrics["standard_error"], unit="%"),
            str(metrics["samples"]) if metrics["complete"] else f"{metrics['samples']} of {metrics['planned_samples']}",
            *(percent(metrics[share]) for share in ("no_answer_share", "truncated_share", "loop_share")),
            *(number(metrics[mean], 0) for mean in ("mean_completion_tokens", "mean_cached_tokens")),
            number(metrics["mean_cuts"], 1),
        ]
        for name, metrics in named.items()
    ]


def _footer(summary: Record) -> list[str]:
    lines = []
    if not summary["complete"]:
        lines.append(f"not complete: {summary['samples']} of {summary['planned_samples']} samples")
    for name, metrics in summary["tasks"].items():
        passes = [f"pass@{k} {percent(value)}" for k, value in metrics["pass_at_k"].items() if k != "1"]
        if passes:
            lines.append(f"{name}: {', '.join(passes)}")
        if metrics["fallback_rules"]:
            counts = ", ".join(f"{rule} {count}" for rule, count in metrics["fallback_rules"].items())
            strict = percent(metrics["strict_accuracy"])
            lines.append(f"{name}: answers outside \\boxed{{}}: {counts}; accuracy without them {strict}")
        if metrics["error_share"]:
            lines.append(f"{name}: {percent(metrics['error_share'])} of the samples failed; see their 'error'")
        if metrics["garbage_share"]:
            lines.append(f"{name}: {percent(metrics['garbage_share'])} of the samples end in what is not text")
        if metrics["skipped_rows"]:
            lines.append(f"{name}: rows of the problem file left out: {metrics['skipped_rows']}")
    speeds = [
        f"{kind} {number(summary[key], 0)} tokens/s"
        for kind, key in (("decode", "decode_tokens_per_s"), ("prefill", "prefill_tokens_per_s"))
        if summary[key] is not None
    ]
    if speeds:
        lines.append(
            f"{summary['device']}, {summary['slots']} slots: {', '.join(speeds)}; {summary['wall_s']:,.0f} s in all"
        )
    memory = [
        f"{kind} {size(summary[key])}"
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
