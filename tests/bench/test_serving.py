"""A workload served: tokens, steps and times add up, whatever the machine's speed."""

import random

import pytest
import torch
from helpers.benchmarks import CPU, RATES, STEPS, make_factory

from vase_cli.bench import records
from vase_cli.bench.cells import WorkloadCell, make_workload_cell
from vase_cli.bench.cells import make_cell as make_step_cell
from vase_cli.bench.floor import step_floor
from vase_cli.bench.records import OUT_OF_MEMORY, Bench
from vase_cli.bench.serving import Served, prefill_lengths, prefill_speed, serve, served_figures, warm_up
from vase_cli.bench.workloads import Lengths, Workload, make_request
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.requests import EngineStats
from vase_cli.engine.timing import StepTimer
from vase_cli.errors import ConfigError, RunError

MIXED = Workload("mixed", (Lengths(10, 6), Lengths(30, 25), Lengths(5, 1), Lengths(18, 9), Lengths(3, 30)))
PARTS = ("prefill", "steps", "cuts", "host")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(records, "measure_rates", lambda device, dtype: RATES)


def make_cell(
    factory: EngineFactory, slots: int | str = 2, workload: Workload = MIXED, repeats: int = 1
) -> WorkloadCell:
    return make_workload_cell(factory, slots, workload, repeats)


def make_engine(factory: EngineFactory, slots: int = 2) -> Engine:
    cell = make_cell(factory)
    return factory.engine(cell.demand, max_num_seqs=slots, timed=True)


