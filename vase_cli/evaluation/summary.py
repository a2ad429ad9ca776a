"""From a run folder's records to its figures: summary.json, a table, plain lines."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vase_cli.errors import DataError
from vase_cli.evaluation.accuracy import mean_accuracy_and_standard_error, pass_at_k
from vase_cli.runs.files import COMPLETIONS_FILE, RUN_FILE

Record = Mapping[str, Any]


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
