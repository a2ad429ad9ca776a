"""Why a run starts anew where one of the same settings is there: its model was of other files, or another commit."""

import contextlib
import json
from pathlib import Path
from typing import Any

from vase_cli.errors import VaseError, file_access
from vase_cli.runs.folder import RUN_FILE, config_hash
from vase_cli.runs.schema import Run

_FILES = ("files", "weights", "revision")  # "weights" is what runs had before they had "files"
_FROM_FILES = ("think", "sampling", "dtype")  # what a model's files may decide


def why_anew(root: Path, run: Run) -> list[str]:
    """One line if ``root``, the folder of all runs, has a run that differs from a new one in its model's files only.

    Of several such runs the newest counts. What cannot be read is no such run.
    """
    stem, _, _ = run.name.rpartition("-")
    earlier: list[tuple[str, str, dict[str, Any]]] = []
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders += (path for path in root.iterdir() if path.name.startswith(f"{stem}-"))
    for path in folders:
        with contextlib.suppress(VaseError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            with file_access("read", path / RUN_FILE, VaseError):
                stored = json.loads((path / RUN_FILE).read_bytes())
            config = stored["config"]
            if _settings(config) == _settings(run.config) and any(config.get(k) != run.config.get(k) for k in _FILES):
                earlier.append((str(stored["started_at"]), str(path), config))
    if not earlier:
        return []
    _, folder, config = max(earlier, key=lambda found: found[:2])
    return [f"a new run: {_difference(config, run.config, folder)}"]


def _settings(config: dict[str, Any]) -> str:
    return config_hash({key: value for key, value in config.items() if key not in (*_FILES, *_FROM_FILES)})


def _difference(before: dict[str, Any], now: dict[str, Any], folder: str) -> str:
    files, files_before = now.get("files"), before.get("files")
    if files is None:
        revision = before.get("revision")
        return f"{folder} is of {f'revision {revision}' if revision else 'a commit that it does not name'} of the model"
    if not isinstance(files_before, dict):
        return f"{folder} does not say which files of the model it was made of"
    changed = sorted(name for name in files | files_before if files.get(name) != files_before.get(name))
    named = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more files" if len(changed) > 3 else "")
    return f"{named} of the model {'has' if len(changed) == 1 else 'have'} changed since {folder}"
