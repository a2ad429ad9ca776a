"""Decoding speed against what the memory can deliver: the record of each cell.

A cell fills all slots with random states, their cached tokens staggered over the window so that cuts are spread over
the steps as in real use, and decodes. What the device allows is the floor: the bytes that a step must read (weights and
live keys and values) and the operations that it must do, divided by the rates measured in the same run. A cell of a
workload serves requests from the first to the last token. B is the number of slots.
"""

import gc
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from vase_cli.bench.cells import Cell, WorkloadCell
from vase_cli.bench.floor import count_reads, step_floor
from vase_cli.bench.loop import run_loop, staggered, step_figures
from vase_cli.bench.rates import measure_rates
from vase_cli.bench.serving import prefill_speed, serve, served_figures, warm_up
from vase_cli.engine.engine import Engine
from vase_cli.engine.memory import MemoryPlan
from vase_cli.engine.plan import RunPlan
from vase_cli.errors import ConfigError, ModelError
from vase_cli.runs.environment import environment

_NO_LIMIT = 2**31
_TEXT_SHARES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)
"""Middles of four quarters: the mean step over a text is the mean of the steps there."""

OUT_OF_MEMORY = "out of memory"
_MEMORY = ("peak_bytes", "planned_bytes", "cache_bytes", "notices")
_MEASURED = (
    "step_ms_median", "step_ms_p95", "step_ms_mean", "tokens_per_s", "floor_bytes_ms", "floor_ops_ms", "floor_ms",
    "bound", "ratio", "ratio_sum", "ratio_median", "cut_share", "cuts", "held_tokens", "weights_step_bytes",
    "kv_step_bytes", "prefill_tokens_per_s", "prefill_new_lengths", *_MEMORY,
)  # fmt: skip
"""Measured figures of a cell; None in one that ran out of memory."""
_SERVED = (
    "wall_s", "walls_s", "tokens_per_s", "first_token_s_mean", "first_token_s_p50", "first_token_s_p95",
    "first_token_s_max", "latency_s_p50", "latency_s_p95", "prefill_s", "steps_s", "cuts_s", "host_s", "prefill_share",
    "steps_share", "cuts_share", "host_share", "decode_steps", "mean_rows", "cuts", "floor_s", "floor_bytes_s",
    "floor_ops_s", "ratio", "ratio_steps", "load_s", "warm_up_s", *_MEMORY,
)  # fmt: skip
"""Likewise, of a cell of a workload."""
_SUMMARIZED = (
    "method", "budget", "slots", "context", "text", "status", "wall_s", "step_ms_median", "tokens_per_s", "ratio",
    "ratio_median", "cut_share", "text_tokens_per_s", "gain", "text_gain",
)  # fmt: skip


