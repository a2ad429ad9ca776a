"""Measured runs of an engine: decode steps with all rows busy."""

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from vase_cli.bench.cells import Steps
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, NewTokens, Notice, Request
from vase_cli.errors import RunError


class LoopTimes(NamedTuple):
    """A measured decode loop."""

    step_ms: list[float]  # each step, its cuts included
    cut_ms: list[float]  # the cuts of each step
    loop_ms: float  # from the last step of the warm-up to the last measured one
    notices: list[str]  # of the engine


def staggered(budget: int, window: int, slots: int) -> list[int]:
    """Spread the cached tokens of each row over the window, so that as many rows are cut in any step."""
    return [budget + row * window // slots for row in range(slots)]


def run_loop(engine: Engine, context: int, cached_tokens: Sequence[int], steps: Steps) -> LoopTimes:
    """Decode with all rows busy and time the steps after the warm-up; the rows are free again after it.

    The engine must be idle, and timed; all rows have ``context`` tokens of text and ``cached_tokens`` cached ones.
    torch.OutOfMemoryError if the engine had to shrink, RunError if a row ended.
    """
    timer = engine.timer
    timer.clear()
    names = [f"row {row}" for row in range(len(cached_tokens))]
    engine.occupy([Request(name, (1,) * context, name, ignore_eos=True) for name in names], cached_tokens)
    done, started, notices = 0, 0.0, []
    with contextlib.ExitStack() as after, contextlib.closing(engine.stream(())) as events:
        gc.disable()  # a collection takes tenths of a second to go through all objects
        after.callback(gc.enable)
        for event in events:
            if isinstance(event, Completion):
                raise RunError(event.error or f"{event.request.id} ended after {len(event.token_ids)} tokens")
            if isinstance(event, Notice):
                notices.append(event.message)
            if engine.settings.max_num_seqs < len(cached_tokens):
                raise torch.OutOfMemoryError(notices[-1] if notices else "fewer slots than requested")
            done += isinstance(event, NewTokens)
            if done == steps.warm_up and not started:
                started = time.perf_counter()
            if done == steps.warm_up + steps.measured:
                break
        loop_ms = 1000.0 * (time.perf_counter() - started)
    measured = slice(steps.warm_up, steps.warm_up + steps.measured)
    return LoopTimes(timer.step_ms()[measured], timer.cut_ms()[measured], loop_ms, notices)


def step_figures(times: LoopTimes, slots: int) -> dict[str, float | int]:
    """Work out the figures of a loop with all slots busy."""
    count = len(times.step_ms)
    mean_ms = times.loop_ms / count
    return {
        "step_ms_median": statistics.median(times.step_ms),
        "step_ms_p95": percentile(times.step_ms, 0.95),
        "step_ms_mean": mean_ms,
        "tokens_per_s": 1000.0 * slots / mean_ms,
        "cut_share": sum(times.cut_ms) / times.loop_ms,
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that so large a share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
