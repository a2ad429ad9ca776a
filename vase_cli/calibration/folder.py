"""The files of a calibration folder: what was measured, the state it goes on from, and the texts.

::

    calibrations/tiny-reasoner-recurrence-1a2b3c4d/
        calibration.json          facts, lengths, outliers, one example
        calibration.safetensors   quantiles, maxima, thresholds
        texts.jsonl               one line for each finished text, its tokens
        state.safetensors         what a run that was stopped goes on from
        validation.json           accuracy with and without the outliers, where asked for

A text's line is written before a state that counts it, and a line that no state counts is generated again.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vase_cli.calibration.value_statistics import ValueStatistics
from vase_cli.errors import ConfigError, DataError, RunError, file_error
from vase_cli.runs.files import document, line_of, write_atomically
from vase_cli.tensor_files import load_tensors, tensor_bytes

FORMAT = 1
FACTS_FILE = "calibration.json"
NUMBERS_FILE = "calibration.safetensors"
TEXTS_FILE = "texts.jsonl"
STATE_FILE = "state.safetensors"
VALIDATION_FILE = "validation.json"
_AGAIN = "delete the folder to measure from the start"
_TEXT_KEYS = {
    "index": int,
    "id": str,
    "problem_id": str,
    "prompt_token_ids": list,
    "token_ids": list,
    "finish_reason": str,
}


def read_calibration(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any] | None]:
    """calibration.json, the tensors beside it, and validation.json (None where there is none).

    Raises:
        ConfigError: not a calibration folder, or one that was not finished.
        DataError: a file is missing, cut or of another format.
    """
    if not (folder / FACTS_FILE).is_file():
        raise ConfigError(f"{folder}: no {FACTS_FILE} in it; name the folder of a finished calibration")
    facts = _read_document(folder / FACTS_FILE)
    tensors, _ = load_tensors(folder / NUMBERS_FILE)
    validation = folder / VALIDATION_FILE
    return facts, tensors, _read_document(validation) if validation.is_file() else None


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one step.

    Raises:
        RunError: the disk is full, or the folder is gone.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        raise file_error("write", path, error, RunError) from error


def write_document(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file in one step; errors as in :func:`write_file`."""
    write_file(path, document(value))


class CalibrationState:
    """What a calibration has finished, in a folder that this process holds.

    Attributes:
        finished: ids of the finished texts; the texts themselves stay on the disk.
        statistics: what was measured of them.
        slots: rows of the engine, which a resumed run keeps; 0 in a new folder.
    """

    def __init__(self, folder: Path, statistics: ValueStatistics, config_hash: str) -> None:
        """Go on from what the folder holds.

        Raises:
            DataError: the state or a text is missing, cut, or of another calibration.
        """
        self.finished: list[str] = []
        self.statistics = statistics
        self.slots = 0
        self._folder = folder
        self._config_hash = config_hash
        if (folder / STATE_FILE).exists():
            self._restore()
        self.write_texts()

    def append(self, text: Mapping[str, Any]) -> None:
        """Store a finished text that is measured; it counts with the next :meth:`save`.

        Raises:
            RunError: the disk is full, or the folder is gone.
        """
        path = self._folder / TEXTS_FILE
        try:
            with path.open("ab") as file:
                file.write(line_of(text))
        except OSError as error:
            raise file_error("write", path, error, RunError) from error
        self.finished.append(text["id"])

    def save(self) -> None:
        """Count what was measured so far; a kill from here on loses nothing of it."""
        said = {"config_hash": self._config_hash, "slots": str(self.slots), "texts": json.dumps(self.finished)}
        write_file(self._folder / STATE_FILE, tensor_bytes(self.statistics.state(), said))

    def texts(self) -> Iterator[dict[str, Any]]:
        """The finished texts, one at a time."""
        counted = set(self.finished)
        for text in _read_texts(self._folder / TEXTS_FILE):
            if text["id"] in counted:
                counted.remove(text["id"])
                yield text

    def write_texts(self) -> None:
        """texts.jsonl anew: only the texts that count, in the order of their problems."""
        path = self._folder / TEXTS_FILE
        lines = sorted((int(text["index"]), line_of(text)) for text in self.texts())
        if len(lines) < len(self.finished):
            raise DataError(f"{path}: {len(self.finished)} texts are measured and {len(lines)} are there; {_AGAIN}")
        write_file(path, b"".join(line for _, line in lines))

    def _restore(self) -> None:
        path = self._folder / STATE_FILE
        tensors, said = load_tensors(path)
        if said.get("config_hash") != self._config_hash:
            raise DataError(f"{path}: the state of another calibration; {_AGAIN}")
        self.statistics.restore(path, tensors)
        self.finished = json.loads(said["texts"])
        self.slots = int(said["slots"])


def _read_texts(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of texts.jsonl; a last one that is cut is left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = json.loads(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise DataError(f"{path}:{number}: not a JSON object; {_AGAIN}") from error
                right = isinstance(text, dict) and all(
                    isinstance(text.get(key), kind) for key, kind in _TEXT_KEYS.items()
                )
                if not right:
                    raise DataError(f"{path}:{number}: not a text of a calibration; {_AGAIN}")
                yield text
    except FileNotFoundError:
        return
    except OSError as error:
        raise file_error("read", path, error, DataError) from error


def _read_document(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise file_error("read", path, error, DataError) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON; restore it, or calibrate again") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise DataError(f"{path}: has format {found}; this version of vase reads format {FORMAT}")
    return value
