"""What a run folder holds, read without taking it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vase_cli.runs.files import read_completions, read_run, read_sessions, require_run_folder


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


def load_run(path: Path) -> StoredRun:
    """Reads a run folder without taking it, so one that is in use too; nothing is changed.

    Raises:
        ConfigError: not a run folder.
        DataError: a file in it is broken, other than a cut last line.
    """
    require_run_folder(path)
    stored = read_completions(path)
    return StoredRun(path, read_run(path), stored.records, read_sessions(path), stored.notes)
