"""Decoding speed against what the memory can deliver: the record of each cell.

A cell fills all slots with random states, their cached tokens staggered over the window so that cuts are spread over
the steps as in real use, and decodes. What memory allows is the floor: the bytes that a step must read (weights and
live keys and values), divided by the copy bandwidth measured in the same run. B is the number of slots.
"""

import gc
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from vase_cli.bench.cells import Cell, Steps
from vase_cli.bench.floor import copy_bandwidth, count_reads, weights_read
from vase_cli.bench.loop import prefill_speed, run_loop, staggered, step_figures
from vase_cli.engine.engine import Engine
from vase_cli.engine.plan import Demand, RunPlan
from vase_cli.errors import ConfigError, ModelError
from vase_cli.runs.environment import environment

_NO_LIMIT = 2**31
_TEXT_SHARES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)
"""Middles of four quarters: the mean step over a text is the mean of the steps there."""

OUT_OF_MEMORY = "out of memory"
_MEASURED = (
    "step_ms_median", "step_ms_p95", "step_ms_mean", "tokens_per_s", "floor_ms", "ratio", "ratio_median", "cut_share",
    "cuts", "held_tokens", "weights_step_bytes", "kv_step_bytes", "prefill_tokens_per_s", "peak_bytes", "planned_bytes",
    "cache_bytes", "notices",
)  # fmt: skip
"""Measured figures of a cell; None in one that ran out of memory."""
_SUMMARIZED = (
    "method", "budget", "slots", "context", "text", "status", "step_ms_median", "tokens_per_s", "ratio", "ratio_median",
    "cut_share", "text_tokens_per_s", "gain", "text_gain",
)  # fmt: skip


