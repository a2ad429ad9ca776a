"""Running texts, and the steps whose results are on their way."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from vase_cli.engine.decoding import Readback
from vase_cli.engine.requests import Completion, FinishReason, Request
from vase_cli.engine.timing import Mark


@dataclass
class RunningText:
    """A text in a row of the cache, as far as it is launched; its tokens may still be on their way from the device."""

    request: Request
    row: int
    eviction_key: int
    started_s: float
    token_ids: list[int] = field(default_factory=list)
    launched: int = 0
    cached_tokens: int = 0
    cuts: int = 0
    finished: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)


class Launched(NamedTuple):
    """A text as it stood after a step."""

    text: RunningText
    cached_tokens: int
    cuts: int
    place: int = 0  # index of its token in the step's results
    cut: int | None = None  # index of its first bad layer there; None if it was not cut

    def completion(self, reason: FinishReason, error: str | None = None) -> Completion:
        """The finished text."""
        return Completion(
            request=self.text.request,
            token_ids=tuple(self.text.token_ids),
            finish_reason=reason,
            error=error,
            cuts=self.cuts,
            cached_tokens=self.cached_tokens,
            latency_s=time.perf_counter() - self.text.started_s,
        )


class Flight(NamedTuple):
    """A prefill (with its start and end) or a decode step (without) whose results are on their way."""

    launched: tuple[Launched, ...]
    results: Readback
    prefill: tuple[Mark, Mark] | None = None
