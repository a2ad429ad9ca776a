"""Raw rows to questions and answers: one reading for hub rows and for local files.

A reader takes only the fields it names, so a stored solution or generation beside them is never used.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

QUESTION = ("question", "problem", "prompt")
FINAL_ANSWER = ("final answer", "answer")
ID = ("id", "problem id", "unique id", "index", "problem idx", "record id")
OPTIONS = ("correct answer", "incorrect answer 1", "incorrect answer 2", "incorrect answer 3")
# Every field some reader may ask for; the other columns of a table are not even loaded.
KNOWN_FIELDS = frozenset({*QUESTION, *FINAL_ANSWER, *ID, *OPTIONS})


class RowError(Exception):
    """The reason why a row cannot be used; ``str()`` of it names the field."""


def field_key(name: str) -> str:
    """The form in which field names are compared: both ``Record ID`` and ``record_id`` are ``record id``."""
    return re.sub(r"[\s_]+", " ", name).strip().lower()


class Fields:
    """A row's fields under their aliases; every getter raises ``RowError`` naming the field."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._fields: dict[str, tuple[str, Any]] = {}
        for name, value in raw.items():
            self._fields.setdefault(field_key(name), (name, value))

    def find(self, aliases: tuple[str, ...]) -> tuple[str, Any] | None:
        """Name as written and value of the first alias that is there and not null."""
        fields = (self._fields.get(alias, ("", None)) for alias in aliases)
        return next((field for field in fields if field[1] is not None), None)

    def text(self, aliases: tuple[str, ...]) -> str:
        """A field that must be text, stripped, not empty."""
        return self.scalar(aliases, "text")

    def scalar(self, aliases: tuple[str, ...], kinds: str = "text or a number") -> str:
        """A field of text or of one number, as text: 70 and 70.0 are both "70"."""
        if field := self.find(aliases):
            return _scalar(*field, kinds)
        first, *others = (f"'{alias}'" for alias in dict.fromkeys(aliases))
        raise RowError(f"no field {first}" + (f" (or {' or '.join(others)})" if others else ""))

    def row_id(self) -> str | None:
        """The row's own id, None if it has none; it may not hold a line break."""
        field = self.find(ID)
        if field is None:
            return None
        value = _scalar(*field)
        if value.splitlines() != [value]:
            raise RowError(f"field '{field[0]}' holds a line break")
        return value


@dataclass(frozen=True)
class Row:
    """One raw row."""

    where: str  # "gsm8k.jsonl:12", "gsm8k.parquet row 12" or "openai/gsm8k row 12"
    value: Any  # the object with its fields, or a RowError: why it cannot be read
    id_prefix: str = ""  # keeps ids apart where a task joins several datasets

    def fields(self) -> Fields:
        """The fields; raises ``RowError`` if there are none."""
        if isinstance(self.value, RowError):
            raise self.value
        if not isinstance(self.value, Mapping):
            raise RowError("not an object with fields")
        return Fields(self.value)


Reading = tuple[str, str, Mapping[str, Any]]  # question, gold answer, metadata
RowReader = Callable[[Fields, str, int], Reading]  # of fields, problem id and seed


def read_answer(fields: Fields, problem_id: str, seed: int) -> Reading:
    """A question and its answer; of a worked answer, what follows its last ``####`` (GSM8K's form)."""
    question = fields.text(QUESTION)
    answer = fields.scalar(("answer",)).rpartition("####")[2].strip()
    if not answer:
        raise RowError("field 'answer' has nothing after '####'")
    return question, answer, {}


def read_options(fields: Fields, problem_id: str, seed: int) -> Reading:
    """GPQA's columns: the options in an order drawn from (seed, problem id), lettered A to D.

    ``option_order[k]`` of the metadata is the column shown as the k-th letter, 0 being the correct answer.
    """
    question = fields.text(QUESTION)
    options = [fields.scalar((alias,)) for alias in OPTIONS]
    order = sorted(range(4), key=lambda column: hashlib.sha256(f"{seed}\n{problem_id}\n{column}".encode()).digest())
    lettered = "\n".join(f"{letter}) {options[column]}" for letter, column in zip("ABCD", order, strict=True))
    return f"{question}\n\n{lettered}", "ABCD"[order.index(0)], {"option_order": order}


def read_choice(fields: Fields, problem_id: str, seed: int) -> Reading:
    """GPQA's columns, or a question that holds its options already with a letter as its answer."""
    return (read_options if fields.find(OPTIONS[:1]) else read_answer)(fields, problem_id, seed)


def read_final_answer(fields: Fields, problem_id: str, seed: int) -> Reading:
    """OlympiadBench's form: ``final_answer`` is a list, each entry perhaps between dollar signs."""
    question = fields.text(QUESTION)
    if (field := fields.find(FINAL_ANSWER)) is None:
        raise RowError("no field 'final_answer' (or 'answer')")
    name, value = field
    parts = value if isinstance(value, list) else [value]
    # The answers are LaTeX throughout; the dollars only mark it, and the grader takes LaTeX as it is.
    answer = ", ".join(re.sub(r"(?<!\\)\$", "", _scalar(name, part)).strip() for part in parts)
    if not answer.strip(" ,"):
        raise RowError(f"field '{name}' is empty")
    return question, answer, {}


def _scalar(name: str, value: Any, kinds: str = "text or a number") -> str:
    if not isinstance(value, str):
        if kinds == "text" or isinstance(value, bool) or not isinstance(value, int | float):
            names = {bool: "true or false", dict: "an object", list: "a list", int: "a number", float: "a number"}
            kind = names.get(type(value), f"of type {type(value).__name__}")
            raise RowError(f"field '{name}' is {kind}, not {kinds}")
        try:
            finite = math.isfinite(value)
        except OverflowError:
            raise RowError(f"field '{name}' is a number of {len(str(abs(value)))} digits; write it as text") from None
        if not finite:
            raise RowError(f"field '{name}' is not a number ({value})")
        return str(int(value)) if value == int(value) else repr(value)
    if "\0" in value:
        raise RowError(f"field '{name}' holds a NUL character")
    if not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise RowError(f"field '{name}' is not valid text (bad UTF-8 or half a surrogate pair)")
    if not value.strip():
        raise RowError(f"field '{name}' is empty")
    return value.strip()
