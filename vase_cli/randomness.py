"""Counter-based uniform numbers: a draw is a function of what it is for, never of when it was made.

``uniform = f(seed, problem id, sample, stream, counters...)``. A sequence's *key* hashes the first four
on the host; the counters (layer, head, position, vocabulary index, ...) are mixed in on the device. There
is no state, so a draw does not depend on batch order, batch size, or a restart, and the CPU and the GPU
give the same bits: all arithmetic is on 64-bit integers that wrap.

The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Stream = Literal["tokens", "eviction", "calibration"]

_INCREMENT = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MULTIPLIER_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def stream_key(seed: int, problem_id: str, sample: int, stream: Stream) -> int:
    """The 64-bit signed key of one sequence's stream; the streams of a sequence are independent."""
    text = "\x1f".join((str(seed), problem_id, str(sample), stream))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Uniform numbers in (0, 1), one for each combination of key and counters: float32 of their broadcast shape.

    Small values keep their full relative precision (32 random bits), and 1.0 never occurs, so both ``log(u)`` and
    ``log1p(-u)`` are finite.

    ``key`` is int64 of any shape, one for each sequence, see :func:`stream_key`; counters broadcast against it.
    """
    bits = (hashed(key, *counters) >> 32) & 0xFFFFFFFF
    return ((bits * 2 + 1).to(torch.float32) * 2.0**-33).clamp_(max=_LARGEST_BELOW_ONE)


def hashed(key: Tensor, *counters: Tensor | int) -> Tensor:
    """All 64 bits of the hash behind :func:`uniform`, int64 of the broadcast shape; its arguments are the same."""
    mixed = _mix(key)
    for counter in counters:
        mixed = _mix(mixed + _INCREMENT + counter)
    return mixed


def gumbel(uniforms: Tensor) -> Tensor:
    """Standard Gumbel noise, ``-log(-log(1 - u))``, precise in the upper tail (small u), which decides a maximum."""
    return -torch.log(-torch.log1p(-uniforms))


def normal(uniforms: Tensor) -> Tensor:
    """Standard normal numbers from uniform ones, through the inverse of the normal distribution function."""
    values: Tensor = torch.special.ndtri(uniforms)
    return values


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift_right(state, 30)) * _MULTIPLIER_1
    state = (state ^ _shift_right(state, 27)) * _MULTIPLIER_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: Tensor, bits: int) -> Tensor:
    """Logical shift: torch shifts signed integers arithmetically."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


class SequenceNoise(NamedTuple):
    """The noise of N work items, each one layer of one sequence, for eviction methods."""

    keys: Tensor  # (N,) int64, the eviction stream key of each item's sequence
    layers: Tensor  # (N,) int64, the layer of each item

    def uniform(self, *counters: Tensor | int) -> Tensor:
        """Uniform numbers in (0, 1), float32, of the counters' broadcast shape with N first."""
        dimensions = max((counter.dim() for counter in counters if isinstance(counter, Tensor)), default=1)
        shape = (-1, *[1] * (dimensions - 1))
        return uniform(self.keys.view(shape), self.layers.view(shape), *counters)

    def gumbel(self, *counters: Tensor | int) -> Tensor:
        """Standard Gumbel noise, as :meth:`uniform`."""
        return gumbel(self.uniform(*counters))
