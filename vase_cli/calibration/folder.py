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
from typing import Any

from torch import Tensor

from vase_cli.calibration.value_statistics import ValueStatistics
from vase_cli.errors import ConfigError, DataError, RunError, file_access
from vase_cli.runs.files import itself, line_of, read_document, read_lines, write_file
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


def read_calibration(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any] | None]:
    """Read a finished calibration: calibration.json, the tensors beside it, and validation.json or None.

    ConfigError for a folder without one, DataError for a file that is missing, cut or of another format.
    """
    if not (folder / FACTS_FILE).is_file():
        raise ConfigError(f"{folder}: no {FACTS_FILE} in it; name the folder of a finished calibration")
    facts = read_document(folder / FACTS_FILE, [FORMAT], "calibrate again")
    tensors, _ = load_tensors(folder / NUMBERS_FILE)
    validation = folder / VALIDATION_FILE
    validated = read_document(validation, [FORMAT], "calibrate again") if validation.is_file() else None
    return facts, tensors, validated


class CalibrationState:
    """Progress of a calibration, in a folder that this process holds.

    ``finished`` are the ids of the finished texts, which stay on the disk themselves; ``statistics`` what is measured
    of them; ``slots`` the rows of the engine, which a resumed run keeps; 0 in a new folder.
    """

    def __init__(self, folder: Path, statistics: ValueStatistics, config_hash: str) -> None:
        """Go on from the folder's state; DataError if it or a text is missing, cut, or of another calibration."""
        self.finished: list[str] = []
        self.statistics, self.slots = statistics, 0
        self._state, self._texts, self._config_hash = folder / STATE_FILE, folder / TEXTS_FILE, config_hash
        if self._state.exists():
            tensors, facts = load_tensors(self._state)
            if facts.get("config_hash") != config_hash:
                raise DataError(f"{self._state}: the state of another calibration; {_AGAIN}")
            statistics.restore(self._state, tensors)
            self.finished, self.slots = json.loads(facts["texts"]), int(facts["slots"])
        self.write_texts()

    def append(self, text: Text) -> None:
        """Store a finished text, which counts with the next :meth:`save`; RunError if the disk or folder fails."""
        with file_access("write", self._texts, RunError), open(self._texts, "ab", opener=itself) as file:
            file.write(line_of(dict(text)))
        self.finished.append(text.id)

    def save(self) -> None:
        """Count all texts so far; a kill from here on loses none of them."""
        facts = {"config_hash": self._config_hash, "slots": str(self.slots), "texts": json.dumps(self.finished)}
        write_file(self._state, tensor_bytes(self.statistics.state(), facts))

    def texts(self) -> Iterator[Text]:
        """The finished texts, one at a time."""
        counted = set(self.finished)
        for _, text in read_lines(self._texts, Text, _AGAIN):
            if text is not None and text.id in counted:
                counted.remove(text.id)
                yield text

    def write_texts(self) -> None:
        """Rewrite texts.jsonl: only the texts that count, in the order of their problems."""
        lines = sorted((text.index, line_of(dict(text))) for text in self.texts())
        if len(lines) < (measured := len(self.finished)):
            raise DataError(f"{self._texts}: {measured} texts are measured and {len(lines)} are there; {_AGAIN}")
        write_file(self._texts, b"".join(line for _, line in lines))
