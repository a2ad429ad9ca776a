"""The figures of one run as a table."""

from vase_cli.reports.numbers import number, percent, points, size
from vase_cli.reports.tables import Table
from vase_cli.runs.schema import Metrics, Summary

_LIMITS = {
    "max_new_tokens": "max-new-tokens",
    "max_total_tokens": "max-total-tokens",
    "grading_time": "time for grading",
    "answer_length": "length of an answer",
}
_HEADINGS = ["task", "accuracy", "samples", "no answer", "truncated", "loops", "tokens", "cached", "cuts"]


def summary_table(summary: Summary) -> Table:
    """A row for each task, and one over all of several; the notes hold for the whole run."""
    named = summary.tasks | ({"overall": summary.overall} if len(summary.tasks) > 1 else {})
    rows = [
        [
            name,
            points(metrics.accuracy, metrics.standard_error, unit="%"),
            str(metrics.samples) if metrics.complete else f"{metrics.samples} of {metrics.planned_samples}",
            *map(percent, (metrics.no_answer_share, metrics.truncated_share, metrics.loop_share)),
            *map(number, (metrics.mean_completion_tokens, metrics.mean_cached_tokens)),
            number(metrics.mean_cuts, 1),
        ]
        for name, metrics in named.items()
    ]
    return Table(_HEADINGS, rows, summary.name, _notes(summary), whole=2)


def published_note(metrics: Metrics) -> str:
    """What the published verdicts say, where they differ from the strict ones."""
    published = "unknown" if metrics.published_accuracy is None else percent(metrics.published_accuracy)
    differ = f"{metrics.verdicts_differ} sample{'s' if metrics.verdicts_differ > 1 else ''} otherwise"
    return f"graded as published, by the last box anywhere, the thought included: {published}, {differ}"


def _notes(summary: Summary) -> list[str]:
    lines = []
    if not summary.complete:
        lines.append(f"not complete: {summary.samples} of {summary.planned_samples} samples")
    for name, metrics in summary.tasks.items():
        if passes := [f"pass@{k} {percent(value)}" for k, value in metrics.pass_at_k.items() if k != "1"]:
            lines.append(f"{name}: {', '.join(passes)}")
        if metrics.ungraded:
            lines.append(f"{name}: {metrics.ungraded} finished samples are still to be graded")
        if metrics.verdicts_differ:
            lines.append(f"{name}: {published_note(metrics)}")
        if metrics.limits:
            counts = ", ".join(f"{_LIMITS[limit]} {count}" for limit, count in metrics.limits.items())
            lines.append(f"{name}: samples that hit a limit: {counts}")
        if metrics.fallback_rules:
            counts = ", ".join(f"{rule} {count}" for rule, count in metrics.fallback_rules.items())
            boxed = percent(metrics.boxed_accuracy)
            lines.append(f"{name}: answers outside \\boxed{{}}: {counts}; accuracy without them {boxed}")
        if metrics.error_share:
            lines.append(f"{name}: {percent(metrics.error_share)} of the samples failed; see their 'error'")
        if metrics.garbage_share:
            lines.append(f"{name}: {percent(metrics.garbage_share)} of the samples end in what is not text")
        if metrics.skipped_rows:
            lines.append(f"{name}: rows of the problem file left out: {metrics.skipped_rows}")
    rates = {"decode": summary.decode_tokens_per_s, "prefill": summary.prefill_tokens_per_s}
    if speeds := [f"{kind} {number(rate)} tokens/s" for kind, rate in rates.items() if rate is not None]:
        lines.append(f"{summary.device}, {summary.slots} slots: {', '.join(speeds)}; {summary.wall_s:,.0f} s in all")
    # With fewer texts than slots the cache would be set against texts that were not there.
    enough = summary.slots is not None and summary.samples >= summary.slots
    sizes = {
        "weights": summary.weights_bytes,
        "cache": summary.cache_bytes,
        "the same text in a dense cache": summary.dense_cache_bytes if enough else None,
        "peak": summary.peak_bytes,
    }
    memory = [f"{kind} {size(count)}" for kind, count in sizes.items() if count is not None]
    return [*lines, ", ".join(memory)] if memory else lines
