"""From a run folder's records to its figures: summary.json, a table, plain lines."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vase_cli.accuracy import mean_accuracy_and_standard_error, pass_at_k
from vase_cli.errors import DataError
from vase_cli.run_files import (
    COMPLETIONS_FILE,
    RUN_FILE,
    read_completions,
    read_run,
    read_sessions,
    require_run_folder,
)

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]

_HEADINGS = ["task", "accuracy", "samples", "no answer", "truncated", "loops", "tokens", "cached", "cuts"]


@dataclass(frozen=True)
class StoredRun:
    """What a run folder holds.

    Attributes:
        run: run.json.
        records: finished samples by id.
        sessions: lines of sessions.jsonl.
        notes: one line for each thing left out.
    """

    path: Path
    run: dict[str, Any]
    records: dict[str, dict[str, Any]]
    sessions: list[dict[str, Any]]
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """The figures of what is stored now, as for summary.json."""
        return summarize(self.records.values(), self.run, self.sessions)


def load_run(path: Path) -> StoredRun:
    """Reads a run folder without taking it, so one that is in use too; nothing is changed.

    Raises:
        ConfigError: not a run folder.
        DataError: a file in it is broken, other than a cut last line.
    """
    require_run_folder(path)
    stored = read_completions(path)
    return StoredRun(path, read_run(path), stored.records, read_sessions(path), stored.notes)


def summarize(records: Iterable[Record], run: Record, sessions: Sequence[Record] = ()) -> dict[str, Any]:
    """The figures of a run, with exactly the keys of the schema's summary.

    Args:
        records: finished samples, of any part of the run.
        run: run.json.
        sessions: lines of sessions.jsonl; speed and memory come from them alone.

    Raises:
        DataError: a record of a task that run.json does not name.
    """
    by_task: dict[str, list[Record]] = {task["name"]: [] for task in run["tasks"]}
    for record in records:
        if record["task"] not in by_task:
            raise DataError(
                f"{COMPLETIONS_FILE} of {run['name']} has a sample of task '{record['task']}', "
                f"which its {RUN_FILE} does not name; delete the line"
            )
        by_task[record["task"]].append(record)
    finished = [record for task in by_task.values() for record in task]
    overall = _metrics(finished, run["tasks"])
    return {
        "name": run["name"],
        "config_hash": run["config_hash"],
        "complete": overall["complete"],
        "samples": overall["samples"],
        "planned_samples": overall["planned_samples"],
        "tasks": {task["name"]: _metrics(by_task[task["name"]], [task]) for task in run["tasks"]},
        "overall": overall,
        **_speed_and_memory(finished, sessions),
    }


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


def _metrics(records: Sequence[Record], tasks: Sequence[Record]) -> dict[str, Any]:
    """Figures over the samples of these tasks; a problem is one of its task."""
    problems: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        problems.setdefault((record["task"], record["problem_id"]), []).append(record)
    # Prompts without right answers have no accuracy, and no sample of them lacks an answer.
    graded = [samples for samples in problems.values() if all(sample["grade"] is not None for sample in samples)]
    correct = [[float(_is_correct(sample)) for sample in samples] for samples in graded]
    strict = [[float(_is_correct(sample) and not _fallback(sample)) for sample in samples] for samples in graded]
    accuracy, standard_error = mean_accuracy_and_standard_error(correct)
    planned = sum(task["problems"] * task["samples"] for task in tasks)
    return {
        "problems": len(problems),
        "planned_problems": sum(task["problems"] for task in tasks),
        "samples": len(records),
        "planned_samples": planned,
        "complete": len(records) >= planned,
        "accuracy": accuracy,
        "standard_error": standard_error,
        "strict_accuracy": mean_accuracy_and_standard_error(strict)[0],
        "pass_at_k": _pass_at_powers_of_two(correct),
        "no_answer_share": _mean(sample["grade"] == "no_answer" for samples in graded for sample in samples),
        "truncated_share": _mean(record["finish_reason"] == "length" for record in records),
        "loop_share": _mean(record["repetition"] for record in records),
        "garbage_share": _mean(record["garbage"] for record in records),
        "error_share": _mean(record["finish_reason"] == "error" or record["grade"] == "error" for record in records),
        "fallback_rules": dict(sorted(Counter(filter(None, map(_fallback, records))).items())),
        "mean_prompt_tokens": _mean(record["prompt_tokens"] for record in records),
        "mean_completion_tokens": _mean(record["completion_tokens"] for record in records),
        "mean_cuts": _mean(record["cuts"] for record in records),
        "mean_cached_tokens": _mean(record["cached_tokens"] for record in records),
        "skipped_rows": sum(len(task["skipped_rows"]) for task in tasks),
    }


def _speed_and_memory(records: Sequence[Record], sessions: Sequence[Record]) -> dict[str, Any]:
    """Figures of the device that decoded last; sessions on another device would blur them."""
    last = next((session for session in reversed(sessions) if session["decode_tokens"]), None)
    same = [session for session in sessions if last is not None and session["device"] == last["device"]]
    peaks = [session["peak_bytes"] for session in same if session["peak_bytes"] is not None]
    dense = None
    if last is not None and last["cache_bytes_per_token"] is not None and records:
        lengths = sorted((record["prompt_tokens"] + record["completion_tokens"] for record in records), reverse=True)
        dense = last["cache_bytes_per_token"] * sum(lengths[: last["slots"]])
    return {
        "sessions": len(sessions),
        "wall_s": sum(session["wall_s"] for session in sessions) if sessions else None,
        "device": last and last["device"],
        "slots": last and last["slots"],
        "prefill_tokens_per_s": _rate(same, "prefill_tokens", "prefill_s"),
        "decode_tokens_per_s": _rate(same, "decode_tokens", "decode_s"),
        "weights_bytes": last and last["weights_bytes"],
        "cache_bytes": last and last["cache_bytes"],
        "peak_bytes": max(peaks, default=None),
        "dense_cache_bytes": dense,
    }


def _is_correct(record: Record) -> bool:
    return bool(record["grade"] == "correct")


def _fallback(record: Record) -> str:
    """The fallback that found the sample's answer, or ""."""
    return "" if record["rule"] == "boxed" else str(record["rule"])


def _pass_at_powers_of_two(problems: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean pass@k over problems, for every power of two that each problem has samples for."""
    fewest = min(map(len, problems), default=0)
    return {
        str(k): statistics.fmean(pass_at_k(len(scores), round(sum(scores)), k) for scores in problems)
        for k in (2**power for power in range(fewest.bit_length()))
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = [float(value) for value in values]
    return statistics.fmean(listed) if listed else None


def _rate(sessions: Sequence[Record], tokens: str, seconds: str) -> float | None:
    total_s = sum(session[seconds] for session in sessions)
    return sum(session[tokens] for session in sessions) / total_s if total_s > 0 else None


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


def readable_bytes(size_bytes: int) -> str:
    """A number of bytes for people: "1.5 GiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "B" else f"{size:,.1f} {units[0]}"
