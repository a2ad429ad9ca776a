"""One decode step of all slots: from the last tokens to the next, as one CUDA graph where there is a GPU.

Everything a step reads and writes stays in place on the device: tokens, positions and lengths advance there, so a
step needs nothing from the host, and the host may run ahead of the device by some steps. What the host needs is
copied to pinned memory behind each step and read later.

Letters: B slots, V vocabulary.
"""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.graphs import capture
from vase_cli.engine.sampling import sample
from vase_cli.engine.steps import DecodeStep
from vase_cli.errors import first_line
from vase_cli.models.language_model import LanguageModel


def set_row(per_row: Tensor, row: int, number: int) -> None:
    """``per_row[row] = number``, without the wait for all launched work that this assignment is on a GPU."""
    per_row[row : row + 1].fill_(number)


@dataclass
class SlotState:
    """What a step knows of each row, on the device.

    Attributes:
        tokens: (B,) int64, the token that each row feeds next.
        text_positions: (B,) int64, its position.
        active: (B,) int32, 1 in a row that generates, 0 in an idle one.
        token_keys: (B,) int64, see :func:`vase_cli.randomness.stream_key`.
        held: (B,) int32, tokens each row attends to in the running step.
        result: (2, B) int64, the tokens of the last step and whether their logits were finite.
    """

    slots: int
    device: torch.device
    tokens: Tensor = field(init=False)
    text_positions: Tensor = field(init=False)
    active: Tensor = field(init=False)
    token_keys: Tensor = field(init=False)
    held: Tensor = field(init=False)
    result: Tensor = field(init=False)

    def __post_init__(self) -> None:
        for name in ("tokens", "text_positions", "token_keys"):
            setattr(self, name, torch.zeros(self.slots, dtype=torch.int64, device=self.device))
        for name in ("active", "held"):
            setattr(self, name, torch.zeros(self.slots, dtype=torch.int32, device=self.device))
        self.result = torch.zeros((2, self.slots), dtype=torch.int64, device=self.device)

    def clear(self, row: int) -> None:
        """Make a row idle."""
        for per_row in (self.tokens, self.text_positions, self.active, self.token_keys):
            set_row(per_row, row, 0)


class StepTimer:
    """Times of every decode step and of the cuts in it, for benchmarks.

    Args:
        device: a GPU is timed with CUDA events, a CPU with its clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[torch.cuda.Event | float] = []

    def mark(self) -> None:
        """Called three times a step: before it, after its forward, and after its cuts."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def clear(self) -> None:
        """Forget what was timed so far."""
        self._marks = []

    def step_ms(self) -> list[float]:
        """Milliseconds of each step: from its start to the next one's, so that a device that waits is counted too.

        The last step, which none follows, ends with its cuts.
        """
        self._wait()
        starts = [*self._marks[::3], *self._marks[-1:]]
        return [_between(start, end) for start, end in itertools.pairwise(starts)]

    def cut_ms(self) -> list[float]:
        """Milliseconds of the cuts of each step."""
        self._wait()
        return [_between(start, end) for start, end in zip(self._marks[1::3], self._marks[2::3], strict=True)]

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()


def _between(start: "torch.cuda.Event | float", end: "torch.cuda.Event | float") -> float:
    if isinstance(start, float) and isinstance(end, float):
        return 1000.0 * (end - start)
    assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
    return float(start.elapsed_time(end))


class DecodeLoop:
    """Runs decode steps over a cache.

    Args:
        model, cache, backend: what computes.
        state: see :class:`SlotState`.
        sampling: how tokens are drawn.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: StaticCache,
        backend: AttentionBackend,
        state: SlotState,
        sampling: SamplingParams,
    ) -> None:
        self._model = model
        self._cache = cache
        self._backend = backend
        self._state = state
        self._sampling = sampling
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> list[str]:
        """Compile the step if the model asks for it, and capture it, with all rows idle.

        Where one of them fails, steps run without it.

        Returns:
            What failed, and why.

        Raises:
            torch.OutOfMemoryError: no room for the step's buffers.
        """
        failures = []
        if self._model.compiled:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a compiler's advice to its callers
                    self._compute(1)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # a compiler may raise anything
                failures.append(f"torch.compile failed, going on without it: {first_line(error)}")
                self._model.compile(on=False)
        if self._model.device.type == "cuda":
            self._graph, reason = capture(lambda: self._compute(None), self._model.device)
            if reason:
                failures.append(f"decoding runs without a CUDA graph, and so slower: {reason}")
        return failures

    def step(self, longest: int) -> None:
        """Advance every active row by one token; ``longest`` is the most tokens that a row attends to."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute(longest)

    def _compute(self, longest: int | None) -> None:
        state, cache = self._state, self._cache
        torch.add(cache.lengths, state.active, out=state.held)
        on_host = None if cache.keys.is_cuda else longest
        step = DecodeStep(cache, self._backend, state.text_positions, state.active, state.held, on_host)
        logits = self._model.decode(state.tokens, step)
        tokens, finite = sample(logits, self._sampling, state.token_keys, state.text_positions + 1)
        state.result[0] = tokens
        state.result[1] = finite
        state.tokens.copy_(tokens * state.active)
        state.text_positions += state.active
        cache.lengths += state.active


class Readback:
    """Numbers on their way from the device: copied behind the work that makes them, read when they are there."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        """Start copying; integer tensors of any shape."""
        self._event: torch.cuda.Event | None = None
        if values and values[0].is_cuda:
            self._values = [torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in values]
            for host, value in zip(self._values, values, strict=True):
                host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._values = [value.clone() for value in values]

    def read(self) -> list[list[int]]:
        """Wait for the copies; each tensor as a flat list."""
        if self._event is not None:
            self._event.synchronize()
        return [value.flatten().tolist() for value in self._values]
