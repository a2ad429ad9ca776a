"""A budget as written ("4x" or 4096) -> tokens per KV head, and the message that says how."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import PlainValidator

from vase_cli.config.types import scalar
from vase_cli.errors import ConfigError


class Ratio(str):
    """A checked "Nx", the Nth part of the full cache; its text is what recipes and records show."""

    __slots__ = ()

    @property
    def value(self) -> Fraction:
        """N, exactly."""
        return Fraction(self[:-1])


@dataclass(frozen=True)
class Budget:
    """``tokens`` kept per KV head after a cut; ``message`` says where the figure comes from."""

    tokens: int
    message: str
    warning: str | None = None


def parse_budget(written: object) -> int | Ratio:
    """Tokens, or a ratio of the full cache; ValueError if it is neither, below 1 token, or a ratio below 1."""
    text = str(written).strip().lower() if type(written) in (int, str, Ratio) else ""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?x", text):
        if (ratio := Ratio(text)).value >= 1:
            return ratio
        hint = "N of 'Nx' must be at least 1; '4x' keeps a quarter of the full cache"
        raise ValueError(f"{written!r} is too small: {hint}")
    if not re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        shown = repr(str(written)) if isinstance(written, str) else written
        hint = "write 4096, or 4x for a quarter of the full cache"
        raise ValueError(f"{shown} is not a number of tokens nor a ratio; {hint}")
    if int(text) < 1:
        raise ValueError(f"{text} is not a positive number of tokens, such as 4096; method full evicts nothing")
    return int(text)


BudgetSpec = Annotated[int | Ratio, PlainValidator(lambda value: parse_budget(scalar(value)))]
"""A budget as a recipe holds it."""


def cut_at(budget: int, window: int, token_limit: int) -> int | None:
    """Tokens at which a row is cut, budget and window; None where no text comes to hold so many."""
    return budget + window if budget + window <= token_limit else None


def resolve_budget(
    budget: int | Ratio | None, *, task: str | None, window: int, token_limit: int, dense_tokens: Mapping[str, float]
) -> Budget:
    """The budget of one task (None: a prompt of no task) for any method but ``full``, which takes none.

    Nx is the task's mean full-cache length (``dense_tokens``, in tokens), or where none is known ``token_limit``, over
    N, rounded up to a multiple of ``window``. Tokens are taken as they are. A budget that ``token_limit`` never
    reaches evicts nothing and is a warning. ConfigError if there is no budget, or one not above ``window``.
    """
    of_task = f" for {task}" if task else ""
    if budget is None:
        raise ConfigError(f"no budget{of_task}; give tokens or a ratio, such as --budget 4096 or --budget 4x")
    if isinstance(budget, int):
        tokens, message = budget, f"{budget} tokens, as given"
    else:
        length = dense_tokens.get(task) if task else None
        source = f"the limit of {token_limit:,} tokens, no mean full-cache length{of_task} being known,"
        if length:
            source = f"{length:,.10g} mean full-cache tokens of {task}"
        tokens = math.ceil(Fraction(str(length or token_limit)) / budget.value / window) * window
        ratio = f"{float(budget.value):g}"
        message = f"{ratio}x -> {tokens} tokens: {source} / {ratio}, rounded up to {window}s"
    if tokens <= window:
        how = "" if isinstance(budget, int) else f" ({message})"
        problem = f"not above the window of {window} tokens, which are always kept"
        raise ConfigError(f"budget {tokens}{of_task}{how}: {problem}; raise the budget or lower the window")
    never = f"the limit is {token_limit:,} tokens, so nothing will ever be evicted; lower the budget"
    reached = cut_at(tokens, window, token_limit) is not None
    return Budget(tokens, message, None if reached else f"budget {tokens:,}{of_task}: {never}")
