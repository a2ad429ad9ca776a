"""Requests to an engine, and what comes of them."""

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class NewTokens:
    """The tokens of one moment, (request, token id) each; a text's first token comes from its prefill."""

    tokens: tuple[tuple[Request, int], ...]


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of, in one line; the engine goes on."""

    message: str


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
