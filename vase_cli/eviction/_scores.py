"""The scores that methods are made of, all in float32 and per KV head (arXiv 2606.03928).

Letters as in ``base``: N work items, C candidates, W window, Hq query heads, H KV heads, G = Hq // H, D head
dim. A score is NaN where the states it reads are not finite, so that no such token is ever kept in silence.
"""

import math

import torch
from torch import Tensor

from vase_cli.eviction.base import CacheView
from vase_cli.ranking import best

_SMALLEST_WEIGHT = 1e-37  # the log of a weight that underflowed to zero stays finite: drawn last, but drawn


def nan_unless_finite(scores: Tensor) -> Tensor:
    """Replace infinities by NaN: an overflow is an error, not a protected token."""
    return torch.where(scores.isfinite(), scores, torch.nan)


def window_attention(view: CacheView, *, smooth: bool) -> Tensor:
    """Attention that the last W queries pay to each candidate (the score of SnapKV, arXiv 2404.14469).

    Softmax over the candidates of q·k / sqrt(D), mean over the queries, with ``smooth`` the mean of 5
    neighbouring slots (zero padded, divided by 5), then the mean over the G query heads of the KV head.

    Returns:
        (N, H, C) float32; sums to 1 over C without smoothing.
    """
    if view.queries is None:
        raise RuntimeError("this method reads queries: its `needs` must name them")
    items, window, query_heads, head_dim = view.queries.shape
    keys = view.candidate_keys
    heads = keys.shape[1]
    queries = view.queries.float().reshape(items, window, heads, query_heads // heads, head_dim)
    queries = queries.permute(0, 2, 3, 1, 4).reshape(items, heads, -1, head_dim) / math.sqrt(head_dim)
    weights = torch.softmax(queries @ keys.transpose(-1, -2), dim=-1)
    attention = weights.reshape(items, heads, -1, window, view.candidates).mean(dim=3)
    if smooth:
        attention = torch.nn.functional.avg_pool1d(attention.flatten(0, 1), 5, stride=1, padding=2).reshape(
            attention.shape
        )
    return attention.mean(dim=2)


def value_range(view: CacheView) -> Tensor:
    """Maximum minus minimum of each candidate's value vector: (N, H, C) float32."""
    values = view.candidate_values
    return nan_unless_finite(values.amax(dim=-1) - values.amin(dim=-1))


def redundancy(view: CacheView) -> Tensor:
    """How alike a key is to the other candidates (the second score of R-KV, arXiv 2505.24133).

    Softmax over the slots of the mean cosine similarity to all candidates, its own counted as 0. The mean
    is taken through the sum of the unit keys, so the C x C matrix is never formed.

    Returns:
        (N, H, C) float32, sums to 1 over C.
    """
    unit = torch.nn.functional.normalize(view.candidate_keys, dim=-1)
    similarity = (unit @ unit.sum(dim=2, keepdim=True).transpose(-1, -2)).squeeze(-1) - unit.square().sum(dim=-1)
    return torch.softmax(similarity / view.candidates, dim=-1)


def leverage(view: CacheView, projection: Tensor) -> Tensor:
    """Approximate leverage of keys and values, ``|k P|² |v P|²`` (the score of CurDKV, arXiv 2509.15038).

    Args:
        projection: P, (N, D, R) float32.

    Returns:
        (N, H, C) float32.
    """
    keys = (view.candidate_keys @ projection[:, None]).square().sum(dim=-1)
    values = (view.candidate_values @ projection[:, None]).square().sum(dim=-1)
    return nan_unless_finite(keys * values)


def gaussian_projection(view: CacheView, rank: int, *counters: Tensor | int) -> Tensor:
    """P, (N, D, rank) float32 with entries N(0, 1) / sqrt(rank), one for each item; equal counters, equal P."""
    head_dim = view.keys.shape[-1]
    entries = torch.arange(head_dim * rank, device=view.keys.device).reshape(1, head_dim, rank)
    return view.noise.normal(*counters, entries) / math.sqrt(rank)


def is_sink(view: CacheView, sinks: int) -> Tensor:
    """(N, H, C) bool: the first ``sinks`` tokens of the text, the attention sinks."""
    return view.candidate_positions < sinks


def sampled(view: CacheView, weights: Tensor) -> Tensor:
    """Scores whose top K is a sample without replacement in proportion to ``weights``.

    ``log w`` plus Gumbel noise (Gumbel-top-k, arXiv 1903.06059), drawn anew at each cut.

    Args:
        weights: (N, H, C) float32, not negative.

    Returns:
        (N, H, C) float32.
    """
    heads = torch.arange(weights.shape[1], device=weights.device)[None, :, None]
    noise = view.noise.gumbel(view.text_tokens[:, None, None], heads, view.candidate_positions)
    return weights.clamp_min(_SMALLEST_WEIGHT).log() + noise


def protect(scores: Tensor, mask: Tensor) -> Tensor:
    """``scores`` with ``inf`` where ``mask`` is set, NaN kept."""
    return torch.where(mask & ~scores.isnan(), torch.inf, scores)


def largest(scores: Tensor, count: int) -> Tensor:
    """(N, H, C) bool: the ``count`` largest scores of each head, equal ones by the earlier slot."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best(scores, count), True)
