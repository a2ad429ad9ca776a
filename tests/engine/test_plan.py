"""Where rows are cut, and the figures of a device."""

import pytest
import torch

from vase_cli.config.schema import SamplingParams
from vase_cli.device import Device
from vase_cli.engine.plan import EngineSettings


@pytest.mark.parametrize(
    ("budget", "limit", "expected"), [(None, 100, None), (16, 100, 20), (16, 20, 20), (16, 19, None), (96, 100, 100)]
)
def test_rows_are_cut_at_budget_and_window_if_a_text_may_grow_so_long(
    budget: int | None, limit: int, expected: int | None
):
    settings = EngineSettings(budget, 4, 1, SamplingParams(), 0, None, limit)
    assert settings.cut_at == expected


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_a_device_other_than_cuda_counts_the_memory_of_the_process(kind: str):
    device = Device(torch.device(kind))
    device.reset_peak()
    assert device.name == kind
    assert 0 < device.memory_bytes() <= 1.1 * device.peak_bytes()
    assert device.available_bytes() > 0
