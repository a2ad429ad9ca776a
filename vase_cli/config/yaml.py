"""Strict YAML: mappings, lists and scalars with their lines, nothing guessed.

A scalar stays the text it was written as until a rule of the schema converts it, so YAML 1.1's surprises (``no`` as
false, ``010`` as eight, ``4:30`` as a number, dates) cannot happen. A rule is a function that takes a scalar (from a
file: :class:`Plain` or quoted text; from the command line: a Python value) and returns the value, or raises
``ValueError`` with what is wrong and what to do. Anchors, tags, merge keys, several documents, duplicate keys and
empty values are refused. Every error is a ``ConfigError`` of the form ``file:line: key: what; what to do``.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import yaml

from vase_cli.errors import ConfigError, decode_text, did_you_mean

T = TypeVar("T")
Scalar: TypeAlias = int | float | bool | str
Rule: TypeAlias = Callable[[Scalar], T]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_EMPTY = ("", "~", "null", "Null", "NULL")
_MAX_DEPTH = 8


class Plain(str):
    """A scalar written without quotes: text or a number, as the rule that takes it decides."""

    __slots__ = ()


@dataclass(frozen=True)
class Node:
    """One YAML node: ``value`` is a scalar's text, a list or a mapping; ``line`` counts from 1."""

    value: "str | list[Node] | dict[str, Node]"
    line: int


def parse_scalar(text: str) -> Scalar:
    """Unquoted text as YAML 1.2's core schema reads it, less octal, hexadecimal, inf and nan: those stay text.

    A number with a leading zero (``010``) stays text too: it reads as two different numbers in YAML 1.1 and 1.2.
    """
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0[0-9]", text) and math.isfinite(float(text)):
        return float(text)
    return text


class Fields:
    """One mapping of a file, read key by key through rules.

    Raises:
        ConfigError: from every method, naming file, line and key.
    """

    def __init__(self, path: Path, nodes: dict[str, Node], line: int, prefix: str = "") -> None:
        self.path = path
        self.nodes = nodes
        self.line = line
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return key in self.nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def error(self, key: str | None, message: str) -> ConfigError:
        """The error for one key, or for the mapping itself (None)."""
        line = self.nodes[key].line if key in self.nodes else self.line
        name = f"{self.prefix}{key}" if key else self.prefix.rstrip(".")
        return ConfigError(f"{self.path}:{line}: {name}: {message}" if name else f"{self.path}:{line}: {message}")

    def only(self, known: Collection[str]) -> None:
        """Refuse any key that is not ``known``."""
        for key in self.nodes:
            if key == "<<":
                raise self.error(key, "merge keys are not used here; write the keys out")
            if key not in known:
                raise self.error(key, f"unknown key; {did_you_mean(key, known)}")

    def lines(self) -> dict[str, int]:
        """The line of each key, with its prefix; a nested mapping's keys follow with theirs."""
        found = {}
        for key, node in self.nodes.items():
            found[f"{self.prefix}{key}"] = node.line
            if isinstance(node.value, dict):
                found |= Fields(self.path, node.value, node.line, f"{self.prefix}{key}.").lines()
        return found

    def get(self, key: str, rule: Rule[T]) -> T:
        """The scalar at ``key``, through ``rule``."""
        node = self.nodes[key]
        if not isinstance(node.value, str):
            kind = "a list" if isinstance(node.value, list) else "a mapping"
            raise self.error(key, f"is {kind}; write one value")
        return self._convert(key, node, rule)

    def section(self, key: str) -> "Fields":
        """The mapping at ``key``."""
        node = self.nodes[key]
        if not isinstance(node.value, dict):
            raise self.error(key, "must be a mapping; write 'key: value' lines, indented, under it")
        return Fields(self.path, node.value, node.line, f"{self.prefix}{key}.")

    def sequence(self, key: str, rule: Rule[T]) -> list[T]:
        """The non-empty list at ``key``, each item through ``rule``."""
        node = self.nodes[key]
        if not isinstance(node.value, list) or not node.value:
            raise self.error(key, "must be a list with something in it; write [first, second]")
        return [self._convert(key, item, rule) for item in node.value]

    def _convert(self, key: str, node: Node, rule: Rule[T]) -> T:
        place = Fields(self.path, {key: node}, node.line, self.prefix)
        if not isinstance(node.value, str):
            raise place.error(key, "an item of the list is not a single value")
        if isinstance(node.value, Plain) and node.value in _EMPTY:
            raise place.error(key, "has no value; write one, or leave the line out for the default")
        try:
            return rule(node.value)
        except ValueError as error:
            raise place.error(key, str(error)) from None


def read_mapping(path: Path) -> Fields:
    """The mapping that is the whole of a YAML file, its scalars not converted yet.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, not YAML, or not one plain mapping.
    """
    text = _read_text(path)
    try:
        root = _compose(path, text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}:{line}: the character U+{error.character:04X} is not text; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}:{_line(error.problem_mark or error.context_mark)}: {_problem(error)}") from None
    if root is None or root.value in _EMPTY:
        raise ConfigError(f"{path}: the file is empty; write 'key: value' lines")
    if not isinstance(root.value, dict):
        raise ConfigError(f"{path}:{root.line}: not a mapping; write 'key: value' lines")
    return Fields(path, root.value, root.line)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a YAML file in it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{path}:1: starts with a byte-order mark; save the file as UTF-8 without one")
    return decode_text(data, str(path), ConfigError)


def _line(mark: object) -> int:
    return mark.line + 1 if isinstance(mark, yaml.Mark) else 1


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or error.context)
    if "'\\t'" in problem:
        return "a tab where spaces must be; indent with spaces"
    return f"not YAML: {problem}; quote text that holds ': ' or '#', and check the indentation"


