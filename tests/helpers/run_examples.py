"""A run.json and samples for the tests of run folders and reports."""

from pathlib import Path
from typing import Any

from vase_cli.runs.folder import RunFolder, config_hash, run_name
from vase_cli.runs.schema import FORMAT, Run, RunTask, Sample, SampleGrade


def a_task(name: str = "gsm8k", *, problems: int = 3, samples: int = 2, **changes: Any) -> RunTask:
    task = {
        "name": name,
        "version": 1,
        "source": "hub openai/gsm8k@main",
        "problems": problems,
        "samples": samples,
        "grader": "number",
        "fallbacks": ["last_number"],
        "skipped_rows": [],
    }
    return RunTask(**{**task, **changes})


def a_run(*tasks: RunTask, config: dict[str, Any] | None = None, **changes: Any) -> Run:
    limits = {name: {"max_new_tokens": 1500} for name in ("gsm8k", "aime24", "aime", *(task.name for task in tasks))}
    config = config or {"method": "vase-attnv", "budget": "4x", "temperature": 0.6, "tasks": limits}
    run = {
        "format": FORMAT,
        "name": run_name("qwen3-8b", "vase-attnv", "4x", config_hash=config_hash(config)),
        "config": config,
        "config_hash": config_hash(config),
        "options": {"slots": "auto"},
        "origins": {"method": "recipe qwen3-8b", "slots": "default"},
        "seeds": {"run": 0},
        "budgets": {"gsm8k": "4x -> 512 tokens"},
        "tasks": list(tasks) or [a_task()],
        "vase_version": "0.1.0",
        "versions": {"python": "3.11.7", "torch": "2.11.0"},
        "git": None,
        "hardware": {"cpu": "a cpu", "cores": 2, "ram_bytes": 1, "gpus": []},
        "started_at": "2026-01-02T03:04:05+00:00",
        "command": ["vase", "eval"],
    }
    return Run(**{**run, **changes})


def a_record(problem: int | str = 0, sample: int = 0, *, task: str = "gsm8k", **changes: Any) -> dict[str, Any]:
    """What a line of completions.jsonl holds."""
    record = {
        "id": f"{task}/{problem}/{sample}",
        "task": task,
        "problem_id": str(problem),
        "sample": sample,
        "seed": 0,
        "prompt_tokens": 100,
        "completion_tokens": 900,
        "text": "Es sind 5 €, 也就是 \\boxed{5} 🙂",
        "thought_open": False,
        "finish_reason": "stop",
        "error": None,
        "gold": "5",
        "cuts": 3,
        "cached_tokens": 512,
        "repetition": False,
        "garbage": False,
        "latency_s": 1.25,
        "metadata": {},
    }
    return {**record, **changes}


def a_text(problem: int | str = 0, sample: int = 0, *, task: str = "gsm8k", **changes: Any) -> Sample:
    """A sample that is not graded."""
    return Sample(**a_record(problem, sample, task=task, **changes))


def a_grade(of: str = "gsm8k/0/0", **changes: Any) -> SampleGrade:
    """What a line of grades.jsonl holds: right by both verdicts."""
    grade = {"id": of, "grade": "correct", "extracted": "5", "rule": "boxed", "grade_error": None, "grade_limit": None}
    return SampleGrade(**{**grade, "published": "correct", "published_extracted": "5", **changes})


def a_sample(problem: int | str = 0, sample: int = 0, *, task: str = "gsm8k", **changes: Any) -> Sample:
    """A sample that is graded; ``grade`` alone changes both verdicts."""
    if "grade" in changes:
        changes = {"published": changes["grade"], **changes}
    of_grade = {name: value for name, value in changes.items() if name in SampleGrade.model_fields}
    text = a_text(problem, sample, task=task, **{key: changes[key] for key in changes.keys() - of_grade.keys()})
    return text.graded(a_grade(text.id, **of_grade))


def store(folder: RunFolder, *samples: Sample) -> None:
    """Store samples, and the grades of those that have one."""
    for sample in samples:
        folder.append(Sample(**sample.text_line()))
        if sample.grade is not None:
            folder.append_grade(SampleGrade(**sample.grade_line()))


def measured(**changes: Any) -> dict[str, Any]:
    """What a process measures of its session."""
    session = {
        "device": "cpu",
        "slots": 2,
        "samples": 4,
        "prefill_tokens": 400,
        "prefill_s": 2.0,
        "decode_tokens": 3600,
        "decode_s": 9.0,
        "weights_bytes": 1000,
        "cache_bytes": 500,
        "cache_bytes_per_token": 10,
        "peak_bytes": None,
    }
    return {**session, **changes}


def open_run(root: Path, run: Run | None = None) -> RunFolder:
    run = run or a_run()
    return RunFolder(root / run.name, run)
