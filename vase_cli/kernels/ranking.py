"""A total order on scores: equal scores fall to the lower index, on every device."""

import torch
from torch import Tensor

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


def best_mask(scores: Tensor, count: int, *, must_keep: Tensor | None = None) -> Tensor:
    """Which scores are among those of :func:`best`: (..., M) bool."""
    chosen = best(scores, count, must_keep=must_keep)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True)
