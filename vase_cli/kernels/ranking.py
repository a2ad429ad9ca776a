"""A total order on scores: equal scores fall to the lower index, on every device."""

import torch
from torch import Tensor

from vase_cli import kernels

_INDEX_BITS = 24


def best(scores: Tensor, count: int, *, must_keep: Tensor | None = None) -> Tensor:
    """Indices of the ``count`` largest scores along the last dimension, best first.

    ``torch.topk`` leaves the order of equal values open; here score and index go into one integer.

    From (..., M) float32 without NaN, M at most 2**24, to (..., count) int64. Those of ``must_keep``, (..., M) bool,
    come before all the rest whatever their scores.
    """
    bits = (scores + 0.0).contiguous().view(torch.int32).long()  # + 0.0: the two zeros are one score
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # orders like the float
    if must_keep is not None:
        rank = rank + (must_keep.long() << 33)
    indices = torch.arange(scores.shape[-1], device=scores.device)
    return ((rank << _INDEX_BITS) - indices).topk(count, dim=-1).indices


def largest(scores: Tensor, count: int) -> Tensor:
    """Which scores are the ``count`` largest of each head, in the order of :func:`best`: (N, H, C) float32 to bool."""
    if kernels.usable(scores):
        from vase_cli.kernels import selection

        if scores.shape[-1] <= selection.LONGEST:
            return selection.largest(scores, count)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best(scores, count), True)
