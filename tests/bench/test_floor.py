"""What a step must read and do, the rates of a device, and the figures of a loop, by hand."""

from dataclasses import replace

import pytest
import torch
from helpers.benchmarks import ATTENTION, CPU, DENSE, FLOAT32, HEAD, MIXTURE, RATES, make_factory

from vase_cli.bench import rates
from vase_cli.bench.floor import step_floor, weights_read
from vase_cli.bench.loop import LoopTimes, percentile, step_figures
from vase_cli.bench.rates import Rates, copy_rate, measure_rates, product_rate, read_rate

DENSE_ELEMENTS = 2 * (ATTENTION + 3 * 32 * 48) + 32 + HEAD


def test_step_figures() -> None:
    times = LoopTimes([*[2.0] * 18, 4.0, 9.0], [*[0.0] * 18, 1.0, 4.0], 50.0, [])
    assert step_figures(times, slots=8) == {
        "step_ms_median": 2.0,
        "step_ms_p95": 4.0,
        "step_ms_mean": 2.5,
        "tokens_per_s": 3200.0,
        "cut_share": 0.1,
    }


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.95, 4.0), (1.0, 4.0), (0.25, 1.0)])
def test_percentiles_are_values_that_there_are(share: float, value: float) -> None:
    assert percentile([4.0, 2.0, 3.0, 1.0], share) == value


# --- weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_without_the_embeddings_rows(tied: bool) -> None:
    factory = make_factory(architecture=replace(DENSE, tied=tied))
    assert weights_read(factory.plan, 1) == weights_read(factory.plan, 64) == DENSE_ELEMENTS * FLOAT32
    half = make_factory(architecture=replace(DENSE, tied=tied), dtype="bfloat16")
    assert weights_read(half.plan, 1) == DENSE_ELEMENTS * 2


@pytest.mark.parametrize(("rows", "experts"), [(1, 2.0), (2, 6 - 6 * 4 / 9), (3, 6 - 6 * 8 / 27), (100, 6.0)])
def test_of_a_mixture_the_experts_count_that_rows_are_expected_to_choose(rows: int, experts: float) -> None:
    """Each of 6 is left out by a row that chooses 2 with a probability of 2/3."""
    elements = 2 * (ATTENTION + 6 * 32 + experts * 3 * 32 * 24) + 32 + HEAD
    assert weights_read(make_factory(architecture=MIXTURE).plan, rows) == pytest.approx(elements * FLOAT32, abs=1)


# --- floors -----------------------------------------------------------------------------------------------


def test_a_floor_by_hand() -> None:
    floor = step_floor(make_factory().plan, RATES, rows=3, attended=70)
    kv_bytes = 70 * (2 * 2 * 2 * 16) * FLOAT32  # keys and values, 2 layers, 2 KV heads of 16
    flops = 2 * 3 * DENSE_ELEMENTS + 4 * (2 * 4 * 16) * 70  # 2 layers, 4 query heads of 16
    assert (floor.weights_bytes, floor.kv_bytes) == (DENSE_ELEMENTS * FLOAT32, kv_bytes)
    assert floor.bytes_ms == pytest.approx(1000 * (floor.weights_bytes + kv_bytes) / 2e9)
    assert floor.ops_ms == pytest.approx(1000 * flops / 1e12)
    assert floor.ms == floor.bytes_ms > floor.ops_ms
    figures = floor.figures(2 * floor.ms)
    assert (figures["bound"], figures["ratio"], figures["floor_ms"]) == ("bytes", 2.0, floor.ms)
    assert figures["ratio_sum"] == pytest.approx(2 * floor.ms / (floor.bytes_ms + floor.ops_ms))


def test_where_products_are_slow_operations_are_the_floor() -> None:
    plan = make_factory().plan
    slow = RATES._replace(flops_per_s=1e6)
    floor = step_floor(plan, slow, rows=3, attended=70)
    assert (floor.ms, floor.figures(1.0)["bound"]) == (floor.ops_ms, "operations")
    assert step_floor(plan, slow, rows=6, attended=140).ops_ms == pytest.approx(2 * floor.ops_ms)


def test_a_row_of_a_mixture_computes_with_its_own_experts_alone() -> None:
    plan = make_factory(architecture=MIXTURE).plan
    flops = 2 * 5 * (2 * (ATTENTION + 6 * 32 + 2 * 3 * 32 * 24) + 32 + HEAD)
    assert step_floor(plan, RATES, rows=5, attended=0).ops_ms == pytest.approx(1000 * flops / 1e12)


# --- rates ------------------------------------------------------------------------------------------------


@pytest.fixture
def third_time(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that shows half a second for the third of several measurements, and more for the others."""
    marks: list[int] = []

    def mark(device: torch.device) -> int:
        marks.append(len(marks))
        return marks[-1]

    monkeypatch.setattr(rates, "mark", mark)
    monkeypatch.setattr(rates, "milliseconds", lambda start, end: 500.0 if (start, end) == (2, 3) else 750.0)
    return marks


def test_a_copy_counts_what_it_reads_and_what_it_writes(third_time: list[int]) -> None:
    assert copy_rate(torch.ones(1000)) == 2 * 4000 / 0.5
    assert len(third_time) > 4


def test_a_read_counts_what_it_reads(third_time: list[int]) -> None:
    assert read_rate(torch.ones(1000)) == 4000 / 0.5


def test_a_product_counts_additions_and_multiplications(third_time: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.PRODUCT_ROWS, "cpu", 10)
    assert product_rate(CPU, torch.float32) == 2 * 10**3 / 0.5


def test_the_faster_of_copies_and_reads_is_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rates.BUFFER_BYTES, "cpu", 2**20)
    monkeypatch.setitem(rates.PRODUCT_ROWS, "cpu", 64)
    measured = measure_rates(CPU, torch.float32)
    assert min(measured) > 0 and measured.bytes_per_s == max(measured[:2])
    assert Rates(1.0, 2.0, 9.0).bytes_per_s == Rates(2.0, 1.0, 9.0).bytes_per_s == 2.0
