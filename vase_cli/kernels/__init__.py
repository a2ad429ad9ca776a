"""Triton kernels, each with a plain torch twin in the module that uses it; the CPU runs the twin."""

import functools
import importlib.util
import os

from torch import Tensor


def usable(tensor: Tensor) -> bool:
    """Whether kernels can work on a tensor: on a CUDA device with Triton, or anywhere in Triton's interpreter."""
    return (tensor.is_cuda or _interpreting()) and _installed()


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
