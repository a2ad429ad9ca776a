"""The device that a model runs on, and the memory of the system and of this process.

Torch and psutil wait until a function needs them.
"""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vase_cli.errors import ModelError

if TYPE_CHECKING:
    import torch

_CONTROL_GROUPS = (
    (".", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""A container's limit (versions 2 and 1), what is used of it, and what of that are files' pages it can drop."""


def resolve_device(name: str) -> "torch.device":
    """The device of a name, such as "cpu", "cuda", "cuda:1" or "mps"; "auto" is the first CUDA device, else the CPU.

    A CUDA device becomes the process's current one: streams, events and kernels that name no device work there.
    ModelError for a CUDA device or Apple's GPU that is not there.
    """
    import torch

    cuda_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(name if name != "auto" else "cuda" if cuda_devices else "cpu")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if device.index >= cuda_devices:
            raise ModelError(f"no CUDA device {device.index}: PyTorch sees {cuda_devices}; use --device cpu or auto")
        torch.cuda.set_device(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("no MPS device: PyTorch sees no Apple GPU; use --device cpu or auto")
    return device


def available_ram_bytes(control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process could still take: the system's, or less where a control group limits it."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for version, limit_name, used_name, reclaimable_name in _CONTROL_GROUPS:
        folder = control_groups / version
        limit, used = _lines(folder / limit_name), _lines(folder / used_name)
        if limit and used and limit[0].isdigit():
            fields = dict(line.split() for line in _lines(folder / "memory.stat"))
            available = min(available, int(limit[0]) - int(used[0]) + int(fields.get(reclaimable_name, 0)))
    return max(available, 0)


def peak_resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Most memory of this process that was in RAM: since the last reset on Linux, else since its start."""
    for line in _lines(status):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    import psutil

    memory = psutil.Process().memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def readable_bytes(size_bytes: int) -> str:
    """A number of bytes for people: "1.5 GiB"."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def gpu_names() -> list[str]:
    """Names of the GPUs that PyTorch sees."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


class Device:
    """Figures of one device: PyTorch's memory on a CUDA device, the memory of the process in RAM on any other.

    ``torch`` is PyTorch's device, for tensors; ``type`` is "cuda", "cpu" or "mps".
    """

    def __init__(self, device: "torch.device") -> None:
        import torch

        self.torch, self.type = device, device.type
        self._cuda = torch.cuda if device.type == "cuda" else None

    @property
    def name(self) -> str:
        """The GPU's name, or the type of another device."""
        return self._cuda.get_device_name(self.torch) if self._cuda else self.type

    @property
    def description(self) -> str:
        """The device and its free memory for people: "no GPU, 6.0 GiB of memory free"."""
        free = readable_bytes(self.available_bytes())
        if self._cuda:
            return f"{self.name}, {free} free"
        return f"{'Apple GPU' if self.type == 'mps' else 'no GPU'}, {free} of memory free"

    def memory_bytes(self) -> int:
        """Memory in use now."""
        import psutil

        return self._cuda.memory_allocated(self.torch) if self._cuda else int(psutil.Process().memory_info().rss)

    def reset_peak(self) -> None:
        """Count the peak from here on, where the system can: in RAM on Linux only."""
        if self._cuda:
            self._cuda.reset_peak_memory_stats(self.torch)
            return
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Most memory in use since the last reset."""
        return self._cuda.max_memory_allocated(self.torch) if self._cuda else peak_resident_bytes()

    def available_bytes(self) -> int:
        """Memory that is free, or that PyTorch keeps without using it."""
        if not self._cuda:
            return available_ram_bytes()
        free: int = self._cuda.mem_get_info(self.torch)[0]
        kept_by_allocator: int = self._cuda.memory_reserved(self.torch) - self._cuda.memory_allocated(self.torch)
        return free + kept_by_allocator
