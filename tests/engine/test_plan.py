"""Where rows are cut, the figures of a device, and what a plan notes."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vase_cli.config.schema import ModelEntry, Recipe, SamplingParams
from vase_cli.device import Device
from vase_cli.engine.plan import EngineSettings, plan_run


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


def test_a_run_that_compiles_says_if_its_kernels_cannot_be_kept(
    model_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "inductor"))
    entry = ModelEntry("tiny", path=model_folder("qwen3"))
    recipe = Recipe("tiny", "tiny", method="full", device="cpu")
    assert plan_run(recipe, entry).notes == (), "nothing is compiled on a CPU"
    (note,) = plan_run(replace(recipe, compile="on"), entry).notes
    assert note.startswith(f"warning: {tmp_path / 'file' / 'inductor'} cannot be written (Not a directory)")
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
