"""The scores that methods are made of, all in float32 and per KV head (arXiv 2606.03928).

Shapes as in ``base``: N work items, C candidates, W window, Hq query heads, H KV heads, G = Hq // H, D head dim. A
score is NaN where the states it reads are not finite, so that no such token is ever kept in silence. What is computed
is in :mod:`vase_cli.kernels.ops`.
"""

import math

import torch
from torch import Tensor

from vase_cli.eviction.base import CacheView
from vase_cli.kernels.ops import nan_unless_finite as nan_unless_finite  # for methods that read states themselves
from vase_cli.randomness import normal


def window_attention(view: CacheView, *, smooth: bool) -> Tensor:
    """Attention of the last W queries to each candidate (the score of SnapKV, arXiv 2404.14469): (N, H, C) float32.

    Softmax over the candidates of q·k / sqrt(D), mean over the queries and the G query heads of the KV head: sums to 1
    over C. With ``smooth`` the mean of 5 neighbors in text order (zero padded, divided by 5).
    """
    attention = view.ops.window_attention(view.kept_queries, view.keys, view.place, view.lse)
    return torch.nn.functional.avg_pool1d(attention, 5, stride=1, padding=2) if smooth else attention


def value_range(view: CacheView) -> Tensor:
    """Maximum minus minimum of each candidate's value vector: (N, H, C) float32."""
    return view.ops.value_range(view.values, view.place, known=view.ranges, newest=view.window)


def redundancy(view: CacheView) -> Tensor:
    """Likeness of each key to the other candidates (the second score of R-KV, arXiv 2505.24133): (N, H, C) float32.

    Softmax over the candidates of the mean cosine similarity to all candidates, its own counted as 0: sums to 1 over C.
    """
    return view.ops.redundancy(view.keys, view.place)


def leverage(view: CacheView, projection: Tensor) -> Tensor:
    """Approximate leverage of keys and values, ``|k P|² |v P|²`` (the score of CurDKV, arXiv 2509.15038).

    From P, (N, D, r) float32, to (N, H, C) float32.
    """
    return view.ops.leverage(view.keys, view.values, view.place, projection)


def gaussian_projection(view: CacheView, rank: int, seq_lens: Tensor | None) -> Tensor:
    """P, (N, D, rank) float32 with entries N(0, 1) / sqrt(rank), one for each item.

    ``seq_lens``, (N,) int64, changes it at each cut; with None a sequence keeps its own.
    """
    head_dim = view.keys.shape[-1]
    numbers = view.ops.sequence_uniforms(view.noise, seq_lens, head_dim * rank)
    return normal(numbers).view(-1, head_dim, rank) / math.sqrt(rank)


def sampled(view: CacheView, weights: Tensor | None) -> Tensor:
    """Scores whose top K is a sample without replacement in proportion to ``weights``.

    ``log w`` plus Gumbel noise (Gumbel-top-k, arXiv 1903.06059), drawn anew at each cut; (N, H, C) float32, no weight
    negative, None for equal weights.
    """
    return view.ops.token_gumbel(view.noise, view.seq_lens, view.positions, view.item_rows, view.candidates, weights)


def protect(view: CacheView, scores: Tensor, mask: Tensor, checked: Tensor | None = None) -> Tensor:
    """``scores`` with ``inf`` where ``mask`` is set; NaN where they, or the other scores ``checked``, are NaN."""
    return view.ops.protect(scores, mask, checked)


def protect_sinks(view: CacheView, scores: Tensor, sinks: int) -> Tensor:
    """``scores``, (N, H, C), with ``inf`` at the first ``sinks`` tokens of the text, the attention sinks; NaN stays."""
    return view.ops.protect_sinks(scores, view.positions, view.item_rows, sinks)
