"""Valid values and files made invalid: by their structure, and by their bytes."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from vase_cli.errors import VaseError

LONGEST_MESSAGE = 2000


def nested(depth: int, item: Any = 0) -> Any:
    """Lists and objects in one another."""
    for level in range(depth):
        item = [item] if level % 2 else {"a": item}
    return item


NUMBERS = [
    0, 1, -1, 2**31 - 1, 2**31, 2**63, -(2**63), 2**64, 10**18, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.5, 1e-320, 1e300,
    -1e300, math.nan, math.inf, -math.inf,
]  # fmt: skip
TEXTS = [
    "", " ", "0", "-1", "1e10", "4x", "1e400x", "0x", "nan", "true", "null", "auto", "x" * 300, "x" * 20_000, "\0",
    "a\nb", "a\r\nb", "\x1b]0;P\x07", "\x9b", "\u2028", "\u202e", "\ud800", "\udcff", "é", "𝟙", "٣", "../x", "/", "~",
    "~nosuchuser/x", "/dev/null", "a/b", "{question}", "<think>", "\\boxed{1}", "tiny-reasoner", "full", "{{ 1/0 }}",
    "%s", "9" * 5000,
]  # fmt: skip
# Few of each kind: making the table of all characters would take longer than the tests.
CHARACTERS = (
    "aZ09 _-.,:;/\\\"'#{}[]()<>$%&*!?|^=+@~`\0\t\n\r\x1b\x7f"
    "\x85\xa0é\u0301ßſΩ٣𝟙中\u200b\u2028\u202e\ufeff\ufffd🙂\ud800\udcff\U0010ffff"
)
SHORT_TEXT = st.text(CHARACTERS, max_size=12)
SCALARS = st.one_of(
    st.sampled_from([None, True, False]),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.integers(-100, 100),
    st.floats(width=32),
    SHORT_TEXT,
)
VALUES = st.one_of(
    SCALARS,
    st.sampled_from([[], {}, [[]], [{}], {"": ""}, [None], nested(9), nested(60)]).map(copy.deepcopy),
    st.lists(SCALARS, max_size=3),
    st.dictionaries(SHORT_TEXT, SCALARS, max_size=3),
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a value with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(item)


@st.composite
def mutated(draw: st.DrawFn, valid: Any) -> Any:
    """A valid value, one to three places of which are dropped, added, renamed, of another type or out of any range."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return draw(VALUES)
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        change = draw(st.sampled_from(["replace", "replace", "replace", "drop", "rename", "add", "copy", "whole"]))
        if change == "replace":
            holder[key] = draw(VALUES)
        elif change == "drop":
            del holder[key]
        elif change == "copy":  # of another place of the value
            other, name = places[draw(st.integers(0, len(places) - 1))]
            holder[key] = copy.deepcopy(other[name])
        elif change == "whole":
            value = draw(VALUES)
        elif isinstance(holder, list):
            holder.insert(key, draw(VALUES))
        else:
            name = draw(st.sampled_from(TEXTS) | SHORT_TEXT | st.just(f"{key}s"))
            holder[name] = holder.pop(key) if change == "rename" else draw(VALUES)
    return value


PIECES = [
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n", b"\t", b"\x1b[2J", b"\x85",
    b"\xe2\x80\xa8", b'"', b"'", b",", b":", b": ", b" #", b"- ", b"[", b"]", b"{", b"}", b"\\", b"\\u", b"\\ud800",
    b"---\n", b"...\n", b"&a ", b"*a", b"!!python/object:os.system ", b"<<: ", b"? ", b"| ", b"%YAML 1.1\n",
    b"[" * 3000, b"{" * 40, b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"null", b"x" * 70_000,
]  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid file, cut, or with bytes dropped, repeated, overwritten or added in one to three places."""
    content = valid
    for _ in range(draw(st.integers(1, 3))):
        start, end = sorted(draw(st.integers(0, len(content))) for _ in range(2))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=12))
        change = draw(st.sampled_from(["cut", "drop", "repeat", "insert", "insert", "overwrite", "lines", "other"]))
        if change == "cut":
            content = content[:end]
        elif change == "drop":
            content = content[:start] + content[min(end, start + 40) :]
        elif change == "repeat":
            content = content[:end] + content[start:end] + content[end:]
        elif change == "insert":
            content = content[:end] + piece + content[end:]
        elif change == "overwrite":
            content = content[:start] + piece + content[start + len(piece) :]
        elif change == "lines":
            content = b"\n".join(draw(st.permutations(content.split(b"\n")[:8])))
        else:
            content = draw(st.binary(max_size=60) | st.sampled_from([b"", b"\n", *PIECES]))
    return content


def as_json(value: Any) -> bytes:
    """JSON as Python writes it, NaN and lone surrogates included."""
    return json.dumps(value).encode()


def file_contents(valid: Any, written: Callable[[Any], bytes] = as_json) -> st.SearchStrategy[bytes]:
    """Contents of a file that holds a value: mutated and then written, or written and then mangled."""
    return mutated(valid).map(written) | mangled(written(valid))


def one_line(act: Callable[[], object], *names: object) -> str | None:
    """Call what may refuse its input: in one line, which names one of ``names``; None where it does not refuse."""
    try:
        act()
    except VaseError as error:
        message = str(error)
        assert message.strip() and len(message.splitlines()) == 1, repr(message)
        assert len(message) <= LONGEST_MESSAGE, len(message)
        assert not names or any(str(name) in message for name in names), message
        return message
    return None


def files_of(folder: Path) -> dict[Path, bytes]:
    """The files below a folder, with their content."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
