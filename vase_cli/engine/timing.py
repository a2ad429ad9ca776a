"""Times on a device: marks in its work, and what passes between them."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import torch

Mark = torch.cuda.Event | float


def mark(device: torch.device) -> Mark:
    """A mark behind the work launched so far: an event of a GPU, or elsewhere the time at which that work is done."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def milliseconds(start: Mark, end: Mark) -> float:
    """Time between two marks of one device; waits for the second."""
    if isinstance(start, float):
        assert isinstance(end, float)
        return 1000.0 * (end - start)
    assert isinstance(end, torch.cuda.Event)
    end.synchronize()
    return float(start.elapsed_time(end))


class StepTimer:
    """Times of every decode step and of the cuts in it, for benchmarks; keeps nothing unless it is ``on``."""

    def __init__(self, device: torch.device, *, on: bool) -> None:
        self._device = device
        self._on = on
        self._steps: list[Mark] = []
        self._cuts: list[tuple[Mark, Mark]] = []

    @contextlib.contextmanager
    def cuts(self) -> Iterator[None]:
        """Time the cuts of a step, the last thing in it."""
        start = mark(self._device) if self._on else None
        yield
        if start is not None:
            self._cuts.append((start, mark(self._device)))

    def start_step(self) -> None:
        """Time a step from here on."""
        if self._on:
            self._steps.append(mark(self._device))

    def clear(self) -> None:
        """Forget the times so far."""
        self._steps, self._cuts = [], []

    def take(self, under_way: int = 0) -> tuple[float, float]:
        """Seconds of steps without their cuts, and of cuts; forgets those steps, of which the last stay for later.

        ``under_way`` is the number of steps that stay, as the device may not have done them yet.
        """
        done = max(0, len(self._cuts) - under_way)
        steps_ms = sum(milliseconds(step, cut) for step, (cut, _) in zip(self._steps[:done], self._cuts, strict=False))
        cuts_ms = sum(milliseconds(*marks) for marks in self._cuts[:done])
        del self._steps[:done], self._cuts[:done]
        return steps_ms / 1000.0, cuts_ms / 1000.0

    def step_ms(self) -> list[float]:
        """Milliseconds of each step: from its start to the next one's, so that a device that waits is counted too.

        The last step, which none follows, ends with its cuts.
        """
        ends = [end for _, end in self._cuts[-1:]]
        return [milliseconds(start, end) for start, end in itertools.pairwise([*self._steps, *ends])]

    def cut_ms(self) -> list[float]:
        """Milliseconds of the cuts of each step."""
        return [milliseconds(start, end) for start, end in self._cuts]
