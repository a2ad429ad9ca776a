"""Grades of completions as they are stored, and stored texts graded again without a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import ConfigError
from vase_cli.evaluation.summary import summarize
from vase_cli.graders.base import Grader
from vase_cli.runs.folder import RunFolder


def graded(grader: Grader | None, fallbacks: Sequence[str], record: dict[str, Any]) -> dict[str, Any]:
    """A line of completions.jsonl with its grade; without a grader, or of a text that failed, as it is."""
    if grader is None or record["finish_reason"] == "error":
        return record
    grade = grader.grade(record["gold"], record["text"], thought_open=record["thought_open"], fallbacks=fallbacks)
    error = grade.detail if grade.status == "error" else None
    return record | {"grade": grade.status, "extracted": grade.extracted, "rule": grade.rule, "error": error}


def regrade(path: Path) -> tuple[dict[str, Any], int, Path | None]:
    """Grade the stored texts of a run again.

    Returns:
        The new summary, how many grades changed, and the file that keeps the old records (None if none changed).

    Raises:
        VaseError: one line.
    """
    with RunFolder.existing(path) as folder:
        tasks = {task["name"]: task for task in folder.run["tasks"]}
        if ungraded := [name for name, task in tasks.items() if not task["grader"]]:
            raise ConfigError(
                f"{path}: '{ungraded[0]}' has no right answers: it was made by `vase run`, not `vase eval`"
            )
        records, changed = [], 0
        graders = {name: plugins.load("graders", name)() for name in {task["grader"] for task in tasks.values()}}
        try:
            for record in folder.completed().values():
                task = tasks.get(record["task"])
                if task is None:
                    raise ConfigError(f"{path}: sample {record['id']} is of a task that run.json does not name")
                records.append(graded(graders[task["grader"]], task["fallbacks"], record))
                changed += records[-1]["grade"] != record["grade"]
        finally:
            for grader in graders.values():
                grader.close()
        backup = folder.replace_completions(records)
        summary = summarize(folder.completed().values(), folder.run, folder.sessions())
        folder.write_summary(summary)
    return summary, changed, backup
