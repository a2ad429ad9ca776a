"""The benchmark's figures against sums done by hand, and what a cell does to its rows; no figure is a time limit."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.benchmarks import ATTENTION, CPU, FLOAT32, HEAD, RATES, STEPS, make_factory

from vase_cli.bench import records
from vase_cli.bench.cells import Cell, Steps, make_cell, make_steps
from vase_cli.bench.floor import count_reads
from vase_cli.bench.loop import LoopTimes, run_loop, staggered
from vase_cli.bench.records import OUT_OF_MEMORY, Bench
from vase_cli.config.schema import ModelEntry, Recipe, SamplingParams
from vase_cli.device import gpu_names
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import MOST_NUM_SEQS, EngineFactory
from vase_cli.engine.plan import Demand, plan_run
from vase_cli.engine.requests import NewTokens, Request
from vase_cli.errors import ConfigError, RunError


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(records, "measure_rates", lambda device, dtype: RATES)


def make_text_cell(factory: EngineFactory, text: int) -> Cell:
    return make_cell(factory, "auto", text, STEPS, of_text=True)


def make_engine(factory: EngineFactory, slots: int, context: int) -> Engine:
    cell = make_cell(factory, slots, context, STEPS)
    return factory.engine(Demand(cell.limits, context), max_num_seqs=slots, timed=True)


# --- the cells --------------------------------------------------------------------------------------------


def test_steps_are_whole_windows_unless_said_otherwise() -> None:
    assert make_steps(64, None, None) == Steps(64, 128)
    assert make_steps(100, None, None) == Steps(100, 200)
    assert make_steps(24, None, None) == Steps(24, 144)
    assert make_steps(64, 70, 1000) == Steps(70, 1000)


@pytest.mark.parametrize(
    ("warm_up", "measured", "message"),
    [(63, None, "--warmup 63: must be at least 64"), (None, 127, "--steps 127: must be at least 128, two windows")],
)
def test_too_few_steps_are_refused(warm_up: int | None, measured: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_steps(64, warm_up, measured)


def test_a_text_too_short_or_too_long_is_refused() -> None:
    factory = make_factory()
    assert make_cell(factory, 2, 20, STEPS).limits.max_total_tokens > 20 + 12
    with pytest.raises(ConfigError, match="a text of 19 tokens is too short: random needs 20 to be cut"):
        make_cell(factory, 2, 19, STEPS)
    with pytest.raises(ConfigError, match="a text of 33 tokens is too short: random needs 36"):
        make_text_cell(factory, 33)
    with pytest.raises(ConfigError, match="tiny is configured for 500"):
        make_cell(factory, 2, 490, STEPS)
    with pytest.raises(ConfigError, match="tiny is configured for 500"):
        make_text_cell(factory, 501)
    with pytest.raises(ConfigError, match="not above the window of 4 tokens"):
        make_cell(make_factory(budget=4), 2, 100, STEPS)


def test_a_ratio_is_a_share_of_the_text() -> None:
    factory = make_factory(budget="4x")
    assert make_cell(factory, 2, 160, STEPS).limits.budget_tokens == 40
    assert make_text_cell(factory, 320).limits.budget_tokens == 80


# --- rows: staggered, and counted right -------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 4, 64])
@pytest.mark.parametrize("slots", [1, 2, 16, 64, 100, 256])
def test_staggering_spreads_rows_evenly_over_the_window(slots: int, window: int) -> None:
    held = staggered(1000, window, slots)
    assert len(held) == slots
    assert all(1000 <= tokens < 1000 + window for tokens in held)
    by_offset = Counter(held)
    assert max(by_offset.values()) <= -(-slots // window)
    assert len(by_offset) == min(slots, window)


@pytest.mark.parametrize("method", ["random", "vase-attnv", "streaming"])
def test_staggered_rows_are_cut_one_in_each_step(method: str) -> None:
    changes = {"method_options": {"n_large": 4}} if method == "vase-attnv" else {}
    engine = make_engine(make_factory(method, **changes), 4, 100)
    engine.occupy([Request(str(row), (1,) * 100, str(row)) for row in range(4)], staggered(16, 4, 4))
    cuts = [0]
    for event in engine.stream(()):
        assert isinstance(event, NewTokens) and len(event.tokens) == 4
        cuts.append(engine.stats.cuts)
        if len(cuts) == 13:
            break
    assert cuts == list(range(13))


@pytest.mark.parametrize(("method", "slots"), [("full", 3), ("random", 1), ("random", 3), ("random", 9)])
def test_reads_and_cuts_are_those_of_the_engine(method: str, slots: int) -> None:
    engine = make_engine(make_factory(method), slots, 50)
    held = [50] * slots if method == "full" else staggered(16, 4, slots)
    engine.occupy([Request(str(row), (1,) * 50, str(row)) for row in range(slots)], held)
    before, read, cuts_before = sum(held), [], 0
    for event in engine.stream(()):
        assert isinstance(event, NewTokens)
        read.append(before + slots)
        before = sum(token.cached_tokens for token in event.tokens)
        if len(read) == STEPS.warm_up:
            cuts_before = engine.stats.cuts
        if len(read) == STEPS.warm_up + STEPS.measured:
            break
    expected = sum(read[STEPS.warm_up :]) / (slots * STEPS.measured), engine.stats.cuts - cuts_before
    assert count_reads(held, None if method == "full" else 16, 4, STEPS) == expected


def test_the_loop_times_the_measured_steps_and_frees_its_rows() -> None:
    engine = make_engine(make_factory(), 2, 60)
    for _ in range(2):
        times = run_loop(engine, 60, staggered(16, 4, 2), STEPS)
        assert len(times.step_ms) == len(times.cut_ms) == STEPS.measured
        assert all(0 <= cut < step for cut, step in zip(times.cut_ms, times.step_ms, strict=True))
        assert sum(times.step_ms) <= times.loop_ms * 1.5 and times.notices == []
        assert engine.cache.lengths.sum() == 0


def test_a_row_that_ends_fails_the_benchmark() -> None:
    with pytest.raises(RunError, match="row 0 ended after 16 tokens"):
        run_loop(make_engine(make_factory(), 2, 60), 60, staggered(16, 4, 2), Steps(warm_up=4, measured=80))


# --- figures ----------------------------------------------------------------------------------------------


def test_a_cells_figures_fit_each_other() -> None:
    factory = make_factory("vase-attnv", method_options={"n_large": 4}, seed=7)
    record = Bench(CPU, torch.float32).measure(make_cell(factory, 3, 100, STEPS, prefill=(30, 200)))
    assert (record["status"], record["error"], record["notices"]) == ("ok", None, [])
    assert (record["method"], record["budget"], record["slots"], record["context"]) == ("vase-attnv", 16, 3, 100)
    # Rows go from 17 to 20 tokens, again and again, and each of 3 rows is cut twice in 8 steps.
    kv_bytes = 3 * 18.5 * (2 * 2 * 16 * 2) * FLOAT32
    weights_bytes = (2 * (ATTENTION + 3 * 32 * 48) + 32 + HEAD) * FLOAT32
    assert (record["held_tokens"], record["cuts"]) == (18.5, 6)
    assert (record["kv_step_bytes"], record["weights_step_bytes"]) == (kv_bytes, weights_bytes)
    assert record["floor_bytes_ms"] == pytest.approx(1000 * (kv_bytes + weights_bytes) / 2e9, rel=1e-4)
    flops = 2 * 3 * weights_bytes / FLOAT32 + 4 * 4 * 16 * 2 * 3 * 18.5
    assert record["floor_ops_ms"] == pytest.approx(1000 * flops / 1e12, rel=1e-4)
    assert (record["floor_ms"], record["bound"]) == (record["floor_bytes_ms"], "bytes")
    both_ms = record["floor_bytes_ms"] + record["floor_ops_ms"]
    assert record["ratio_sum"] == pytest.approx(record["step_ms_mean"] / both_ms, rel=1e-4)
    assert record["tokens_per_s"] == pytest.approx(3000 / record["step_ms_mean"], rel=1e-4)
    assert record["ratio"] == pytest.approx(record["step_ms_mean"] / record["floor_ms"], rel=1e-4)
    assert record["ratio_median"] == pytest.approx(record["step_ms_median"] / record["floor_ms"], rel=1e-4)
    assert record["step_ms_median"] <= record["step_ms_p95"]
    assert 0 < record["cut_share"] < 1
    assert record["prefill_tokens"] == [30, 100] and len(record["prefill_tokens_per_s"]) == 2
    assert min(record["prefill_tokens_per_s"]) > 0
    assert record["slots_fit"] >= 3 and record["peak_bytes"] > 0
    assert record["planned_bytes"] > record["cache_bytes"] > 3 * 20 * (2 * 2 * 16 * 2) * FLOAT32
    assert (record["model"], record["random_weights"], record["device"], record["seed"]) == ("tiny", True, "cpu", 7)


def test_without_a_prefill_none_is_timed() -> None:
    record = Bench(CPU, torch.float32).measure(make_cell(make_factory(), 2, 100, STEPS))
    assert (record["status"], record["prefill_tokens"], record["prefill_tokens_per_s"]) == ("ok", [], [])


def test_full_holds_the_whole_text() -> None:
    record = Bench(CPU, torch.float32).measure(make_cell(make_factory("full"), 2, 100, STEPS))
    assert (record["status"], record["budget"], record["cuts"]) == ("ok", None, 0)
    assert record["held_tokens"] == 100 + STEPS.warm_up + (STEPS.measured + 1) / 2


def test_a_real_model_is_measured_with_its_texts_going_on(model_folder: Callable[..., Path]) -> None:
    recipe = Recipe("tiny", "tiny", method="random", budget=16, window=4, device="cpu", sampling=SamplingParams())
    factory = EngineFactory(plan_run(recipe, ModelEntry("tiny", path=model_folder("qwen3"))))
    factory.load().eos_token_ids = frozenset(range(factory.plan.facts.vocabulary))
    record = Bench(CPU, torch.float32).measure(make_cell(factory, 2, 100, STEPS))
    assert (record["status"], record["random_weights"]) == ("ok", False)


# --- memory -----------------------------------------------------------------------------------------------


def test_slots_that_the_plan_refuses_are_a_result() -> None:
    factory = make_factory()
    measured = Bench(CPU, torch.float32, memory_bytes=2 * 2**20)
    fit = measured.measure(make_cell(factory, 1, 100, STEPS))["slots_fit"]
    assert fit > 1
    record = measured.measure(make_cell(factory, fit + 1, 100, STEPS))
    assert (record["status"], record["slots"], record["slots_fit"]) == (OUT_OF_MEMORY, fit + 1, fit)
    assert f"use --slots {fit} or less" in record["error"]
    assert record["tokens_per_s"] is record["ratio"] is record["peak_bytes"] is None
    assert measured.measure(make_cell(factory, fit, 100, STEPS))["status"] == "ok"


def test_memory_for_not_even_one_slot_is_a_result() -> None:
    record = Bench(CPU, torch.float32, memory_bytes=1000).measure(make_cell(make_factory(), 1, 50, STEPS))
    assert (record["status"], record["slots_fit"]) == (OUT_OF_MEMORY, 0)
    assert record["error"].startswith("this run does not fit")


SHORTAGES = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nMore."),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    "python": MemoryError(),
}


@pytest.mark.parametrize("when", ["cache", "step"])
@pytest.mark.parametrize("error", SHORTAGES.values(), ids=SHORTAGES.keys())
@pytest.mark.parametrize("slots", [1, 4])
def test_running_out_of_memory_is_a_result_and_the_next_cell_runs(
    error: Exception, when: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, measured = make_factory(), Bench(CPU, torch.float32)

    def fail(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        if when == "cache":
            patch.setattr("vase_cli.engine.engine.StaticCache", fail)
        else:
            patch.setattr(DecodeLoop, "step", fail)
        record = measured.measure(make_cell(factory, slots, 100, STEPS))
    assert record["status"] == OUT_OF_MEMORY and record["tokens_per_s"] is None
    assert record["error"] and "\n" not in record["error"]
    assert measured.measure(make_cell(factory, slots, 100, STEPS))["status"] == "ok"


def test_an_engine_that_shrinks_has_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = DecodeLoop.step, []

    def fail_once(self: DecodeLoop, longest: int) -> None:
        calls.append(longest)
        if len(calls) == 6:
            raise torch.OutOfMemoryError("no more")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", fail_once)
    record = Bench(CPU, torch.float32).measure(make_cell(make_factory(), 4, 100, STEPS))
    assert (record["status"], record["slots"], record["tokens_per_s"]) == (OUT_OF_MEMORY, 4, None)
    assert len(calls) == 6 and "3 slots" in record["error"]


def test_another_error_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(DecodeLoop, "step", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        Bench(CPU, torch.float32).measure(make_cell(make_factory(), 2, 100, STEPS))


@pytest.mark.parametrize("short_of_memory", [False, True])
def test_an_engine_is_gone_before_the_next_cell(short_of_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[weakref.ref[Any]] = []
    make = EngineFactory.engine

    def watched(self: EngineFactory, demand: Demand, **settings: Any) -> Engine:
        assert [cache() for cache in caches] == [None] * len(caches)
        engine = make(self, demand, **settings)
        caches.append(weakref.ref(engine.cache))
        vars(engine)["itself"] = engine  # a cycle, which only the collector takes apart
        return engine

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(EngineFactory, "engine", watched)
    if short_of_memory:
        monkeypatch.setattr(DecodeLoop, "step", fail)
    measured, factory = Bench(CPU, torch.float32), make_factory()
    gc.disable()  # what is only found by a collection of chance would fill a GPU
    try:
        for _ in range(3):
            measured.measure(make_cell(factory, 2, 100, STEPS))
    finally:
        gc.enable()
    assert len(caches) == 3


# --- whole texts, at equal memory -------------------------------------------------------------------------


def test_gain_over_full_at_equal_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a step that takes 1 ms and 0.1 ms for each token that a row holds, so that every figure is known."""
    seen: list[tuple[int, int]] = []

    def loop(engine: Engine, context: int, held: Sequence[int], steps: Steps) -> LoopTimes:
        step_ms = 1 + 0.1 * max(held)
        seen.append((context, max(held)))
        return LoopTimes([step_ms] * steps.measured, [0.0] * steps.measured, step_ms * steps.measured, [])

    monkeypatch.setattr(records, "run_loop", loop)
    measured = Bench(CPU, torch.float32, memory_bytes=8 * 2**20)
    text = 400
    full = measured.measure(make_text_cell(make_factory("full"), text))
    end = full["context"]
    assert text - 20 < end < text - 12
    assert seen == [(end, end), (50, 50), (150, 150), (250, 250), (350, 350)]
    assert full["slots"] == full["slots_fit"] > 1 and full["gain"] == full["text_gain"] == 1.0
    assert full["tokens_per_s"] == pytest.approx(1000 * full["slots"] / (1 + 0.1 * end), rel=1e-4)
    mean_ms = 1 + 0.1 * (50 + 150 + 250 + 350) / 4
    assert full["text_tokens_per_s"] == pytest.approx(1000 * full["slots"] / mean_ms, rel=1e-4)

    seen.clear()
    other = measured.measure(make_text_cell(make_factory(budget=60), text))
    assert seen == [(end, 63), (50, 50)]  # from 64 tokens on its rows hold the same
    assert other["slots"] > 4 * full["slots"]
    at_end = 1000 * other["slots"] / (1 + 6.3)
    over_text = 1000 * other["slots"] / ((1 + 5 + 3 * (1 + 6.3)) / 4)
    assert other["tokens_per_s"] == pytest.approx(at_end, rel=1e-4)
    assert other["text_tokens_per_s"] == pytest.approx(over_text, rel=1e-4)
    assert other["gain"] == pytest.approx(at_end / full["tokens_per_s"], rel=1e-4)
    assert other["text_gain"] == pytest.approx(over_text / full["text_tokens_per_s"], rel=1e-4)


