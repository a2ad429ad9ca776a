"""One decode step of all rows: from the last tokens to the next, as one CUDA graph where there is a GPU.

Everything a step reads and writes stays in place on the device: tokens, positions and lengths advance there, so a
step needs nothing from the host, and the host may run ahead of the device by some steps. What the host needs is
copied to pinned memory behind each step and read later.

Shapes: B rows, L layers, V vocabulary.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.graphs import CaptureError, capture
from vase_cli.engine.sampling import sample
from vase_cli.engine.steps import DecodeStep
from vase_cli.errors import first_line
from vase_cli.models.language_model import LanguageModel


def set_row(per_row: Tensor, row: int, number: int) -> None:
    """``per_row[row] = number``, without the wait for all launched work that this assignment is on a GPU."""
    per_row[row : row + 1].fill_(number)


class SlotState:
    """The device's side of each row.

    Attributes:
        tokens, text_positions: (B,) int64, the token that each row feeds next, and its position.
        token_keys: (B,) int64, see :func:`vase_cli.randomness.stream_key`.
        active, seq_lens: (B,) int32, 1 in a row that generates and 0 in an idle one; tokens it attends to in the step.
        result: (2, B) int64, the tokens of the last step and whether their logits were finite.
        seen: (B, V) bool, the tokens of prompt and text of each row, none in an idle one; None where nobody asks.
    """

    def __init__(self, max_num_seqs: int, device: torch.device, vocabulary: int | None = None) -> None:
        """Make all rows idle; ``vocabulary`` is given where the tokens that were seen matter."""
        self.tokens, self.text_positions, self.token_keys = (
            torch.zeros(max_num_seqs, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.active, self.seq_lens = (torch.zeros(max_num_seqs, dtype=torch.int32, device=device) for _ in range(2))
        self.result = torch.zeros((2, max_num_seqs), dtype=torch.int64, device=device)
        seen = None if vocabulary is None else torch.zeros((max_num_seqs, vocabulary), dtype=torch.bool, device=device)
        self.seen: Tensor | None = seen

    def see_prompt(self, row: int, token_ids: Tensor) -> Tensor | None:
        """Note the tokens of a prompt, (T,) int64, in place of what the row saw before: (1, V), a view, or None."""
        if self.seen is None:
            return None
        seen = self.seen[row : row + 1].fill_(False)
        return seen.index_fill_(1, token_ids, True)

    def clear(self, row: int) -> None:
        """Make a row idle."""
        if self.seen is not None:
            self.seen[row].fill_(False)
        for per_row in (self.tokens, self.text_positions, self.active, self.token_keys):
            set_row(per_row, row, 0)


@dataclass
class DecodeLoop:
    """Decode steps over a cache."""

    model: LanguageModel
    cache: StaticCache
    backend: AttentionBackend
    state: SlotState
    sampling: SamplingParams
    _graph: torch.cuda.CUDAGraph | None = field(default=None, init=False)

    def prepare(self) -> list[str]:
        """Compile the step if the model asks for it, and capture it, with all rows idle.

        Steps run without what fails; one line for each failure, that says why, is returned. torch.OutOfMemoryError if
        there is no room for the step's buffers.
        """
        failures = []
        if self.model.compiled:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a compiler's advice to its callers
                    self._compute(1)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler may raise anything
                failures.append(f"torch.compile failed, going on without it: {first_line(error)}")
                self.model.compile(on=False)
        if self.model.device.type == "cuda":
            try:
                self._graph = capture(lambda: self._compute(None), self.model.device)
            except CaptureError as error:
                failures.append(f"decoding runs without a CUDA graph, and so slower: {error}")
        return failures

    def step(self, longest: int) -> None:
        """Advance every active row by one token; ``longest`` is the most tokens that a row attends to."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute(longest)

    def _compute(self, longest: int | None) -> None:
        state, cache = self.state, self.cache
        torch.add(cache.lengths, state.active, out=state.seq_lens)
        on_host = None if cache.keys.is_cuda else longest
        step = DecodeStep(cache, self.backend, state.text_positions, state.active, state.seq_lens, on_host)
        logits = self.model.decode(state.tokens, step)
        positions = state.text_positions + 1
        tokens, finite = sample(logits, self.sampling, state.token_keys, positions, cache.ops, state.seen)
        if state.seen is not None:
            state.seen.scatter_(1, tokens[:, None], state.active[:, None].bool())
        state.result[0] = tokens
        state.result[1] = finite
        state.tokens.copy_(tokens * state.active)
        state.text_positions += state.active
        cache.lengths += state.active


class StepOutput(NamedTuple):
    """The results of a step on the host, of each row."""

    tokens: Sequence[int]
    finite: Sequence[int]  # whether its logits were
    bad_layers: Sequence[int] = ()  # of each row that was cut: the first layer that was not finite, L if all were


class PendingOutput:
    """Results on their way from the device: copied behind the work that makes them, read when they are there."""

    def __init__(self, tokens: Tensor, finite: Tensor, bad_layers: Tensor | None) -> None:
        """Start copying integer vectors, see :class:`StepOutput`; None where no row was cut."""
        values = [tokens, finite] if bad_layers is None else [tokens, finite, bad_layers]
        self._event: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._values = [torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in values]
            for host, value in zip(self._values, values, strict=True):
                host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._values = [value.clone() for value in values]

    def read(self) -> StepOutput:
        """Wait for the copies."""
        if self._event is not None:
            self._event.synchronize()
        return StepOutput(*(value.tolist() for value in self._values))
