"""Devices, and the memory that is free and taken."""

import mmap
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from vase_cli.device import Device, available_ram_bytes, peak_resident_bytes, resolve_device
from vase_cli.errors import ModelError

DEVICE = Device(torch.device("cpu"))


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_free_memory_is_the_systems_where_nothing_limits_it(tmp_path: Path):
    free = available_ram_bytes(tmp_path)
    assert 2**26 < free < 2**45
    write_group(tmp_path, memory__max="max\n", memory__current="123456\n")
    assert available_ram_bytes(tmp_path) == pytest.approx(free, rel=0.3)
    write_group(tmp_path, memory__max=f"{2**60}\n")
    assert available_ram_bytes(tmp_path) == pytest.approx(free, rel=0.3)


def test_a_containers_limit_counts_less_what_is_used_but_not_files_pages(tmp_path: Path):
    write_group(tmp_path, memory__max="60000000\n", memory__current="50000000\n")
    assert available_ram_bytes(tmp_path) == 10_000_000
    write_group(tmp_path, memory__stat="anon 20000000\nfile 30000000\ninactive_file 25000000\n")
    assert available_ram_bytes(tmp_path) == 35_000_000
    write_group(tmp_path, memory__current="99000000\n", memory__stat="inactive_file 0\n")
    assert available_ram_bytes(tmp_path) == 0


def test_the_limit_of_a_version_1_group_counts_too(tmp_path: Path):
    write_group(
        tmp_path / "memory",
        memory__limit_in_bytes="60000000\n",
        memory__usage_in_bytes="50000000\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 5000000\n",
    )
    assert available_ram_bytes(tmp_path) == 15_000_000
    write_group(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n")
    assert available_ram_bytes(tmp_path) > 2**26


def test_resident_memory_grows_with_what_is_held():
    size = 2**27
    before = DEVICE.memory_bytes()
    with mmap.mmap(-1, size) as held:
        held[::4096] = b"x" * (size // 4096)
        assert DEVICE.memory_bytes() - before > 0.8 * size


def test_the_peak_counts_from_its_reset():
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    high = peak_resident_bytes()
    del block
    DEVICE.reset_peak()
    assert peak_resident_bytes() <= high - 32 * 2**20
    assert peak_resident_bytes() >= DEVICE.memory_bytes() - 2**20


def test_the_peak_of_a_system_without_proc_is_what_the_system_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    status = tmp_path / "not there"
    assert peak_resident_bytes(status) >= DEVICE.memory_bytes() - 2**20
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert peak_resident_bytes(status) == pytest.approx(DEVICE.memory_bytes(), rel=0.1)
    memory = SimpleNamespace(rss=1, peak_wset=2)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: memory))
    assert peak_resident_bytes(status) == 2


@pytest.mark.parametrize("mps", [False, True])
def test_auto_is_cuda_where_there_is_one_and_never_apples_gpu(monkeypatch: pytest.MonkeyPatch, mps: bool):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(ModelError, match=r"^no CUDA device 2: PyTorch sees 2; use --device cpu or auto$"):
        resolve_device("cuda:2")


def test_apples_gpu_is_taken_where_pytorch_sees_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"^no MPS device: PyTorch sees no Apple GPU; use --device cpu or auto$"):
        resolve_device("mps")
