"""Devices, and the memory that is free and taken."""

from pathlib import Path

import pytest
import torch

from vase_cli import device
from vase_cli.device import available_ram_bytes, peak_resident_bytes, reset_peak_resident_bytes, resident_bytes


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = [(tmp_path / folder.relative_to("/sys/fs/cgroup"), *rest) for folder, *rest in device._CONTROL_GROUPS]
    monkeypatch.setattr(device, "_CONTROL_GROUPS", tuple(names))
    return tmp_path


def test_free_memory_is_the_systems_where_nothing_limits_it(groups: Path):
    free = available_ram_bytes()
    assert 2**26 < free < 2**45
    write_group(groups, memory__max="max\n", memory__current="123456\n")
    assert available_ram_bytes() == pytest.approx(free, rel=0.3)
    write_group(groups, memory__max=f"{2**60}\n")
    assert available_ram_bytes() == pytest.approx(free, rel=0.3)


def test_a_containers_limit_counts_less_what_is_used_but_not_files_pages(groups: Path):
    write_group(groups, memory__max="60000000\n", memory__current="50000000\n")
    assert available_ram_bytes() == 10_000_000
    write_group(groups, memory__stat="anon 20000000\nfile 30000000\ninactive_file 25000000\n")
    assert available_ram_bytes() == 35_000_000
    write_group(groups, memory__current="99000000\n", memory__stat="inactive_file 0\n")
    assert available_ram_bytes() == 0


def test_the_limit_of_a_version_1_group_counts_too(groups: Path):
    write_group(
        groups / "memory",
        memory__limit_in_bytes="60000000\n",
        memory__usage_in_bytes="50000000\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 5000000\n",
    )
    assert available_ram_bytes() == 15_000_000
    write_group(groups / "memory", memory__limit_in_bytes="9223372036854771712\n")
    assert available_ram_bytes() > 2**26


def test_resident_memory_grows_with_what_is_held():
    before = resident_bytes()
    held = torch.zeros(2, 2**24).add_(1)  # 128 MiB, every page touched
    assert resident_bytes() - before > 0.8 * held.nbytes


def test_the_peak_counts_from_its_reset():
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    high = peak_resident_bytes()
    del block
    reset_peak_resident_bytes()
    assert peak_resident_bytes() <= high - 32 * 2**20
    assert peak_resident_bytes() >= resident_bytes() - 2**20