def _compose(path: Path, text: str) -> Node | None:
    """Build the tree from the parser's events, without recursion and without resolving what is refused."""
    root: Node | None = None
    # Each open collection: its node, and for a mapping the key that waits for its value.
    stack: list[tuple[Node, list[str]]] = []
    documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = _line(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ConfigError(f"{path}:{line}: a second document starts; keep one per file")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{path}:{line}: aliases (*{event.anchor}) are not used here; write the value out")
        if isinstance(event, yaml.NodeEvent):
            _refuse_anchor_and_tag(path, line, event)
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
            continue
        node = _node(event, line)
        if node is None:
            continue
        if not stack:
            root = node
        elif isinstance(event, yaml.ScalarEvent) and _takes_key(path, stack[-1], node):
            continue
        else:
            _attach(path, stack[-1], node)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(stack) == _MAX_DEPTH:
                raise ConfigError(f"{path}:{line}: nested more than {_MAX_DEPTH} deep; flatten it")
            stack.append((node, []))
    return root


def _refuse_anchor_and_tag(path: Path, line: int, event: yaml.NodeEvent) -> None:
    if event.anchor is not None:
        raise ConfigError(f"{path}:{line}: anchors (&{event.anchor}) are not used here; write the value out")
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise ConfigError(f"{path}:{line}: tags ({tag}) are not used here; remove it")


def _node(event: yaml.Event, line: int) -> Node | None:
    if isinstance(event, yaml.ScalarEvent):
        return Node(Plain(event.value) if event.style is None else event.value, line)
    if isinstance(event, yaml.MappingStartEvent):
        return Node({}, line)
    if isinstance(event, yaml.SequenceStartEvent):
        return Node([], line)
    return None


def _takes_key(path: Path, open_node: tuple[Node, list[str]], node: Node) -> bool:
    """Whether a scalar is the next key of an open mapping; it is then remembered."""
    parent, waiting = open_node
    if not isinstance(parent.value, dict) or waiting:
        return False
    key = str(node.value)
    if key in parent.value:
        raise ConfigError(f"{path}:{node.line}: {key}: given twice, first in line {parent.value[key].line}; keep one")
    waiting.append(key)
    return True


def _attach(path: Path, open_node: tuple[Node, list[str]], node: Node) -> None:
    parent, waiting = open_node
    if isinstance(parent.value, list):
        parent.value.append(node)
    elif isinstance(parent.value, dict):
        if not waiting:
            raise ConfigError(f"{path}:{node.line}: a key must be a single word; quote it if it is text")
        parent.value[waiting.pop()] = node


def whole(unit: str = "", minimum: int = 1, maximum: int | None = None) -> Rule[int]:
    """A whole number (of ``unit``) in [minimum, maximum]."""
    kind = f"a whole number of {unit}" if unit else "a whole number"

    def rule(written: Scalar) -> int:
        value = _literal(written)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be {kind}, not {_shown(value)}{_number_hint(value)}")
        if value < minimum or (maximum is not None and value > maximum):
            most = "" if maximum is None else f" and at most {maximum}"
            raise ValueError(f"must be {kind}, at least {minimum}{most}, not {value}")
        return value

    return rule


def number(unit: str = "", *, positive: bool = False) -> Rule[float]:
    """A finite number (of ``unit``), above 0 where ``positive``."""
    kind = f"a number of {unit}" if unit else "a number"

    def rule(written: Scalar) -> float:
        value = _literal(written)
        if isinstance(value, (bool, str)) or not math.isfinite(value):  # a Python value may be nan
            raise ValueError(f"must be {kind}, not {_shown(value)}{_number_hint(value)}")
        if positive and value <= 0:
            raise ValueError(f"must be {kind} above 0, not {value}")
        return float(value)

    return rule


def flag(written: Scalar) -> bool:
    """``true`` or ``false``."""
    value = _literal(written)
    if isinstance(value, bool):
        return value
    raise ValueError(f"must be true or false, not {_shown(value)}{_flag_hint(value)}")


def text(written: Scalar) -> str:
    """Text as it was written, less the blanks around it; not empty. ``1e10`` is text here, not a number."""
    value = str(written).strip()
    if not value:
        raise ValueError("is empty; write something, or leave the line out")
    return value


def scalar(written: Scalar) -> Scalar:
    """A value of any type: a whole number, a number, true or false, or text."""
    value = _literal(written)
    return str(value) if isinstance(value, str) else value


def choice(*known: str) -> Rule[str]:
    """One of ``known``."""

    def rule(written: Scalar) -> str:
        value = str(written)
        if value not in known:
            raise ValueError(f"'{value}' is not known; {did_you_mean(value, known)}")
        return value

    return rule


def _literal(written: Scalar) -> Scalar:
    return parse_scalar(written) if isinstance(written, Plain) else written


def _shown(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(str(value)) if isinstance(value, str) else str(value)


def _number_hint(value: Scalar) -> str:
    """What to write instead of a value that should have been a number."""
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    if not isinstance(parse_scalar(value), str):
        return f"; write {value} without quotes"
    bare = value.replace("_", "").replace(",", "")
    if re.fullmatch(r"[0-9]{1,18}", bare):
        return f"; write {int(bare)}"
    if re.fullmatch(r"[0-9.]+ ?([kKmMbBgG]i?|tokens?|%)", value):
        return "; write the number in full, without a unit"
    return ""


def _flag_hint(value: Scalar) -> str:
    lowered = str(value).lower()
    if lowered in ("yes", "on", "y", "true", "1"):
        return "; write true"
    if lowered in ("no", "off", "n", "false", "0"):
        return "; write false"
    return ""