class Bench:
    """Measures cells one after the other, each with an engine of its own that is gone before the next.

    ``rates`` are those of the device; ``decoding``, what decode steps run through, is known once a cell has run.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, *, memory_bytes: int | None = None) -> None:
        """Measure the rates of the device of all cells, products in the ``dtype`` of their model.

        ``memory_bytes`` is planned with at most; None is all that is free.
        """
        self.decoding, self.rates = "", measure_rates(device, dtype)
        self._memory_bytes = memory_bytes
        self._prefilled: set[int] = set()  # lengths of prompts whose prefill was timed
        self._full: dict[int | None, dict[str, Any]] = {}  # the records of ``full`` by text

    def measure(self, cell: Cell | WorkloadCell) -> dict[str, Any]:
        """Make the record of a cell; :data:`OUT_OF_MEMORY` is a result as well.

        For a cell with a text, ``tokens_per_s`` is that at its end and ``text_tokens_per_s`` that over all of it: B
        over the mean step at 1/8, 3/8, 5/8 and 7/8 of the text, which is B times its tokens over the time they take.
        ``gain`` and ``text_gain`` divide them by those of ``full``, which is measured before.

        VaseError for a model that cannot be loaded, or a row that failed.
        """
        of_text = isinstance(cell, Cell) and cell.text is not None
        record = _heading(cell)
        memory = partial(cell.factory.memory, available_bytes=self._memory_bytes)
        try:
            record["slots_fit"] = memory([cell.demand.of_any_length()], "auto", most_num_seqs=_NO_LIMIT).max_num_seqs
            most = _NO_LIMIT if isinstance(cell, WorkloadCell) else None
            plan = memory([cell.demand], record["slots_fit"] if of_text else cell.slots, most_num_seqs=most)
        except ConfigError as error:
            return record | {"error": str(error)}
        record |= {"slots": plan.max_num_seqs, "planned_bytes": plan.total_bytes}
        try:
            record |= self._run(cell, plan) | {"status": "ok"}
        except Exception as error:
            if not _is_shortage(error):
                raise
            record["error"] = " ".join(str(error).split()) or OUT_OF_MEMORY
        gc.collect()  # outside of the handler, whose traceback keeps tensors alive
        torch.cuda.empty_cache()
        if isinstance(cell, Cell) and of_text:
            self._compare(cell, record)
        return {key: _rounded(value) for key, value in record.items()}

    def summary(self, cell: Cell | WorkloadCell, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make the last line: what all cells share with this one, and the figures that matter of each."""
        plan = cell.factory.plan
        return {
            "kind": "summary",
            **_model(plan),
            "weights_bytes": plan.facts.weights_bytes,
            "bandwidth_bytes_per_s": round(self.rates.bytes_per_s),
            **{name: round(rate) for name, rate in self.rates._asdict().items()},
            "decoding": self.decoding,
            **cell.shared(),
            "cells": [{key: record[key] for key in _SUMMARIZED if key in record} for record in records],
            "out_of_memory": sum(record["status"] == OUT_OF_MEMORY for record in records),
            **environment(),
        }

    def _compare(self, cell: Cell, record: dict[str, Any]) -> None:
        if cell.limits.budget_tokens is None:
            self._full[cell.text] = record
        full = self._full.get(cell.text)
        if full is not None and full["status"] == record["status"] == "ok":
            record["gain"] = record["tokens_per_s"] / full["tokens_per_s"]
            record["text_gain"] = record["text_tokens_per_s"] / full["text_tokens_per_s"]

    def _run(self, cell: Cell | WorkloadCell, memory: MemoryPlan) -> dict[str, Any]:
        started, device = time.perf_counter(), cell.factory.plan.device
        compiled, self.decoding = cell.factory.decode_path(cell.planned_steps)
        device.reset_peak()
        engine = cell.factory.engine(cell.demand, max_num_seqs=memory.max_num_seqs, compiled=compiled, timed=True)
        load_s = time.perf_counter() - started
        figures = self._decode(cell, engine) if isinstance(cell, Cell) else self._serve(cell, engine, load_s)
        return figures | {"peak_bytes": device.peak_bytes(), "cache_bytes": engine.cache.shape.bytes}

    def _serve(self, cell: WorkloadCell, engine: Engine, load_s: float) -> dict[str, Any]:
        """Serve the workload; of several times, all figures are those of the one whose time is the median."""
        plan = cell.factory.plan
        requests = cell.workload.requests(plan.facts.vocabulary, plan.recipe.seed)
        warm_up_s = warm_up(engine, requests)
        runs = [serve(engine, requests) for _ in range(cell.repeats)]
        walls_s = [run.wall_s for run in runs]
        chosen = runs[walls_s.index(statistics.median_low(walls_s))]
        return {
            **served_figures(chosen, plan, self.rates),
            "walls_s": walls_s,
            "load_s": load_s,
            "warm_up_s": warm_up_s,
            "notices": [notice for run in runs for notice in run.notices],
        }

    def _decode(self, cell: Cell, engine: Engine) -> dict[str, Any]:
        plan = cell.factory.plan
        figures = self._measure_rows(cell, engine, cell.context)
        if cell.text is not None:
            figures["text_tokens_per_s"] = self._over_text(cell, engine, figures)
        drawn = random.Random(plan.recipe.seed)
        speeds = [
            prefill_speed(engine, tokens, plan.facts.vocabulary, drawn, self._prefilled) for tokens in cell.prefill
        ]
        return figures | {
            "prefill_tokens_per_s": [speed.tokens_per_s for speed in speeds],
            "prefill_new_lengths": [speed.new_lengths for speed in speeds],
        }

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
        window = plan.recipe.window
        spread = [context] * slots if budget is None else staggered(budget, window, slots)
        cached_tokens = [min(tokens, context) for tokens in spread]
        times = run_loop(engine, context, cached_tokens, cell.steps)
        held_tokens, cuts = count_reads(cached_tokens, budget, window, cell.steps)
        floor, figures = step_floor(plan, self.rates, slots, held_tokens * slots), step_figures(times, slots)
        return {
            **figures,
            **floor.figures(figures["step_ms_mean"]),
            "ratio_median": figures["step_ms_median"] / floor.ms,
            "cuts": cuts,
            "held_tokens": held_tokens,
            "notices": times.notices,
        }


def _heading(cell: Cell | WorkloadCell) -> dict[str, Any]:
    """Begin a record with all that is known before anything runs."""
    plan = cell.factory.plan
    if isinstance(cell, WorkloadCell):
        workload = cell.workload
        kind: dict[str, Any] = {
            "kind": "workload",
            "workload": workload.name,
            "requests": len(workload.lengths),
            "prompt_tokens": workload.prompt_tokens,
            "new_tokens": workload.new_tokens,
            "longest_text": workload.longest_text,
        }
    else:
        kind = {"kind": "cell" if cell.text is None else "text", "context": cell.context}
        if cell.text is not None:
            kind |= {"text": cell.text} | dict.fromkeys(("text_tokens_per_s", "gain", "text_gain"))
        kind["prefill_tokens"] = list(cell.prefill)
    return {
        **kind,
        "method": plan.method,
        "method_options": asdict(plan.policy),
        "budget": cell.limits.budget_tokens,
        "window": plan.recipe.window,
        "slots": cell.slots,
        "status": OUT_OF_MEMORY,
        "error": None,
        **dict.fromkeys(_MEASURED if isinstance(cell, Cell) else _SERVED),
        "slots_fit": 0,
        **_model(plan),
    }


def _rounded(value: Any) -> Any:
    """No measurement has more than six digits."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
