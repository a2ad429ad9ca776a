"""The texts that an engine generates, and the batches of them whose output is on its way from the device."""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vase_cli.engine.decoding import PendingOutput
from vase_cli.engine.requests import Completion, FinishReason, NewToken, Request
from vase_cli.engine.timing import Mark


@dataclass
class Sequence:
    """One request in a row of the cache; ``num_launched`` counts the tokens of ``token_ids`` and those on their way.

    ``cached_tokens`` and ``num_cuts`` are as of the last launch.
    """

    request: Request
    row: int
    eviction_key: int  # see :func:`vase_cli.randomness.stream_key`
    status: Literal["waiting", "prefill", "running", "finished"] = "waiting"  # it has its row in the middle two
    token_ids: list[int] = field(default_factory=list)
    num_launched: int = 0
    cached_tokens: int = 0
    num_cuts: int = 0
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def text_tokens(self) -> int:
        """Length of the text, with the tokens that are on their way."""
        return self.prompt_tokens + self.num_launched


class BatchEntry(NamedTuple):
    """A sequence as it stood behind a launch; the host may have launched more of it since."""

    sequence: Sequence
    cached_tokens: int
    num_cuts: int
    place: int = 0  # of its token in the output
    cut_place: int | None = None  # of its first bad layer in the output; None if it was not cut

    def new_token(self, token_id: int) -> NewToken:
        """The token that this launch has made."""
        return NewToken(self.sequence.request, token_id, self.cached_tokens, self.num_cuts)

    def completion(self, reason: FinishReason, error: str | None = None) -> Completion:
        """The finished text."""
        sequence = self.sequence
        return Completion(
            request=sequence.request,
            token_ids=tuple(sequence.token_ids),
            finish_reason=reason,
            error=error,
            cuts=self.num_cuts,
            cached_tokens=self.cached_tokens,
            latency_s=time.perf_counter() - sequence.started_s,
        )


class Batch(NamedTuple):
    """A launched prefill or decode step; the marks of start and end are kept for each part of a prefill."""

    phase: Literal["prefill", "decode"]
    entries: tuple[BatchEntry, ...]
    output: PendingOutput
    marks: SequenceOf[tuple[Mark, Mark]] | None = None
