"""Requests to an engine, and the events of its stream.

Shapes: L layers, H KV heads, D head dim, T cached tokens of one row.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from vase_cli.engine.cut import Cut

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Request:
    """One text to generate."""

    id: str  # names it in errors and in the completion
    prompt_token_ids: tuple[int, ...]  # at least one
    problem_id: str  # with ``sample`` and the engine's seed, names its random numbers
    sample: int = 0  # which of several texts for the same problem
    max_new_tokens: int | None = None  # a limit of its own, below the engine's; None for none
    ignore_eos: bool = False  # whether the text goes on after an end-of-text token


@dataclass(frozen=True)
class Completion:
    """A finished text."""

    request: Request
    token_ids: tuple[int, ...]  # generated, a final end-of-text token included
    finish_reason: FinishReason  # "stop" (an end-of-text token), "length" (a limit), or "error"
    error: str | None  # for "error": names the sequence and, for states that are not finite, the layer
    cuts: int  # how often the row was cut back to the budget
    cached_tokens: int  # held per KV head at the end
    latency_s: float  # from the start of the prefill to the last token


class NewToken(NamedTuple):
    """A token of one text, and how its row stands with it."""

    request: Request
    token_id: int
    cached_tokens: int  # per KV head
    cuts: int  # so far


@dataclass(frozen=True)
class NewTokens:
    """The tokens of one moment; a text's first token comes from its prefill."""

    tokens: tuple[NewToken, ...]


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of, in one line; texts of ``restarted`` requests begin again."""

    message: str
    restarted: tuple[Request, ...] = ()


@dataclass(frozen=True)
class RowCut:
    """A cut of a text's row, where the engine records them."""

    request: Request
    cut: Cut


@dataclass(frozen=True)
class FinishedRow:
    """What the row of a text holds at its end, just before its :class:`Completion`; failed texts have none.

    Views that live until the next event is taken. With a method that evicts, an engine that runs ahead may have cut
    the row once more.
    """

    completion: Completion
    values: Tensor  # (L, T, H, D) in storage order: for ``full`` that is the text order, the last token left out
    positions: Tensor  # (L, H, T) int32, the text position of each token, ascending


Event: TypeAlias = NewTokens | RowCut | FinishedRow | Completion | Notice
"""What an engine's stream yields."""


@dataclass
class EngineStats:
    """Figures of an engine so far; those of several engines can be added."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0  # of the device
    decode_tokens: int = 0  # read from decode steps
    decode_steps: int = 0
    decode_s: float = 0.0
    cuts: int = 0  # rows cut back to the budget

    def __add__(self, other: "EngineStats") -> "EngineStats":
        return EngineStats(**{name: value + getattr(other, name) for name, value in vars(self).items()})
