"""Reading memory as fast as it goes: the sum of a large buffer, of which next to nothing is written."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 8192  # elements of a load
_LOADS = 4  # of a program, all under way at a time
_WARPS = 8

SPAN_BYTES = 4 * _BLOCK * _LOADS
"""What a program reads: the size of a buffer must be a multiple of it."""


def sum_of(buffer: Tensor) -> Tensor:
    """Sum up (N,) float32 in parts of ``SPAN_BYTES``: one float32 for each."""
    sums = torch.empty(buffer.nbytes // SPAN_BYTES, dtype=torch.float32, device=buffer.device)
    _sum_of[(sums.numel(),)](buffer, sums, block=_BLOCK, loads=_LOADS, num_warps=_WARPS)
    return sums


@triton.jit
def _sum_of(buffer, sums, block: tl.constexpr, loads: tl.constexpr):
    program = tl.program_id(0)
    place = buffer + program.to(tl.int64) * (block * loads) + tl.arange(0, block)
    total = tl.zeros((block,), tl.float32)
    for load in tl.static_range(loads):
        total += tl.load(place + load * block)
    tl.store(sums + program, tl.sum(total, axis=0))
