"""Grades of samples as they are stored, and stored texts graded again without a model."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from vase_cli import plugins
from vase_cli.errors import ConfigError
from vase_cli.evaluation.summary import summarize
from vase_cli.graders.base import Grader
from vase_cli.runs.folder import RunFolder
from vase_cli.runs.schema import Sample, Summary


def graded(grader: Grader | None, fallbacks: Sequence[str], sample: Sample) -> Sample:
    """Fill in a sample's grade; without a grader, or of a text that failed, it stays as it is."""
    if grader is None or sample.finish_reason == "error":
        return sample
    grade = grader.grade(sample.gold, sample.text, thought_open=sample.thought_open, fallbacks=fallbacks)
    error = grade.detail if grade.status == "error" else None
    verdict = {"grade": grade.status, "extracted": grade.extracted, "rule": grade.rule, "error": error}
    return Sample.model_validate(dict(sample) | verdict)


def store_summary(folder: RunFolder) -> Summary:
    """Summarize the folder's samples and sessions into summary.json."""
    summary = summarize(folder.samples.values(), folder.run, folder.sessions)
    folder.write_summary(summary)
    return summary


def regrade(path: Path) -> tuple[Summary, int, Path | None]:
    """Grade the stored texts of a run again; VaseError says in one line why it cannot.

    The new summary, how many grades changed, and the file that keeps the old samples (None if nothing changed).
    """
    with RunFolder(path) as folder, contextlib.ExitStack() as stack:
        tasks = {task.name: task for task in folder.run.tasks}
        if ungraded := [name for name, task in tasks.items() if not task.grader]:
            made = "it was made by `vase run`; name a run of `vase eval`"
            raise ConfigError(f"{path}: '{ungraded[0]}' has no right answers: {made}")
        names = {task.grader for task in tasks.values()}
        graders = {name: stack.enter_context(plugins.make("graders", name)) for name in names}
        old = list(folder.samples.values())
        new = [graded(graders[tasks[sample.task].grader], tasks[sample.task].fallbacks, sample) for sample in old]
        changed = sum(before.grade != after.grade for before, after in zip(old, new, strict=True))
        backup = folder.replace_completions(new)
        return store_summary(folder), changed, backup
