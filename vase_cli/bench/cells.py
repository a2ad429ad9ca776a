"""How fast decoding is against what the memory can deliver: cells of one method, budget, number of slots and length.

A cell fills all slots with random states, their cached tokens staggered over the window so that cuts are spread over
the steps as in real use, and decodes. What memory allows is the floor: the bytes that a step must read (weights and
live keys and values), divided by the copy bandwidth measured in the same run.

Letters: B slots, S cached tokens a row can hold (budget + W), W window.
"""

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from vase_cli.engine.assembly import Assembly, Part
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, ModelError, RunError
from vase_cli.runs.environment import environment

LEAST_STEPS = 128
"""Measured steps unless said otherwise, or the two windows that are needed at least."""
_SPARE_TOKENS = 4
"""Between the last measured step and the end of the text, as the engine launches steps ahead."""
_COPIES = 10
_COPY_BYTES = {"cuda": 2 * 2**30, "cpu": 256 * 2**20}
_PREFILLS = 3
_NO_LIMIT = 2**31
_TEXT_SHARES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)
"""Middles of four quarters: the mean step over a text is the mean of the steps there."""

OUT_OF_MEMORY = "out of memory"

_MEASURED = (
    "step_ms_median", "step_ms_p95", "step_ms_mean", "tokens_per_s", "floor_ms", "ratio", "ratio_median", "cut_share",
    "cuts", "held_tokens", "weights_step_bytes", "kv_step_bytes", "prefill_tokens_per_s", "peak_bytes", "planned_bytes",
    "cache_bytes", "notices",
)  # fmt: skip
"""What a cell measures; None in one that ran out of memory."""
_SUMMARIZED = (
    "method", "budget", "slots", "context", "text", "status", "step_ms_median", "tokens_per_s", "ratio", "ratio_median",
    "cut_share", "text_tokens_per_s", "gain", "text_gain",
)  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """Decode steps of a measurement: ``warm_up`` before it, ``measured`` in it."""

    warm_up: int
    measured: int

    @property
    def total(self) -> int:
        """All steps, and what the text must leave room for after them."""
        return self.warm_up + self.measured + _SPARE_TOKENS


@dataclass(frozen=True)
class Cell:
    """One line of the benchmark.

    Attributes:
        assembly: model, method and settings.
        part: budget and limit; the limit leaves room for the steps after ``context``.
        slots: B, or "auto".
        context: text tokens of every row when the steps begin.
        text: tokens of the whole text, of which the steps are the end; None where the text goes on.
    """

    assembly: Assembly
    part: Part
    slots: int | str
    context: int
    text: int | None = None

    @property
    def budget(self) -> int | None:
        """Tokens kept at a cut; None for a method that does not evict."""
        return None if self.part.budget is None else self.part.budget.tokens

    def title(self) -> str:
        """The cell in a few words."""
        budget = "" if self.budget is None else f", budget {self.budget:,}"
        slots = f"{self.slots} slots" if self.text is None else "the slots that fit"
        return f"{self.assembly.recipe.method}{budget}, {slots}, text of {self.text or self.context:,} tokens"


@dataclass(frozen=True)
class LoopTimes:
    """A measured decode loop.

    Attributes:
        step_ms: each step, its cuts included.
        cut_ms: the cuts of each step.
        loop_ms: the whole loop, from the last step of the warm-up to the last measured one.
        notices: what the engine had to say.
    """

    step_ms: list[float]
    cut_ms: list[float]
    loop_ms: float
    notices: list[str]


def make_steps(window: int, warm_up: int | None, measured: int | None) -> Steps:
    """The steps asked for, or for None what is right for the window.

    Raises:
        ConfigError: too few for every row to be cut once before and twice during the measurement.
    """
    if warm_up is not None and warm_up < window:
        raise ConfigError(f"--warmup {warm_up}: must be at least {window}, one window, so that every row is cut once")
    if measured is not None and measured < 2 * window:
        raise ConfigError(
            f"--steps {measured}: must be at least {2 * window}, two windows, so that every row is cut twice"
        )
    enough = max(2, math.ceil(LEAST_STEPS / window)) * window
    return Steps(window if warm_up is None else warm_up, enough if measured is None else measured)


def make_cell(assembly: Assembly, slots: int | str, context: int, steps: Steps) -> Cell:
    """A cell whose rows begin at ``context`` tokens of text.

    Raises:
        ConfigError: a text too short for a cut, too long for the model, or a budget that cannot work.
    """
    return Cell(assembly, _part(assembly, context, context, context + steps.total), slots, context)