def test_steps_hold_the_rows_and_tokens_that_the_engine_attends_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step is told of its rows, against what is worked out from its tokens: cuts, joins and ends included."""
    attended = []
    step = DecodeLoop.step

    def watched(self: DecodeLoop, longest: int) -> None:
        active = self.state.active.bool()
        attended.append((int(active.sum()), int((self.cache.lengths + 1)[active].sum())))
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", watched)
    engine = make_engine(make_factory())
    seen = serve(engine, MIXED.requests(101, seed=0))
    assert seen.steps == attended
    assert engine.stats.cuts > 5
    assert len(seen.steps) == engine.stats.decode_steps
    assert sum(rows for rows, _ in seen.steps) == engine.stats.decode_tokens == MIXED.new_tokens - len(MIXED.lengths)


def test_full_attends_to_all_of_the_text() -> None:
    workload = Workload("two", (Lengths(10, 4), Lengths(20, 3)))
    seen = serve(make_engine(make_factory("full")), workload.requests(101, seed=0))
    assert seen.steps == [(2, 11 + 21), (2, 12 + 22), (1, 13)]


def test_every_text_has_a_first_and_a_last_token() -> None:
    engine = make_engine(make_factory())
    seen = serve(engine, MIXED.requests(101, seed=0))
    assert seen.new_tokens == MIXED.new_tokens and seen.stats.prefill_tokens == MIXED.prompt_tokens
    assert len(seen.first_token_s) == len(seen.last_token_s) == len(MIXED.lengths)
    assert 0 < seen.first_token_s[0] < seen.last_token_s[-1] <= seen.wall_s
    assert seen.first_token_s == sorted(seen.first_token_s) and seen.last_token_s == sorted(seen.last_token_s)
    assert min(seen.stats.prefill_s, seen.steps_s, seen.cuts_s) > 0
    assert seen.stats.prefill_s + seen.steps_s + seen.cuts_s < seen.wall_s


def test_the_figures_of_a_served_workload_by_hand() -> None:
    plan = make_factory().plan
    stats = EngineStats(prefill_s=1.0, cuts=3)
    steps = [(2, 40), (2, 42), (1, 20)]
    seen = Served(10.0, [0.5, 1.0, 1.5, 5.0], [2.0, 4.0, 6.0, 10.0], 50, steps, 6.0, 2.0, stats, [])
    figures = served_figures(seen, plan, RATES)
    assert (figures["wall_s"], figures["tokens_per_s"], figures["cuts"]) == (10.0, 5.0, 3)
    firsts = [figures[f"first_token_s_{name}"] for name in ("mean", "p50", "p95", "max")]
    assert firsts == [2.0, 1.0, 5.0, 5.0]
    assert (figures["latency_s_p50"], figures["latency_s_p95"]) == (4.0, 10.0)
    assert [figures[f"{part}_s"] for part in PARTS] == [1.0, 6.0, 2.0, 1.0]
    assert [figures[f"{part}_share"] for part in PARTS] == pytest.approx([0.1, 0.6, 0.2, 0.1])
    assert (figures["decode_steps"], figures["mean_rows"]) == (3, pytest.approx(5 / 3))
    floors = [step_floor(plan, RATES, rows, attended) for rows, attended in steps]
    assert figures["floor_s"] == pytest.approx(sum(floor.ms for floor in floors) / 1000)
    assert figures["floor_bytes_s"] == pytest.approx(sum(floor.bytes_ms for floor in floors) / 1000)
    assert figures["floor_ops_s"] == pytest.approx(sum(floor.ops_ms for floor in floors) / 1000)
    assert figures["ratio"] == pytest.approx(10 / figures["floor_s"])
    assert figures["ratio_steps"] == pytest.approx(8 / figures["floor_s"])


def test_prompts_alone_have_no_steps() -> None:
    cell = make_cell(make_factory(), workload=Workload("prompts", (Lengths(10, 1), Lengths(25, 1))))
    record = Bench(CPU, torch.float32).measure(cell)
    assert (record["status"], record["decode_steps"], record["floor_s"]) == ("ok", 0, 0)
    assert record["mean_rows"] is record["ratio"] is record["ratio_steps"] is None


def test_a_record_of_a_workload_adds_up() -> None:
    record = Bench(CPU, torch.float32).measure(make_cell(make_factory(seed=5), repeats=3))
    assert (record["kind"], record["workload"], record["status"], record["error"]) == ("workload", "mixed", "ok", None)
    counted = (record["requests"], record["prompt_tokens"], record["new_tokens"], record["longest_text"])
    assert counted == (5, 66, 71, 55)
    assert (record["slots"], record["slots_fit"], record["budget"], record["seed"]) == (2, 5, 16, 5)
    assert len(record["walls_s"]) == 3 and record["wall_s"] == sorted(record["walls_s"])[1]
    assert sum(record[f"{part}_s"] for part in PARTS) == pytest.approx(record["wall_s"], rel=1e-4)
    assert sum(record[f"{part}_share"] for part in PARTS) == pytest.approx(1, rel=1e-4)
    assert all(record[f"{part}_s"] > 0 for part in PARTS)
    assert record["tokens_per_s"] == pytest.approx(71 / record["wall_s"], rel=1e-4)
    assert record["mean_rows"] * record["decode_steps"] == pytest.approx(71 - 5, rel=1e-4)
    assert record["first_token_s_p50"] <= record["first_token_s_p95"] <= record["first_token_s_max"]
    assert record["latency_s_p50"] <= record["latency_s_p95"] <= record["wall_s"]
    assert record["warm_up_s"] > 0 and record["load_s"] > 0
    assert record["planned_bytes"] > record["cache_bytes"] > 0 and record["peak_bytes"] > 0


def test_auto_takes_what_fits_but_no_more_slots_than_shorten_the_workload() -> None:
    bench = Bench(CPU, torch.float32)
    record = bench.measure(make_cell(make_factory(), "auto"))
    assert (record["slots"], record["slots_fit"]) == (3, 5)
    assert record["decode_steps"] < 1.2 * max(MIXED.lengths, key=lambda text: text.new_tokens).new_tokens
    evenly = Workload("even", (Lengths(10, 6),) * 4)
    assert bench.measure(make_cell(make_factory(), "auto", evenly))["slots"] == 4
    of_three = bench.measure(make_cell(make_factory("full"), 3))["planned_bytes"]
    less = Bench(CPU, torch.float32, memory_bytes=round(of_three / 0.9) + 100)
    record = less.measure(make_cell(make_factory("full"), "auto"))
    assert (record["status"], record["slots"], record["slots_fit"]) == ("ok", 3, 3)
    record = less.measure(make_cell(make_factory("full"), 4))
    assert (record["status"], record["slots"], record["wall_s"]) == (OUT_OF_MEMORY, 4, None)


def test_a_ratio_is_a_share_of_the_longest_text_which_the_model_must_know() -> None:
    one = Workload("one", (Lengths(40, 120), Lengths(80, 1)))
    assert make_cell(make_factory(budget="4x"), workload=one).limits.budget_tokens == 40
    with pytest.raises(ConfigError, match="a text of 501 tokens, the longest of workload long: tiny is configured for"):
        make_cell(make_factory(), workload=Workload("long", (Lengths(400, 101),)))


def test_a_text_that_fails_and_an_engine_that_shrinks_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(make_factory())
    with pytest.raises(RunError, match="too long: the prompt has 90 tokens"):
        serve(engine, [make_request("too long", (1,) * 90, 3)])

    step, calls = DecodeLoop.step, []

    def fail_once(self: DecodeLoop, longest: int) -> None:
        calls.append(longest)
        if len(calls) == 20:
            raise torch.OutOfMemoryError("no more")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", fail_once)
    record = Bench(CPU, torch.float32).measure(make_cell(make_factory(), 4))
    assert record["status"] == OUT_OF_MEMORY and "3 slots" in record["error"]


def test_the_shortest_and_the_longest_prompt_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompts = make_engine(make_factory()), []
    prefill = Engine._prefill
    monkeypatch.setattr(
        Engine, "_prefill", lambda self, sequence: prompts.append(sequence.prompt_tokens) or prefill(self, sequence)
    )
    assert warm_up(engine, MIXED.requests(101, seed=0)) > 0
    assert sorted(prompts) == [3, 30] and engine.cache.lengths.sum() == 0


# --- times of steps ---------------------------------------------------------------------------------------


def test_times_are_taken_once_and_the_last_steps_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("vase_cli.engine.timing.mark", lambda device: float(next(clock) ** 2))
    timer = StepTimer(CPU, on=True)

    def step() -> None:
        timer.start_step()
        with timer.cuts():
            pass

    for _ in range(3):  # marks at 0 1 4, 9 16 25, 36 49 64
        step()
    assert timer.take(under_way=2) == (1.0, 3.0)
    assert timer.take(under_way=2) == (0.0, 0.0)
    step()  # 81 100 121
    assert timer.take() == (7.0 + 13 + 19, 9.0 + 15 + 21)
    assert timer.take() == (0.0, 0.0) and timer.step_ms() == []


# --- prefills ---------------------------------------------------------------------------------------------


def test_prompts_differ_in_length_from_each_other_and_from_those_that_warm_up() -> None:
    warm, measured = prefill_lengths(2048, random.Random(0))
    assert len(measured) == 32 and len(warm) == 4
    assert len({*warm, *measured}) == 36 and all(1024 <= tokens <= 2048 for tokens in (*warm, *measured))
    assert (warm, measured) == prefill_lengths(2048, random.Random(0)) != prefill_lengths(2048, random.Random(1))
    assert max(measured) > 1900 and min(measured) < 1150


def test_lengths_that_were_not_seen_come_first() -> None:
    drawn, seen = random.Random(0), set[int]()
    for _ in range(28):  # 36 of 1,025 lengths each time
        warm, measured = prefill_lengths(2048, drawn, seen)
        assert seen.isdisjoint((*warm, *measured)) and len(measured) == 32
        seen.update(warm, measured)
    warm, measured = prefill_lengths(2048, drawn, seen)
    assert len(set(measured) - seen) == 1025 - 28 * 36 and len(set(measured)) == 32


def test_cells_of_one_benchmark_do_not_repeat_each_others_lengths() -> None:
    """Else the first one alone would pay for what a length costs the first time."""
    factory, bench = make_factory(), Bench(CPU, torch.float32)
    cell = make_step_cell(factory, 2, 140, STEPS, prefill=(140,))
    assert [bench.measure(cell)["prefill_new_lengths"] for _ in range(3)] == [[32], [32], [0]]


@pytest.mark.parametrize(("longest", "lengths"), [(1, {1}), (2, {1, 2}), (9, {5, 6, 7, 8, 9})])
def test_few_lengths_are_all_measured(longest: int, lengths: set[int]) -> None:
    warm, measured = prefill_lengths(longest, random.Random(0))
    assert set(measured) == lengths and len(measured) == len(lengths) and warm == measured[:1]


def test_prompts_wait_together_and_are_prefilled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, taken = make_engine(make_factory()), []
    stream = Engine.stream
    monkeypatch.setattr(Engine, "stream", lambda self, requests: taken.append(requests) or stream(self, requests))
    speed = prefill_speed(engine, 40, 101, random.Random(0), seen := {20, 21})
    assert speed.tokens_per_s > 0 and speed.new_lengths == 18 and seen == set(range(20, 41))
    assert [len(requests) for requests in taken] == [1, 21]
    assert {len(request.prompt_token_ids) for request in taken[1]} == set(range(20, 41))
    assert engine.stats.decode_steps == 0
