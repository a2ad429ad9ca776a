"""Strict YAML: mappings, lists and scalars with their lines, nothing guessed.

A scalar stays the text that it was written as until the schema's type of its key reads it, so YAML 1.1's surprises
(``no`` as false, ``010`` as eight, ``4:30`` as a number, dates) cannot happen. Every error in a file is a
``ConfigError`` of the form ``file:line: key: what; what to do``.
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from yaml.constructor import ConstructorError

from vase_cli.errors import ConfigError, decode_text, did_you_mean, file_access

Scalar: TypeAlias = int | float | bool | str
Place: TypeAlias = tuple[str | int, ...]  # the keys, and for an item of a list its index, that lead to a value
COMMAND_LINE = "command line"  # an origin of a recipe's values

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_EMPTY = ("", "~", "null", "Null", "NULL")
_MAX_DEPTH = 8


class Plain(str):
    """A scalar written without quotes: text or a number, as the type that takes it decides."""

    __slots__ = ()


@dataclass(frozen=True)
class Document:
    """A YAML file that is one mapping: dicts, lists and text, and the line (from 1) of each key and item."""

    path: Path
    values: dict[str, Any]
    lines: dict[Place, int]

    def error(self, place: Place, message: str) -> ConfigError:
        """The error for the value at ``place``; its line, or that of the nearest mapping or list around it."""
        near = next(place[:depth] for depth in range(len(place), -1, -1) if place[:depth] in self.lines)
        return ConfigError(f"{self.path}:{self.lines[near]}: {_named(place, message)}")

    def key_lines(self) -> dict[str, int]:
        """The line of each key, by dotted key."""
        return {dotted(place): line for place, line in self.lines.items() if place and isinstance(place[-1], str)}


def dotted(place: Place) -> str:
    """A place by its keys: "sampling.top_p"."""
    return ".".join(part for part in place if isinstance(part, str))


def _named(place: Place, message: str) -> str:
    return f"{name}: {message}" if (name := dotted(place)) else message


def read_document(path: Path) -> Document:
    """The mapping that is the whole of a YAML file, its scalars not converted.

    Anchors, tags, merge keys, several documents, duplicate keys and empty values are refused: ConfigError, as for a
    file that cannot be read, is not UTF-8, not YAML, or not one mapping.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; name a YAML file in it")
    with file_access("read", path, ConfigError):
        data = path.read_bytes()
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{path}:1: starts with a byte-order mark; save the file as UTF-8 without one")
    text = decode_text(data, str(path), ConfigError)
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None or root.value in _EMPTY:
            raise ConfigError(f"{path}: the file is empty; write 'key: value' lines")
        lines: dict[Place, int] = {(): _line(root.start_mark)}
        values = _build(root, (), lines)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}: the character U+{error.character:04X} is not text; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}:{_line(error.problem_mark or error.context_mark)}: {_problem(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:{lines[()]}: not a mapping; write 'key: value' lines")
    return Document(path, values, lines)


class _Loader(yaml.BaseLoader):
    """Compose nodes without resolving tags, up to the first that is not used here."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        deeper = isinstance(event, yaml.CollectionStartEvent)
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = f"aliases (*{event.anchor}) are not used here; write the value out"
        elif event.anchor is not None:
            problem = f"anchors (&{event.anchor}) are not used here; write the value out"
        elif event.tag is not None:
            problem = f"tags ({event.tag}) are not used here; remove it"
        elif deeper and self.depth == _MAX_DEPTH:
            problem = f"nested more than {_MAX_DEPTH} deep; flatten it"
        if problem:
            raise ConstructorError(None, None, problem, event.start_mark)
        self.depth += deeper
        node = super().compose_node(parent, index)
        self.depth -= deeper
        return node


def _build(node: yaml.Node, place: Place, lines: dict[Place, int]) -> Any:
    """The value of a node; adds the lines of its keys and items to ``lines``."""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and node.value in _EMPTY:
            problem = _named(place, "has no value; write one, or leave the line out for the default")
            raise ConstructorError(None, None, problem, node.start_mark)
        return Plain(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        lines |= {(*place, index): _line(item.start_mark) for index, item in enumerate(node.value)}
        return [_build(item, (*place, index), lines) for index, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value in node.value:
        key, problem = key_node.value, ""
        if not isinstance(key_node, yaml.ScalarNode):
            problem = "a key must be a single word; quote it if it is text"
        elif key in values:
            problem = f"{key}: duplicate key, first in line {lines[*place, key]}; keep one"
        elif key == "<<":
            problem = _named((*place, key), "merge keys are not used here; write the keys out")
        if problem:
            raise ConstructorError(None, None, problem, key_node.start_mark)
        lines[*place, key] = _line(key_node.start_mark)
        values[key] = _build(value, (*place, key), lines)
    return values


def _line(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark else 1


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or error.context)
    if isinstance(error, ConstructorError):
        return problem
    if isinstance(error, yaml.composer.ComposerError):
        return "a second document starts; keep one per file"
    if "'\\t'" in problem:
        return "a tab where spaces must be; indent with spaces"
    return f"not YAML: {problem}; quote text that holds ': ' or '#', and check the indentation"


def parse_scalar(text: str) -> Scalar:
    """Unquoted text as YAML 1.2's core schema reads it, except octal, hexadecimal, inf and nan, which stay text.

    A number with a leading zero (``010``) stays text too: it reads as two different numbers in YAML 1.1 and 1.2.
    """
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0[0-9]", text) and math.isfinite(float(text)):
        return float(text)
    return str(text)


def not_known(value: object, known: Collection[str]) -> str:
    """The message for a value that is none of the ``known``."""
    return f"'{value}' is not known; {did_you_mean(str(value), known)}"


def must_be(kind: str, value: object) -> str:
    """The message for a value that is not ``kind``, such as "a whole number of tokens", and what to write instead."""
    shown = str(value).lower() if isinstance(value, bool) else repr(str(value)) if isinstance(value, str) else value
    return f"must be {kind}, not {shown}{_hint(kind, value)}"


def _hint(kind: str, value: object) -> str:
    text = str(value)
    if kind == "true or false":
        flags = {"true": ("yes", "on", "y", "true", "1"), "false": ("no", "off", "n", "false", "0")}
        return next((f"; write {flag}" for flag, words in flags.items() if text.lower() in words), "")
    if "number" not in kind or isinstance(value, int):
        return ""
    if isinstance(value, float):
        return f"; write {int(value)}" if value.is_integer() else ""
    if not isinstance(parse_scalar(text), str):
        return f"; write {text} without quotes"
    if re.fullmatch(r"[0-9]{1,18}", bare := text.replace("_", "").replace(",", "")):
        return f"; write {int(bare)}"
    unit = re.fullmatch(r"[0-9.]+ ?([kKmMbBgG]i?|tokens?|%)", text)
    return "; write the number in full, without a unit" if unit else ""
