"""Stored texts graded again, without a model."""

import os
from pathlib import Path

from vase_cli.errors import ConfigError
from vase_cli.evaluation.grading import Grading
from vase_cli.evaluation.summary import summarize
from vase_cli.runs.folder import RunFolder
from vase_cli.runs.schema import SampleGrade, Summary

_MOST_PROCESSES = 8


def store_summary(folder: RunFolder) -> Summary:
    """Summarize the folder's samples and sessions into summary.json."""
    summary = summarize(folder.samples.values(), folder.run, folder.sessions)
    folder.write_summary(summary)
    return summary


def regrade(path: Path) -> tuple[Summary, int, Path | None]:
    """Grade the stored texts of a run again; VaseError says in one line why it cannot.

    The new summary, how many strict verdicts changed, and the file that keeps the old ones (None if nothing changed).
    """
    with RunFolder(path) as folder:
        tasks = {task.name: task for task in folder.run.tasks}
        if ungraded := [name for name, task in tasks.items() if not task.grader]:
            made = "it was made by `vase run`; name a run of `vase eval`"
            raise ConfigError(f"{path}: '{ungraded[0]}' has no right answers: {made}")
        grades: list[SampleGrade] = []
        for task in tasks.values():
            with Grading(task, processes=min(_MOST_PROCESSES, os.cpu_count() or 1)) as grading:
                for sample in folder.samples.values():
                    if sample.task == task.name:
                        grading.submit(sample)
                grades += grading.finished(all_of_them=True)
        changed = sum(folder.samples[grade.id].grade not in (None, grade.grade) for grade in grades)
        backup = folder.replace_grades(grades)
        return store_summary(folder), changed, backup
