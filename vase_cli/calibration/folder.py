"""The files of a calibration folder: figures, the state that a stopped run goes on from, and the texts.

::

    calibrations/tiny-reasoner-recurrence-1a2b3c4d/
        calibration.json          facts, lengths, outliers, one example
        calibration.safetensors   quantiles, maxima, thresholds
        texts.jsonl               one line for each finished text, its tokens
        state.safetensors         what a run that was stopped goes on from
        validation.json           accuracy with and without the outliers, of --validate

A text's line is written before a state that counts it, and a line that no state counts is generated again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vase_cli.calibration.value_statistics import ValueStatistics
from vase_cli.errors import ConfigError, DataError, RunError, file_access
from vase_cli.runs.files import line_of, read_document, read_lines, write_file
from vase_cli.runs.schema import Record
from vase_cli.tensor_files import load_tensors, tensor_bytes

FORMAT = 1
FACTS_FILE = "calibration.json"
NUMBERS_FILE = "calibration.safetensors"
TEXTS_FILE = "texts.jsonl"
STATE_FILE = "state.safetensors"
VALIDATION_FILE = "validation.json"
_AGAIN = "delete the folder to measure from the start"


class Text(Record):
    """A line of texts.jsonl; ``index`` counts the problems."""

    index: int
    id: str
    problem_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    finish_reason: str

    @property
    def all_token_ids(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt_token_ids + self.token_ids


class StoredCalibration(NamedTuple):
    """calibration.json, the tensors beside it, and validation.json (None where there is none)."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]
    validation: dict[str, Any] | None


def read_calibration(folder: Path) -> StoredCalibration:
    """Read the files of a finished calibration.

    ConfigError for a folder without a finished calibration, DataError for a file that is missing, cut or of another
    format.
    """
    if not (folder / FACTS_FILE).is_file():
        raise ConfigError(f"{folder}: no {FACTS_FILE} in it; name the folder of a finished calibration")
    facts = read_document(folder / FACTS_FILE, FORMAT, "calibrate again")
    tensors, _ = load_tensors(folder / NUMBERS_FILE)
    validation = folder / VALIDATION_FILE
    validated = read_document(validation, FORMAT, "calibrate again") if validation.is_file() else None
    return StoredCalibration(facts, tensors, validated)


class CalibrationState:
    """Progress of a calibration, in a folder that this process holds.

    Attributes:
        finished: ids of the finished texts; the texts themselves stay on the disk.
        statistics: measurements of these texts.
        slots: rows of the engine, which a resumed run keeps; 0 in a new folder.
    """

    def __init__(self, folder: Path, statistics: ValueStatistics, config_hash: str) -> None:
        """Go on from the folder's state; DataError if it or a text is missing, cut, or of another calibration."""
        self.finished: list[str] = []
        self.statistics, self.slots = statistics, 0
        self._folder, self._config_hash = folder, config_hash
        if (path := folder / STATE_FILE).exists():
            tensors, facts = load_tensors(path)
            if facts.get("config_hash") != config_hash:
                raise DataError(f"{path}: the state of another calibration; {_AGAIN}")
            statistics.restore(path, tensors)
            self.finished, self.slots = json.loads(facts["texts"]), int(facts["slots"])
        self.write_texts()

    def append(self, text: Text) -> None:
        """Store a finished text, which counts with the next :meth:`save`; RunError if the disk or folder fails."""
        path = self._folder / TEXTS_FILE
        with file_access("write", path, RunError), path.open("ab") as file:
            file.write(line_of(dict(text)))
        self.finished.append(text.id)

    def save(self) -> None:
        """Count all texts so far; a kill from here on loses none of them."""
        facts = {"config_hash": self._config_hash, "slots": str(self.slots), "texts": json.dumps(self.finished)}
        write_file(self._folder / STATE_FILE, tensor_bytes(self.statistics.state(), facts))

    def texts(self) -> Iterator[Text]:
        """The finished texts, one at a time."""
        counted = set(self.finished)
        for _, text in read_lines(self._folder / TEXTS_FILE, Text, _AGAIN):
            if text is not None and text.id in counted:
                counted.remove(text.id)
                yield text

    def write_texts(self) -> None:
        """Rewrite texts.jsonl: only the texts that count, in the order of their problems."""
        path = self._folder / TEXTS_FILE
        lines = sorted((text.index, line_of(dict(text))) for text in self.texts())
        if len(lines) < len(self.finished):
            raise DataError(f"{path}: {len(self.finished)} texts are measured and {len(lines)} are there; {_AGAIN}")
        write_file(path, b"".join(line for _, line in lines))
