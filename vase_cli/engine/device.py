"""The name and the memory of the device that a model runs on."""

import torch

from vase_cli.device import available_ram_bytes, peak_resident_bytes, reset_peak_resident_bytes, resident_bytes


class Device:
    """Figures of one device: PyTorch's memory on a CUDA device, the memory of the process in RAM on any other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"

    @property
    def name(self) -> str:
        """The GPU's name, or the type of another device."""
        return torch.cuda.get_device_name(self._device) if self._cuda else self._device.type

    def memory_bytes(self) -> int:
        """Memory in use now."""
        return torch.cuda.memory_allocated(self._device) if self._cuda else resident_bytes()

    def reset_peak(self) -> None:
        """Count the peak from here on."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            reset_peak_resident_bytes()

    def peak_bytes(self) -> int:
        """Most memory in use since the last reset."""
        return torch.cuda.max_memory_allocated(self._device) if self._cuda else peak_resident_bytes()

    def available_bytes(self) -> int:
        """Memory that is free, or that PyTorch keeps without using it."""
        if not self._cuda:
            return available_ram_bytes()
        kept_by_allocator = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return torch.cuda.mem_get_info(self._device)[0] + kept_by_allocator


def gpu_names() -> list[str]:
    """Names of the GPUs that PyTorch sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]
