"""How far ahead a program reads: as many stages as the shared memory of the device holds, which changes no bit."""

import functools

import torch
import triton

_OFF_GPU_BYTES = 2**18


def stages_that_fit(stages: int, stage_bytes: int, device: torch.device, held_bytes: int = 0) -> int:
    """So many stages, or fewer, at least 1, where ``stage_bytes`` for each beside ``held_bytes`` are too much."""
    return max(1, min(stages, (_shared_bytes(device) - held_bytes) // stage_bytes))


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may hold, less a little for what is beside the stages."""
    if device.type != "cuda":
        return _OFF_GPU_BYTES
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]) - 1024
