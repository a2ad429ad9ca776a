"""What the device can do at best: bytes of its memory and operations of matrix products in a second."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch

from vase_cli.engine.timing import mark, milliseconds
from vase_cli.kernels.ops import select_ops

_REPEATS = 10
BUFFER_BYTES = {"cuda": 2 * 2**30, "cpu": 256 * 2**20, "mps": 256 * 2**20}
PRODUCT_ROWS = {"cuda": 8192, "cpu": 1024, "mps": 2048}


class Rates(NamedTuple):
    """Measured rates of a device."""

    copy_bytes_per_s: float  # read and written
    read_bytes_per_s: float
    flops_per_s: float  # an addition and a multiplication are two

    @property
    def bytes_per_s(self) -> float:
        """The faster of the two: what a floor is worked out by."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Measure a device, its products in ``dtype``; each is the best of several."""
    size = BUFFER_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size // 2**20 * 2**18, dtype=torch.float32, device=device)
    rates = Rates(copy_rate(source), read_rate(source), product_rate(device, dtype))
    del source
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return rates


def copy_rate(source: torch.Tensor) -> float:
    """Measure bytes a second, read and written, of copying a buffer."""
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _seconds(source.device, lambda: target.copy_(source))


def read_rate(source: torch.Tensor) -> float:
    """Measure bytes a second of reading a buffer of float32, whole MiB long, to sum it up."""
    if select_ops(source.device).has_kernels:
        from vase_cli.kernels.reading import sum_of

        return source.nbytes / _seconds(source.device, lambda: sum_of(source))
    return source.nbytes / _seconds(source.device, source.sum)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure operations a second of the product of two large square matrices."""
    rows = PRODUCT_ROWS[device.type]
    left, right = (torch.randn(rows, rows, dtype=dtype, device=device) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * rows**3 / _seconds(device, lambda: torch.mm(left, right, out=product))


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """The least time of some work among several, launched one behind the other so that the device never waits."""
    marks = [mark(device)]
    for _ in range(_REPEATS):
        work()
        marks.append(mark(device))
    return min(milliseconds(start, end) for start, end in itertools.pairwise(marks)) / 1000.0
