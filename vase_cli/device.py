"""Where a model runs."""

import torch

from vase_cli.errors import ModelError


def resolve_device(device: str) -> torch.device:
    """ "auto" is the first CUDA device, else the CPU. A CUDA device becomes the process's current one: streams, events
    and kernels that name no device work there.

    Raises:
        ModelError: a CUDA device that is not there.
    """
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = resolved.index or 0
        if index >= count:
            raise ModelError(f"no CUDA device {index}: PyTorch sees {count}; use --device cpu or auto")
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return resolved
