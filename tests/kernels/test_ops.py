"""Which form of the operations a device gets, and what kernels leave to plain torch."""

import importlib.machinery
import math
import sys
import types

import pytest
import torch
from helpers.kernels import DEVICE, MARKS, draw, triton_ops

from vase_cli.kernels.ops import Place, TorchOps, select_ops

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_only_a_cuda_device_gets_kernels(device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vase_cli.kernels.triton_ops", None)  # an import would fail
    assert type(select_ops(torch.device(device))) is TorchOps


def test_a_cuda_device_without_triton_gets_plain_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert type(select_ops(CUDA)) is TorchOps


def test_a_cuda_device_with_triton_gets_kernels(monkeypatch: pytest.MonkeyPatch):
    class Kernels(TorchOps):
        pass

    triton, module = types.ModuleType("triton"), types.ModuleType("vase_cli.kernels.triton_ops")
    triton.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    module.TritonOps = Kernels
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "vase_cli.kernels.triton_ops", module)
    assert type(select_ops(CUDA)) is Kernels


def test_plain_torch_scores_no_item_by_itself():
    assert not TorchOps().has_kernels and not TorchOps().scores_in_place(64)


def in_order(rows: list[int], candidates: int) -> Place:
    return Place(torch.tensor(rows, device=DEVICE), None, candidates)


class TestKernels:
    pytestmark = MARKS

    def test_they_serve_these_head_dims(self):
        assert triton_ops().has_kernels
        served = [head_dim for head_dim in range(1, 600) if triton_ops().scores_in_place(head_dim)]
        assert served == [16, 32, 64, 128, 256]

    def test_other_head_dims_are_scored_by_torch(self):
        keys, values, queries = draw(2, 30, 2, 24), draw(2, 30, 2, 24, seed=1), draw(2, 6, 4, 24, seed=2)
        projection, place = draw(2, 24, 5, seed=3), in_order([1, 0], 24)
        kernels, torch_ops = triton_ops(), TorchOps()
        for name, states in (
            ("window_attention", (queries, keys)), ("value_range", (values,)), ("redundancy", (keys,)),
        ):  # fmt: skip
            assert torch.equal(getattr(kernels, name)(*states, place), getattr(torch_ops, name)(*states, place)), name
        got, expected = (ops.leverage(keys, values, place, projection) for ops in (kernels, torch_ops))
        assert torch.equal(got, expected)

    @pytest.mark.parametrize("rank", [64, 65, 80])
    def test_a_projection_of_any_width_gives_the_leverage(self, rank: int):
        keys, values = draw(3, 30, 2, 16), draw(3, 30, 2, 16, seed=1)
        projection, place = draw(2, 16, rank, seed=2) / math.sqrt(rank), in_order([2, 0], 24)
        got = triton_ops().leverage(keys, values, place, projection)
        expected = TorchOps().leverage(keys.double(), values.double(), place, projection)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=0.0)