class Bench:
    """Measures cells one after the other, each with an engine of its own that is gone before the next.

    ``bandwidth`` is bytes read and written in a second by a copy; ``decoding``, what decode steps run through, is known
    once a cell has run.
    """

    def __init__(
        self, device: torch.device, steps: Steps, *, prefill_tokens: int, memory_bytes: int | None = None
    ) -> None:
        """Measure the bandwidth of the device of all cells.

        ``steps`` are those of every loop, ``prefill_tokens`` those of the prompt whose prefill is timed (0 times none).
        ``memory_bytes`` is planned with at most; None is all that is free.
        """
        self.steps, self.decoding, self.bandwidth = steps, "", copy_bandwidth(device)
        self._prefill_tokens, self._memory_bytes = prefill_tokens, memory_bytes
        self._full: dict[int | None, dict[str, Any]] = {}  # the records of ``full`` by text
        torch.cuda.empty_cache()  # does nothing where CUDA is not in use

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Make the record of a cell; :data:`OUT_OF_MEMORY` is a result as well.

        For a cell with a text, ``tokens_per_s`` is that at its end and ``text_tokens_per_s`` that over all of it: B
        over the mean step at 1/8, 3/8, 5/8 and 7/8 of the text, which is B times its tokens over the time they take.
        ``gain`` and ``text_gain`` divide them by those of ``full``, which is measured before.

        VaseError for a model that cannot be loaded, or a row that failed.
        """
        record = self._heading(cell)
        demand = Demand(cell.limits, max(1, record["prefill_tokens"]))
        memory = partial(cell.factory.memory, [demand], available_bytes=self._memory_bytes)
        try:
            record["slots_fit"] = memory("auto", most_num_seqs=_NO_LIMIT).max_num_seqs
            plan = memory(cell.slots if cell.text is None else record["slots_fit"])
        except ConfigError as error:
            return record | {"error": str(error)}
        record |= {"slots": plan.max_num_seqs, "planned_bytes": plan.total_bytes}
        try:
            record |= self._run(cell, plan.max_num_seqs, record["prefill_tokens"]) | {"status": "ok"}
        except Exception as error:
            if not _is_shortage(error):
                raise
            record["error"] = " ".join(str(error).split()) or OUT_OF_MEMORY
        gc.collect()  # outside of the handler, whose traceback keeps tensors alive
        torch.cuda.empty_cache()
        if cell.limits.budget_tokens is None and cell.text is not None:
            self._full[cell.text] = record
        full = self._full.get(cell.text)
        if full is not None and full["status"] == record["status"] == "ok":
            record["gain"] = record["tokens_per_s"] / full["tokens_per_s"]
            record["text_gain"] = record["text_tokens_per_s"] / full["text_tokens_per_s"]
        # No measurement has more digits.
        return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in record.items()}

    def summary(self, plan: RunPlan, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make the last line: what all cells share, and the figures that matter of each."""
        return {
            "kind": "summary",
            **_model(plan),
            "weights_bytes": plan.facts.weights_bytes,
            "bandwidth_bytes_per_s": round(self.bandwidth),
            "decoding": self.decoding,
            "warmup": self.steps.warm_up,
            "steps": self.steps.measured,
            "cells": [{key: record[key] for key in _SUMMARIZED if key in record} for record in records],
            "out_of_memory": sum(record["status"] == OUT_OF_MEMORY for record in records),
            **environment(),
        }

    def _heading(self, cell: Cell) -> dict[str, Any]:
        """Begin a record with all that is known before anything runs."""
        plan = cell.factory.plan
        of_text = {"text": cell.text} | dict.fromkeys(("text_tokens_per_s", "gain", "text_gain"))
        return {
            "kind": "cell" if cell.text is None else "text",
            "method": plan.method,
            "method_options": asdict(plan.policy),
            "budget": cell.limits.budget_tokens,
            "window": plan.recipe.window,
            "slots": cell.slots,
            "context": cell.context,
            **({} if cell.text is None else of_text),
            "status": OUT_OF_MEMORY,
            "error": None,
            **dict.fromkeys(_MEASURED),
            "slots_fit": 0,
            "prefill_tokens": min(self._prefill_tokens, cell.context),
            **_model(plan),
        }

    def _run(self, cell: Cell, slots: int, prefill_tokens: int) -> dict[str, Any]:
        plan = cell.factory.plan
        compiled, self.decoding = cell.factory.decode_path(self.steps.total)
        plan.device.reset_peak()
        engine = cell.factory.engine(
            Demand(cell.limits, cell.context), max_num_seqs=slots, compiled=compiled, timed=True
        )
        figures = self._measure_rows(cell, engine, cell.context)
        if cell.text is not None:
            figures["text_tokens_per_s"] = self._over_text(cell, engine, figures)
        if prefill_tokens:
            prompt = tuple(number % plan.facts.vocabulary for number in range(prefill_tokens))
            figures["prefill_tokens_per_s"] = prefill_speed(engine, prompt)
        return figures | {"peak_bytes": plan.device.peak_bytes(), "cache_bytes": engine.cache.shape.bytes}

    def _over_text(self, cell: Cell, engine: Engine, at_end: Mapping[str, Any]) -> float:
        means_ms, cut_at = [], engine.settings.cut_at
        for share in _TEXT_SHARES:
            point = min(int((cell.text or 0) * share), cell.context)
            full = cut_at is not None and point >= cut_at  # from there on a row holds as much as at the end
            means_ms.append((at_end if full else self._measure_rows(cell, engine, point))["step_ms_mean"])
        return 1000.0 * engine.settings.max_num_seqs / statistics.fmean(means_ms)

    def _measure_rows(self, cell: Cell, engine: Engine, context: int) -> dict[str, Any]:
        """Measure steps that begin at ``context`` tokens of text."""
        plan, slots, budget = cell.factory.plan, engine.settings.max_num_seqs, cell.limits.budget_tokens
        window, shape = plan.recipe.window, engine.cache.shape
        spread = [context] * slots if budget is None else staggered(budget, window, slots)
        cached_tokens = [min(tokens, context) for tokens in spread]
        times = run_loop(engine, context, cached_tokens, self.steps)
        held_tokens, cuts = count_reads(cached_tokens, budget, window, self.steps)
        weights_bytes = weights_read(plan, slots)
        kv_bytes = round(held_tokens * slots * shape.token_bytes)
        return {
            **step_figures(times, slots, weights_bytes + kv_bytes, self.bandwidth),
            "cuts": cuts,
            "held_tokens": held_tokens,
            "weights_step_bytes": weights_bytes,
            "kv_step_bytes": kv_bytes,
            "notices": times.notices,
        }


def _model(plan: RunPlan) -> dict[str, Any]:
    return {
        "model": plan.entry.name,
        "random_weights": plan.random_weights is not None,
        "dtype": plan.facts.dtype,
        "attention": plan.backend.name,
        "sampling": plan.recipe.sampling.recorded(),
        "seed": plan.recipe.seed,
        "device": plan.device.name,
    }


def _is_shortage(error: Exception) -> bool:
    if isinstance(error, ModelError):
        return str(error).startswith(OUT_OF_MEMORY)
    of_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # it has no type of its own
    return of_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError)
