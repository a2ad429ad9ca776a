"""Whole workloads: the lengths of requests that arrive at once, built in or from a file."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from vase_cli.engine.requests import Request
from vase_cli.errors import DataError
from vase_cli.tasks._files import read_rows
from vase_cli.tasks._rows import RowError

_FIELDS = ("prompt_tokens", "new_tokens", "count")
_MOST_TOKENS = 2**31 - 1
_MOST_REQUESTS = 1_000_000

_DENSE_TOKENS = (15_325, 17_847)
"""Mean lengths of Qwen3-14B's answers with the full cache, of AIME 2026 and HMMT 2025 (arXiv 2606.03928)."""
_SIGMA = 0.8  # of the lengths' logarithms
_TEXTS = 32  # for each of the means
_LEAST, _MOST = 2048, 32_768


class Lengths(NamedTuple):
    """Tokens of one request."""

    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class Workload:
    """Requests that arrive all at once, by their lengths, in the order in which they wait."""

    name: str
    lengths: tuple[Lengths, ...]

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(request.prompt_tokens for request in self.lengths)

    @property
    def new_tokens(self) -> int:
        """Tokens to generate, of all requests together."""
        return sum(request.new_tokens for request in self.lengths)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(request.prompt_tokens for request in self.lengths)

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text, its prompt included."""
        return max(map(sum, self.lengths))

    def requests(self, vocabulary: int, seed: int) -> list[Request]:
        """Make the requests, with random tokens that depend on the seed alone; no end-of-text token ends them."""
        drawn = random.Random(seed)
        return [
            make_request(f"request {number}", draw_tokens(drawn, tokens, vocabulary), new_tokens)
            for number, (tokens, new_tokens) in enumerate(self.lengths)
        ]


def make_request(name: str, prompt: tuple[int, ...], new_tokens: int) -> Request:
    """Make a request for exactly so many new tokens."""
    return Request(name, prompt, name, max_new_tokens=new_tokens, ignore_eos=True)


def draw_tokens(drawn: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    """Draw the tokens of a prompt."""
    return tuple(drawn.choices(range(vocabulary), k=count))


def make_workload(named: str, seed: int) -> Workload:
    """Make a built-in workload, or read one from a JSON Lines file: see ``vase bench --help``.

    DataError for a file that is not there or cannot be read, and for a bad line, with its number.
    """
    if named in BUILT_IN:
        return Workload(named, tuple(BUILT_IN[named](random.Random(seed))))
    if Path(named).suffix != ".jsonl":
        hint = "give short, reasoning or a file that ends in .jsonl"
        raise DataError(f"--workload {named}: no such workload; {hint}")
    lengths: list[Lengths] = []
    for row in read_rows(Path(named)):
        try:
            lengths += _read_line(row.value)
        except RowError as fault:
            raise DataError(f"{row.where}: {fault}; fix or remove the line") from fault
        if len(lengths) > _MOST_REQUESTS:
            raise DataError(f"{row.where}: more than {_MOST_REQUESTS:,} requests up to here; write a smaller count")
    if not lengths:
        raise DataError(f'{named} holds no request: write {{"prompt_tokens": 200, "new_tokens": 4096}}, one a line')
    return Workload(named, tuple(lengths))


def _read_line(fields: object) -> list[Lengths]:
    """As many requests as a line is for; RowError for a line that is not one."""
    if isinstance(fields, RowError):
        raise fields
    if not isinstance(fields, dict):
        raise RowError("not an object with fields")
    if unknown := fields.keys() - set(_FIELDS):
        raise RowError(f"field '{min(unknown)}' is not known; there are: {', '.join(_FIELDS)}")
    counts = []
    for name in _FIELDS:
        value = fields.get(name, 1 if name == "count" else None)
        if value is None:
            raise RowError(f"no field '{name}'")
        if type(value) is not int or not 1 <= value <= (_MOST_REQUESTS if name == "count" else _MOST_TOKENS):
            raise RowError(f"field '{name}' is {value!r:.40}, not a whole number, at least 1")
        counts.append(value)
    prompt_tokens, new_tokens, count = counts
    return [Lengths(prompt_tokens, new_tokens)] * count


def _short(drawn: random.Random) -> Iterator[Lengths]:
    for _ in range(256):
        yield Lengths(drawn.randint(100, 1000), 2048)


def _reasoning(drawn: random.Random) -> list[Lengths]:
    """Quantiles of a lognormal distribution around each published mean, clipped, in random order."""
    lengths = []
    for mean in _DENSE_TOKENS:
        logarithms = NormalDist(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
        for place in range(_TEXTS):
            tokens = round(math.exp(logarithms.inv_cdf((place + 0.5) / _TEXTS)))
            lengths.append(Lengths(200, min(max(tokens, _LEAST), _MOST)))
    drawn.shuffle(lengths)
    return lengths


BUILT_IN: dict[str, Callable[[random.Random], Iterator[Lengths] | list[Lengths]]] = {
    "short": _short,
    "reasoning": _reasoning,
}
"""The workloads that have a name, drawn with a seed."""
