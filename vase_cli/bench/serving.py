"""Requests from the moment that an engine gets them to their last token: workloads, and prompts alone."""

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from vase_cli.bench.floor import step_floor
from vase_cli.bench.loop import percentile
from vase_cli.bench.rates import Rates
from vase_cli.bench.workloads import draw_tokens, make_request
from vase_cli.engine.engine import Engine
from vase_cli.engine.plan import RunPlan
from vase_cli.engine.requests import Completion, EngineStats, NewTokens, Notice, Request
from vase_cli.errors import RunError

_WARM_UP_TOKENS = 8  # of each text that warms up
_UNDER_WAY = 2  # steps that the device may not have done yet
_PROMPTS = 32  # of a measurement of prefills
_WARM_UP_PROMPTS = 4


@dataclass
class Served:
    """What was seen while a workload ran; times in seconds from the moment that the engine got the requests."""

    wall_s: float
    first_token_s: list[float]  # of each text, in the order in which they came
    last_token_s: list[float]  # likewise
    new_tokens: int
    steps: list[tuple[int, int]]  # texts in each decode step, and the tokens that they attended to
    steps_s: float  # of the device, cuts left out
    cuts_s: float  # of the device
    stats: EngineStats
    notices: list[str]  # of the engine


def warm_up(engine: Engine, requests: Sequence[Request]) -> float:
    """Let the engine prepare itself and run the shortest and the longest prompt for some tokens: seconds it took."""
    started = time.perf_counter()
    by_length = sorted(requests, key=lambda request: len(request.prompt_token_ids))
    prompts = [request.prompt_token_ids for request in (by_length[0], by_length[-1])]
    serve(engine, [make_request(f"warm-up {place}", prompt, _WARM_UP_TOKENS) for place, prompt in enumerate(prompts)])
    return time.perf_counter() - started


def serve(engine: Engine, requests: Sequence[Request]) -> Served:
    """Give all requests to an engine at once and take what it makes.

    The engine must be idle, and timed. torch.OutOfMemoryError if it had to shrink, RunError for a text that failed.
    """
    engine.stats, budget, window = EngineStats(), engine.settings.budget, engine.settings.window
    engine.timer.clear()
    gc.collect()  # what was left behind before is no work of these requests
    seen = Served(0.0, [], [], 0, [], 0.0, 0.0, engine.stats, [])
    waiting = {request.id for request in requests}
    started = time.perf_counter()
    with contextlib.closing(engine.stream(requests)) as events:
        for event in events:
            now = time.perf_counter() - started
            if isinstance(event, NewTokens):
                later = [token for token in event.tokens if token.request.id not in waiting]
                if len(later) < len(event.tokens):
                    waiting.difference_update(token.request.id for token in event.tokens)
                    seen.first_token_s += [now] * (len(event.tokens) - len(later))
                if later:
                    # A row that was cut in this step attended to a window more than it holds now.
                    cut = sum(token.cached_tokens == budget and token.cuts > 0 for token in later)
                    held = sum(token.cached_tokens for token in later)
                    seen.steps.append((len(later), held + cut * window))
                    _take_times(engine, seen, _UNDER_WAY)
            elif isinstance(event, Completion):
                if event.error:
                    raise RunError(event.error)
                seen.last_token_s.append(now)
                seen.new_tokens += len(event.token_ids)
            elif isinstance(event, Notice):
                if event.restarted:
                    raise torch.OutOfMemoryError(event.message)
                seen.notices.append(event.message)
    seen.wall_s = time.perf_counter() - started
    _take_times(engine, seen, 0)
    return seen


def _take_times(engine: Engine, seen: Served, under_way: int) -> None:
    steps_s, cuts_s = engine.timer.take(under_way)
    seen.steps_s += steps_s
    seen.cuts_s += cuts_s


def served_figures(seen: Served, plan: RunPlan, rates: Rates) -> dict[str, Any]:
    """Work out the figures of a workload that ran. The floor is that of all its decode steps, prefills left out."""
    parts = {"prefill": seen.stats.prefill_s, "steps": seen.steps_s, "cuts": seen.cuts_s}
    parts["host"] = seen.wall_s - sum(parts.values())  # the rest, in which the device waits
    floor_of = cache(lambda rows, attended: step_floor(plan, rates, rows, attended))
    floors = [floor_of(*step) for step in seen.steps]
    floor_s = sum(floor.ms for floor in floors) / 1000
    steps_s = seen.steps_s + seen.cuts_s
    return {
        "wall_s": seen.wall_s,
        "tokens_per_s": seen.new_tokens / seen.wall_s,
        "first_token_s_mean": statistics.fmean(seen.first_token_s),
        "first_token_s_p50": percentile(seen.first_token_s, 0.5),
        "first_token_s_p95": percentile(seen.first_token_s, 0.95),
        "first_token_s_max": max(seen.first_token_s),
        "latency_s_p50": percentile(seen.last_token_s, 0.5),
        "latency_s_p95": percentile(seen.last_token_s, 0.95),
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        **{f"{name}_share": seconds / seen.wall_s for name, seconds in parts.items()},
        "decode_steps": len(seen.steps),
        "mean_rows": statistics.fmean(rows for rows, _ in seen.steps) if seen.steps else None,
        "cuts": seen.stats.cuts,
        "floor_s": floor_s,
        "floor_bytes_s": sum(floor.bytes_ms for floor in floors) / 1000,
        "floor_ops_s": sum(floor.ops_ms for floor in floors) / 1000,
        "ratio": seen.wall_s / floor_s if floors else None,
        "ratio_steps": steps_s / floor_s if floors else None,
    }


class PrefillSpeed(NamedTuple):
    """A measurement of prefills."""

    tokens_per_s: float
    new_lengths: int  # of the measured prompts: those whose length no prompt had before


def prefill_lengths(longest: int, drawn: random.Random, seen: Set[int] = frozenset()) -> tuple[list[int], list[int]]:
    """Draw the lengths of prompts between half of ``longest`` and the whole, all different: to warm up, and to measure.

    Those that are not ``seen`` come first. Where there are so few that all are measured, the first of them warms up.
    """
    lengths = range((longest + 1) // 2, longest + 1)
    chosen = sorted(drawn.sample(lengths, len(lengths)), key=seen.__contains__)
    return chosen[_PROMPTS:][:_WARM_UP_PROMPTS] or chosen[:1], chosen[:_PROMPTS]


def prefill_speed(engine: Engine, longest: int, vocabulary: int, drawn: random.Random, seen: set[int]) -> PrefillSpeed:
    """Measure prompts of many lengths that wait all at once, from the first to the last's end.

    Lengths are those of :func:`prefill_lengths`, and join ``seen``: a length may cost more the first time that a
    process has it. Errors as in :func:`serve`.
    """
    warming, measured = prefill_lengths(longest, drawn, seen)
    for lengths in (warming, measured):
        new_lengths = len(set(lengths) - seen)
        seen.update(lengths)
        prompts = [draw_tokens(drawn, tokens, vocabulary) for tokens in lengths]
        served = serve(engine, [make_request(f"prompt {place}", prompt, 1) for place, prompt in enumerate(prompts)])
    return PrefillSpeed(sum(measured) / served.wall_s, new_lengths)
