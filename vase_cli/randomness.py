"""Counter-based uniform numbers: a draw is a function of what it is for, never of when it was made.

``uniform = f(seed, problem id, sample, stream, counters...)``. A sequence's *key* hashes the first four
on the host; the counters (layer, head, position, vocabulary index, ...) are mixed in on the device. There
is no state, so a draw does not depend on batch order, batch size, or a restart, and the CPU and the GPU
give the same bits: all arithmetic is on 64-bit integers that wrap.

The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import hashlib
from typing import Literal

import torch
from torch import Tensor

from vase_cli import kernels

Stream = Literal["tokens", "eviction", "calibration"]

_INCREMENT = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MULTIPLIER_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24
_SMALLEST_WEIGHT = 1e-37  # the log of a weight that underflowed to zero stays finite: drawn last, but drawn


def stream_key(seed: int, problem_id: str, sample: int, stream: Stream) -> int:
    """The 64-bit signed key of one sequence's stream; the streams of a sequence are independent."""
    text = "\x1f".join((str(seed), problem_id, str(sample), stream))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def uniform(key: Tensor, *counters: Tensor | int) -> Tensor:
    """Uniform numbers in (0, 1), one for each combination of key and counters: float32 of their broadcast shape.

    Small values keep their full relative precision (32 random bits), and 1.0 never occurs, so both ``log(u)`` and
    ``log1p(-u)`` are finite.

    Args:
        key: int64, any shape: one key for each sequence, see :func:`stream_key`.
        counters: int64 tensors (or ints) that broadcast against ``key``; their order matters.
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


class SequenceNoise:
    """The noise of N work items, each one layer of one sequence, for eviction methods.

    Args:
        keys: (N,) int64, the eviction stream key of each item's sequence.
        layers: (N,) int64, the layer of each item.
    """

    def __init__(self, keys: Tensor, layers: Tensor) -> None:
        self._keys, self._layers = keys, layers

    def gumbel(self, *counters: Tensor | int) -> Tensor:
        """Standard Gumbel noise, float32, of the counters' broadcast shape with N first."""
        return gumbel(self._uniform(counters))

    def normal_numbers(self, count: int, text_tokens: Tensor | None) -> Tensor:
        """The first ``count`` standard normal numbers of each item, (N, count) float32.

        ``text_tokens``, (N,) int64, gives each cut numbers of its own; with None a sequence keeps its numbers.
        """
        if kernels.usable(self._keys):
            from vase_cli.kernels.token_scores import sequence_uniforms

            return normal(sequence_uniforms(self._keys, self._layers, text_tokens, count))
        numbers = torch.arange(count, device=self._keys.device)[None]
        return normal(self._uniform((numbers,) if text_tokens is None else (text_tokens[:, None], numbers)))

    def token_gumbel(
        self, text_tokens: Tensor, positions: Tensor, rows: Tensor, candidates: int, weights: Tensor | None = None
    ) -> Tensor:
        """``gumbel(text_tokens, head, position)`` of each head's first C = ``candidates`` tokens, (N, H, C) float32.

        Args:
            text_tokens, rows: (N,) int64; the items' rows of R.
            positions: (R, H, S) int32, in text order.
            weights: (N, H, C) float32, not negative: adds their logarithms; None for none.
        """
        if kernels.usable(positions):
            from vase_cli.kernels.token_scores import token_gumbel

            return token_gumbel(self._keys, self._layers, text_tokens, positions, rows, candidates, weights)
        heads = torch.arange(positions.shape[1], device=positions.device)
        noise = self.gumbel(text_tokens[:, None, None], heads[:, None], positions[..., :candidates][rows].long())
        return noise if weights is None else weights.clamp_min(_SMALLEST_WEIGHT).log() + noise

    def _uniform(self, counters: tuple[Tensor | int, ...]) -> Tensor:
        dimensions = max((counter.dim() for counter in counters if isinstance(counter, Tensor)), default=1)
        shape = (-1, *[1] * (dimensions - 1))
        return uniform(self._keys.view(shape), self._layers.view(shape), *counters)
