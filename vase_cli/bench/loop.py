"""Measured runs of an engine: decode steps with all rows busy, and the prefill of one prompt."""

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

_PREFILLS = 3


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


def prefill_speed(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Measure a prompt's prefill alone, in tokens a second: the median of several, after one to warm up."""
    speeds = []
    for number in range(1 + _PREFILLS):
        stats, name = engine.stats, f"prompt {number}"
        before_tokens, before_s = stats.prefill_tokens, stats.prefill_s
        request = Request(name, prompt, name, ignore_eos=True)
        with contextlib.closing(engine.stream([request])) as events:
            for event in events:
                if isinstance(event, Completion):
                    raise RunError(event.error or f"{name} ended at once")
                if stats.prefill_tokens > before_tokens:
                    break
        speeds.append((stats.prefill_tokens - before_tokens) / (stats.prefill_s - before_s))
    return statistics.median(speeds[1:])


def step_figures(times: LoopTimes, slots: int, read_bytes: float, bandwidth: float) -> dict[str, float | int]:
    """Work out the figures of a loop with all slots busy, whose steps read ``read_bytes`` each."""
    count = len(times.step_ms)
    mean_ms, median_ms = times.loop_ms / count, statistics.median(times.step_ms)
    floor_ms = 1000.0 * read_bytes / bandwidth
    return {
        "step_ms_median": median_ms,
        "step_ms_p95": sorted(times.step_ms)[math.ceil(0.95 * count) - 1],
        "step_ms_mean": mean_ms,
        "tokens_per_s": 1000.0 * slots / mean_ms,
        "floor_ms": floor_ms,
        "ratio": mean_ms / floor_ms,
        "ratio_median": median_ms / floor_ms,
        "cut_share": sum(times.cut_ms) / times.loop_ms,
    }