def make_text_cell(assembly: Assembly, text: int, steps: Steps) -> Cell:
    """A cell at the end of a text of so many tokens, with the slots that fit.

    Raises:
        ConfigError: as in :func:`make_cell`.
    """
    context = text - steps.total
    return Cell(assembly, _part(assembly, text, context, text), "auto", context, text)


def _part(assembly: Assembly, length: int, context: int, limit: int) -> Part:
    """The part of a cell; ``length`` is what a ratio as budget is a share of."""
    configured = assembly.facts.max_tokens
    if configured is not None and limit > configured:
        raise ConfigError(
            f"a text of {limit:,} tokens, steps included: {assembly.entry.name} is configured for {configured:,}; "
            "give a shorter --context or --text"
        )
    part = replace(assembly.part(None, max_new_tokens=None, max_total_tokens=length), max_total_tokens=limit)
    least = 1 if part.budget is None else part.budget.tokens + assembly.recipe.window
    if context < least:
        raise ConfigError(
            f"a text of {length:,} tokens is too short: {assembly.recipe.method} needs {least + length - context:,} to "
            "be cut in all steps; give a longer --context or --text, or a smaller budget"
        )
    return part


def staggered(budget: int, window: int, slots: int) -> list[int]:
    """Cached tokens of each row, spread over the window, so that as many rows are cut in one step as in another."""
    return [budget + row * window // slots for row in range(slots)]


def count_reads(held: Sequence[int], budget: int | None, window: int, steps: Steps) -> tuple[float, int]:
    """Tokens that a row attends to, the new one included, mean over rows and measured steps; and cuts in these steps.

    Args:
        held: cached tokens of each row before the warm-up.
        budget, window: a row that holds their sum is cut back to the budget; no row is for None.
        steps: what is done.
    """
    read, cuts = 0, 0
    for tokens in held:
        for step in range(steps.warm_up + steps.measured):
            measured = step >= steps.warm_up
            tokens += 1
            read += tokens if measured else 0
            if budget is not None and tokens == budget + window:
                tokens = budget
                cuts += measured
    return read / (len(held) * steps.measured), cuts


def weights_read(assembly: Assembly, slots: int) -> int:
    """Bytes of weights that a step of so many rows reads: all but the embedding's rows and experts out of reach.

    A tied embedding is read as the head. Of a mixture all experts count that the rows could choose.
    """
    facts = assembly.facts
    element_bytes = facts.weights_bytes // facts.parameters
    unread = 0
    if assembly.entry.architecture is not None:
        unread = assembly.entry.architecture.unread_expert_parameters(facts.shape.layers, slots)
    return facts.weights_bytes - facts.embedding_bytes - unread * element_bytes


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written in a second by a large copy within the device's memory; the best of several."""
    size = _COPY_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    best_s = min(_copy_s(source, target) for _ in range(_COPIES))
    return 2 * size / best_s


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.is_cuda:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(source.device)
        start.record(stream)
        target.copy_(source)
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0
    started = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - started


def run_loop(engine: Engine, context: int, held: Sequence[int], steps: Steps) -> LoopTimes:
    """Decode with all rows busy and time the steps after the warm-up; the rows are free again after it.

    Args:
        engine: idle, with a timer.
        context: text tokens of every row.
        held: cached tokens of each row.
        steps: to do.

    Raises:
        torch.OutOfMemoryError: the engine had to shrink.
        RunError: a row ended, which random states do not make it do.
    """
    timer = engine.timer
    if timer is None:
        raise ValueError("the engine has no timer")
    timer.clear()
    prompt = (1,) * context
    engine.occupy([Request(f"row {row}", prompt, f"row {row}") for row in range(len(held))], held)
    done, started, ended = 0, 0.0, 0.0
    notices = []
    with _no_collections(), contextlib.closing(engine.stream(())) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Completion):
                raise RunError(event.error or f"{event.request.id} ended after {len(event.token_ids)} tokens")
            if isinstance(event, Notice):
                notices.append(event.sentence)
            if engine.settings.slots < len(held):
                raise torch.OutOfMemoryError(notices[-1] if notices else "fewer slots than asked for")
            done += isinstance(event, NewTokens)
            if done == steps.warm_up and not started:
                started = time.perf_counter()
            if done == steps.warm_up + steps.measured:
                ended = time.perf_counter()
                break
    measured = slice(steps.warm_up, steps.warm_up + steps.measured)
    return LoopTimes(timer.step_ms()[measured], timer.cut_ms()[measured], 1000.0 * (ended - started), notices)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Python's garbage collector takes tenths of a second when it goes through all objects; not while time is taken."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def prefill_speed(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Tokens a second of a prompt's prefill, alone: the median of several, after one to warm up."""
    speeds = []
    for number in range(1 + _PREFILLS):
        before_tokens, before_s = engine.stats.prefill_tokens, engine.stats.prefill_s
        name = f"prompt {number}"
        with contextlib.closing(engine.stream([Request(name, prompt, name)])) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, Completion):
                    raise RunError(event.error or f"{name} ended at once")
                if engine.stats.prefill_tokens > before_tokens:
                    break
        speeds.append((engine.stats.prefill_tokens - before_tokens) / (engine.stats.prefill_s - before_s))
    return statistics.median(speeds[1:])


def step_figures(times: LoopTimes, slots: int, read_bytes: float, bandwidth: float) -> dict[str, float | int]:
    """The figures of a loop of B rows whose steps read so many bytes."""
    count = len(times.step_ms)
    mean_ms = times.loop_ms / count
    median_ms = statistics.median(times.step_ms)
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


class Bench:
    """Measures cells one after the other, each with an engine of its own that is gone before the next.

    Attributes:
        bandwidth: bytes read and written in a second by a copy.
        decoding: what decode steps run through, known once a cell has run.
    """

    def __init__(
        self, device: torch.device, steps: Steps, *, prefill_tokens: int, memory_bytes: int | None = None
    ) -> None:
        """Measure the bandwidth.

        Args:
            device: the device of all cells.
            steps: of every loop.
            prefill_tokens: of the prompt whose prefill is timed; 0 times none.
            memory_bytes: what is planned with, at most; None is all that is free.
        """
        self.steps = steps
        self.decoding = ""
        self.bandwidth = copy_bandwidth(device)
        self._prefill_tokens = prefill_tokens
        self._memory_bytes = memory_bytes
        self._full: dict[int, dict[str, Any]] = {}
        _give_back(device)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """The record of a cell; :data:`OUT_OF_MEMORY` is a result as well.

        For a cell with a text, ``tokens_per_s`` is that at its end and ``text_tokens_per_s`` that over all of it: B
        over the mean step at 1/8, 3/8, 5/8 and 7/8 of the text, which is B times its tokens over the time they take.
        ``gain`` and ``text_gain`` divide them by those of ``full``, which is measured before.

        Raises:
            VaseError: a model that cannot be loaded, or a row that failed.
        """
        record = self._heading(cell)
        planned = [(cell.part, max(1, record["prefill_tokens"]))]
        limits = {"most_slots": _NO_LIMIT, "available_bytes": self._memory_bytes}
        try:
            fit = cell.assembly.plan(planned, _NO_LIMIT, "auto", **limits).slots
            record["slots_fit"] = fit
            slots = cell.slots if cell.text is None else fit
            plan = cell.assembly.plan(planned, _NO_LIMIT, slots, available_bytes=self._memory_bytes)
        except ConfigError as error:
            return record | {"error": str(error)}
        record |= {"slots": plan.slots, "planned_bytes": plan.total_bytes}
        shortage = ""
        try:
            record |= self._run(cell, plan.slots, record["prefill_tokens"]) | {"status": "ok"}
        except Exception as error:
            if not _is_shortage(error):
                raise
            shortage = " ".join(str(error).split()) or OUT_OF_MEMORY
        gc.collect()  # outside of the handler, whose traceback keeps tensors alive
        _give_back(cell.assembly.device)
        if shortage:
            record["error"] = shortage
        if cell.text is not None:
            self._compare(cell, record)
        return {key: _shorter(value) for key, value in record.items()}

    def summary(self, assembly: Assembly, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The last line: what all cells share, and the figures that matter of each."""
        return {
            "kind": "summary",
            **_model(assembly),
            "weights_bytes": assembly.facts.weights_bytes,
            "bandwidth_bytes_per_s": round(self.bandwidth),
            "decoding": self.decoding,
            "warmup": self.steps.warm_up,
            "steps": self.steps.measured,
            "cells": [{key: record[key] for key in _SUMMARIZED if key in record} for record in records],
            "out_of_memory": sum(record["status"] == OUT_OF_MEMORY for record in records),
            **environment(assembly.gpus()),
        }

    def _heading(self, cell: Cell) -> dict[str, Any]:
        """A record with all that is known before anything runs."""
        recipe = cell.assembly.recipe
        of_text = {"text": cell.text} | dict.fromkeys(("text_tokens_per_s", "gain", "text_gain"))
        return {
            "kind": "cell" if cell.text is None else "text",
            "method": recipe.method,
            "method_options": asdict(cell.assembly.policy),
            "budget": cell.budget,
            "window": recipe.window,
            "slots": cell.slots,
            "context": cell.context,
            **({} if cell.text is None else of_text),
            "status": OUT_OF_MEMORY,
            "error": None,
            **dict.fromkeys(_MEASURED),
            "slots_fit": 0,
            "prefill_tokens": min(self._prefill_tokens, cell.context),
            **_model(cell.assembly),
        }

    def _run(self, cell: Cell, slots: int, prefill_tokens: int) -> dict[str, Any]:
        assembly = cell.assembly
        model = assembly.load()
        model.eos_token_ids = frozenset()  # no text may end before the steps do
        self.decoding = assembly.decode_through(self.steps.total)
        assembly.reset_peak()
        engine = assembly.engine(cell.part, slots=slots, longest_prompt_tokens=cell.context, timed=True)
        figures = self._measure_rows(cell, engine, cell.context)
        if cell.text is not None:
            figures["text_tokens_per_s"] = self._over_text(cell, engine, figures)
        if prefill_tokens:
            prompt = tuple(number % model.facts.vocabulary for number in range(prefill_tokens))
            figures["prefill_tokens_per_s"] = prefill_speed(engine, prompt)
        return figures | {"peak_bytes": assembly.peak_bytes(), "cache_bytes": engine.cache.shape.bytes}

    def _over_text(self, cell: Cell, engine: Engine, at_end: Mapping[str, Any]) -> float:
        """Tokens a second over the whole text."""
        means_ms = []
        for share in _TEXT_SHARES:
            point = min(int((cell.text or 0) * share), cell.context)
            if cell.budget is not None and point >= cell.budget + cell.assembly.recipe.window:
                means_ms.append(at_end["step_ms_mean"])  # from here on a row holds as much as at the end
            else:
                means_ms.append(self._measure_rows(cell, engine, point)["step_ms_mean"])
        return 1000.0 * engine.settings.slots / statistics.fmean(means_ms)

    def _measure_rows(self, cell: Cell, engine: Engine, context: int) -> dict[str, Any]:
        """The figures of steps that begin at so many tokens of text."""
        slots, window = engine.settings.slots, cell.assembly.recipe.window
        full = [context] * slots if cell.budget is None else staggered(cell.budget, window, slots)
        held = [min(tokens, context) for tokens in full]
        times = run_loop(engine, context, held, self.steps)
        held_tokens, cuts = count_reads(held, cell.budget, window, self.steps)
        shape = engine.cache.shape
        weights_bytes = weights_read(cell.assembly, slots)
        kv_bytes = round(held_tokens * slots * (shape.kv_bytes // (shape.slots * shape.tokens)))
        return {
            **step_figures(times, slots, weights_bytes + kv_bytes, self.bandwidth),
            "cuts": cuts,
            "held_tokens": held_tokens,
            "weights_step_bytes": weights_bytes,
            "kv_step_bytes": kv_bytes,
            "notices": times.notices,
        }

    def _compare(self, cell: Cell, record: dict[str, Any]) -> None:
        """Fill in the gain over ``full`` at the same text."""
        text = record["text"]
        if cell.budget is None:
            self._full[text] = record
        full = self._full.get(text)
        if full is not None and full["status"] == record["status"] == "ok":
            record["gain"] = record["tokens_per_s"] / full["tokens_per_s"]
            record["text_gain"] = record["text_tokens_per_s"] / full["text_tokens_per_s"]


def _model(assembly: Assembly) -> dict[str, Any]:
    recipe = assembly.recipe
    return {
        "model": assembly.entry.name,
        "random_weights": assembly.random_weights is not None,
        "dtype": assembly.facts.dtype,
        "attention": assembly.backend.name,
        "sampling": asdict(recipe.sampling),
        "seed": recipe.seed,
        "device": assembly.device_name(),
    }


def _shorter(value: Any) -> Any:
    """A number without the digits that no measurement has."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _is_shortage(error: Exception) -> bool:
    """Whether an error says that memory did not suffice; a CPU's allocator has no type for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return (isinstance(error, ModelError) and text.startswith(OUT_OF_MEMORY)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in text
    )


def _give_back(device: torch.device) -> None:
    """Give memory that is free back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