def test_a_text_of_which_full_does_not_fit_has_no_gain() -> None:
    measured = Bench(CPU, torch.float32, memory_bytes=300_000)
    full = measured.measure(make_text_cell(make_factory("full"), 480))
    other = measured.measure(make_text_cell(make_factory(), 480))
    assert (full["status"], full["gain"]) == (OUT_OF_MEMORY, None)
    assert (other["status"], other["gain"], other["text_gain"]) == ("ok", None, None)


def test_texts_are_measured_for_real() -> None:
    measured = Bench(CPU, torch.float32, memory_bytes=3 * 2**20)
    full, other = (
        measured.measure(make_text_cell(make_factory(method, budget=40), 200)) for method in ("full", "random")
    )
    assert full["status"] == other["status"] == "ok"
    assert other["slots"] > full["slots"] and other["gain"] > 0 and other["text_gain"] > 0


def test_auto_stops_where_other_commands_do_but_not_for_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOST_NUM_SEQS, "cpu", 3)
    measured = Bench(CPU, torch.float32, memory_bytes=2 * 2**20)
    cell = measured.measure(make_cell(make_factory(), "auto", 100, STEPS))
    assert cell["slots"] == 3 < cell["slots_fit"]
    text = measured.measure(make_text_cell(make_factory(), 120))
    assert text["slots"] == text["slots_fit"] > 3


# --- the summary ------------------------------------------------------------------------------------------


def test_the_summary_says_what_all_cells_share() -> None:
    measured, factory = Bench(CPU, torch.float32, memory_bytes=2 * 2**20), make_factory()
    measurements = [measured.measure(make_cell(factory, slots, 100, STEPS)) for slots in (1, 2, 1000)]
    summary = measured.summary(make_cell(factory, 1, 100, STEPS), measurements)
    assert summary["kind"] == "summary" and summary["out_of_memory"] == 1
    assert [cell["slots"] for cell in summary["cells"]] == [1, 2, 1000]
    assert [cell["tokens_per_s"] for cell in summary["cells"]] == [record["tokens_per_s"] for record in measurements]
    assert (summary["warmup"], summary["steps"], summary["bandwidth_bytes_per_s"]) == (4, 8, 2_000_000_000)
    rates = (summary["copy_bytes_per_s"], summary["read_bytes_per_s"], summary["flops_per_s"])
    assert rates == (2_000_000_000, 1_500_000_000, 10**12)
    assert summary["versions"]["torch"] == torch.__version__
    assert summary["hardware"]["gpus"] == gpu_names()
    assert summary["decoding"].startswith("decode steps run through")
