"""From a run's samples to its figures: summary.json."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vase_cli.evaluation.accuracy import mean_score, pass_at_k
from vase_cli.runs.schema import Metrics, Run, RunTask, Sample, Session, Summary


def summarize(samples: Iterable[Sample], run: Run, sessions: Sequence[Session] = ()) -> Summary:
    """Work out the figures of a run from its finished samples; speed and memory from its sessions alone."""
    finished = list(samples)
    overall = _metrics(finished, run, run.tasks)
    return Summary(
        name=run.name,
        config_hash=run.config_hash,
        complete=overall.complete,
        samples=overall.samples,
        planned_samples=overall.planned_samples,
        tasks={task.name: _metrics(finished, run, [task]) for task in run.tasks},
        overall=overall,
        **_speed_and_memory(finished, sessions),
    )


def _metrics(samples: Sequence[Sample], run: Run, tasks: Sequence[RunTask]) -> Metrics:
    """Figures over the samples of these tasks; a problem is one of its task."""
    names = {task.name for task in tasks}
    samples = [sample for sample in samples if sample.task in names]
    with_answers = {task.name for task in tasks if task.grader}  # prompts without right answers have no accuracy
    graded = [sample for sample in samples if sample.task in with_answers and sample.grade is not None]
    ungraded = sum(sample.task in with_answers for sample in samples) - len(graded)
    correct = _by_problem(graded, lambda sample: sample.grade == "correct")
    accuracy = mean_score(correct)
    published = None
    if all(sample.published is not None for sample in graded):
        published = mean_score(_by_problem(graded, lambda sample: sample.published == "correct")).mean
    planned = sum(task.problems * task.samples for task in tasks)
    return Metrics(
        problems=len({(sample.task, sample.problem_id) for sample in samples}),
        planned_problems=sum(task.problems for task in tasks),
        samples=len(samples),
        planned_samples=planned,
        ungraded=ungraded,
        complete=len(samples) >= planned and not ungraded,
        accuracy=accuracy.mean,
        standard_error=accuracy.standard_error,
        published_accuracy=published,
        verdicts_differ=sum(_verdicts_differ(sample) for sample in graded),
        boxed_accuracy=mean_score(
            _by_problem(graded, lambda sample: sample.grade == "correct" and not _fallback(sample))
        ).mean,
        pass_at_k=_pass_at_powers_of_two(correct),
        no_answer_share=_mean(sample.grade == "no_answer" for sample in graded),
        truncated_share=_mean(sample.finish_reason == "length" for sample in samples),
        limits=dict(sorted(Counter(limit for sample in samples for limit in _limits(sample, run)).items())),
        loop_share=_mean(sample.repetition for sample in samples),
        garbage_share=_mean(sample.garbage for sample in samples),
        error_share=_mean("error" in (sample.finish_reason, sample.grade) for sample in samples),
        fallback_rules=dict(sorted(Counter(filter(None, map(_fallback, samples))).items())),
        mean_prompt_tokens=_mean(sample.prompt_tokens for sample in samples),
        mean_completion_tokens=_mean(sample.completion_tokens for sample in samples),
        mean_cuts=_mean(sample.cuts for sample in samples),
        mean_cached_tokens=_mean(sample.cached_tokens for sample in samples),
        skipped_rows=sum(len(task.skipped_rows) for task in tasks),
    )


def _by_problem(samples: Iterable[Sample], right: Callable[[Sample], bool]) -> list[list[float]]:
    """The scores of each problem's samples."""
    problems: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        problems.setdefault((sample.task, sample.problem_id), []).append(float(right(sample)))
    return list(problems.values())


def _verdicts_differ(sample: Sample) -> bool:
    return sample.published is not None and (sample.grade == "correct") != (sample.published == "correct")


def _limits(sample: Sample, run: Run) -> Iterator[str]:
    """The limits that a sample hit."""
    if sample.finish_reason == "length":
        most = run.config["tasks"][sample.task]["max_new_tokens"]
        yield "max_total_tokens" if most is None or sample.completion_tokens < most else "max_new_tokens"
    if sample.grade_limit is not None:
        yield {"time": "grading_time", "length": "answer_length"}[sample.grade_limit]


def _speed_and_memory(samples: Sequence[Sample], sessions: Sequence[Session]) -> dict[str, Any]:
    """Figures of the device that decoded last; sessions on another device would blur them."""
    last = next((session for session in reversed(sessions) if session.decode_tokens), None)
    same = [session for session in sessions if last is not None and session.device == last.device]
    dense = None
    if last is not None and last.cache_bytes_per_token is not None and samples:
        lengths = sorted((sample.prompt_tokens + sample.completion_tokens for sample in samples), reverse=True)
        dense = last.cache_bytes_per_token * sum(lengths[: last.slots])
    return {
        "sessions": len(sessions),
        "wall_s": sum(session.wall_s for session in sessions) if sessions else None,
        "device": last and last.device,
        "slots": last and last.slots,
        "prefill_tokens_per_s": _rate((session.prefill_tokens, session.prefill_s) for session in same),
        "decode_tokens_per_s": _rate((session.decode_tokens, session.decode_s) for session in same),
        "weights_bytes": last and last.weights_bytes,
        "cache_bytes": last and last.cache_bytes,
        "peak_bytes": max((session.peak_bytes for session in same if session.peak_bytes is not None), default=None),
        "dense_cache_bytes": dense,
    }


def _fallback(sample: Sample) -> str:
    """The fallback that found the sample's answer, or ""."""
    return "" if sample.rule == "boxed" else sample.rule


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


def _rate(measured: Iterable[tuple[int, float]]) -> float | None:
    """Tokens per second of all sessions together."""
    tokens, seconds = (sum(column) for column in zip((0, 0.0), *measured, strict=True))
    return tokens / seconds if seconds > 0 else None
