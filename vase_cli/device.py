"""Where a model runs."""

import torch

from vase_cli.errors import ModelError


def resolve_device(device: str) -> torch.device:
    """ "auto" is the first CUDA device, else the CPU.

    Raises:
        ModelError: a CUDA device that is not there.
    """
    if device == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    resolved = torch.device(device)
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = resolved.index or 0
        if index >= count:
            raise ModelError(f"no CUDA device {index}: PyTorch sees {count}; use --device cpu or auto")
        return torch.device("cuda", index)
    return resolved
