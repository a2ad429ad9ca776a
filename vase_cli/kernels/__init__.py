"""Triton kernels, each with a plain torch reference in the module that uses it; the CPU runs the reference."""

import functools
import importlib.util
import os

import torch
from torch import Tensor


def usable(tensor: Tensor) -> bool:
    """Whether kernels can work on a tensor, see :func:`usable_on`."""
    return usable_on(tensor.device)


def usable_on(device: torch.device) -> bool:
    """Whether kernels can work on a device: a CUDA device with Triton, or a CPU in Triton's interpreter."""
    return (device.type == "cuda" or (device.type == "cpu" and _interpreting())) and _installed()


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
