"""What is asked of an engine, and what comes of it."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Request:
    """One text to generate.

    Attributes:
        id: names it in errors and in the completion.
        prompt_token_ids: the prompt, at least one token.
        problem_id: with ``sample`` and the engine's seed, names its random numbers.
        sample: which of several texts for the same problem.
        max_new_tokens: a limit of its own, below the engine's; None for none.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    problem_id: str
    sample: int = 0
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class Completion:
    """A finished text.

    Attributes:
        request: what was asked.
        token_ids: what was generated, a final end-of-text token included.
        finish_reason: "stop" (an end-of-text token), "length" (a limit), or "error".
        error: why, for "error"; names the sequence and, for states that are not finite, the layer.
        cuts: how often the row was cut back to the budget.
        cached_tokens: tokens held per KV head at the end.
        latency_s: from the start of the prefill to the last token.
    """

    request: Request
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: str | None
    cuts: int
    cached_tokens: int
    latency_s: float


@dataclass(frozen=True)
class NewTokens:
    """The tokens of one moment, (request, token id) each; a text's first token comes from its prefill."""

    tokens: tuple[tuple[Request, int], ...]


@dataclass(frozen=True)
class Notice:
    """Something that the user should know of, in one line; the engine goes on."""

    sentence: str


@dataclass
class EngineStats:
    """What the engine has done so far.

    Attributes:
        prefill_tokens, prefill_s: prompts; seconds of the device.
        decode_tokens, decode_steps, decode_s: tokens read from decode steps, steps, and the time they took.
        cuts: rows cut back to the budget.
        queued_slot_steps: slots times steps, counted while requests were waiting.
        queued_busy_slot_steps: those of them in which the slot generated.
    """

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0
    cuts: int = 0
    queued_slot_steps: int = 0
    queued_busy_slot_steps: int = 0
