"""The scores that methods are made of, all in float32 and per KV head (arXiv 2606.03928).

Shapes as in ``base``: N work items, C candidates, W window, Hq query heads, H KV heads, G = Hq // H, D head dim. A
score is NaN where the states it reads are not finite, so that no such token is ever kept in silence. On a GPU kernels
read the cache's own memory; their reference is the code here that uses ``candidate_keys`` and its like.
"""

import math

import torch
from torch import Tensor

from vase_cli import kernels
from vase_cli.eviction.base import CacheView, served_by_kernels

_WIDEST_KERNEL_PROJECTION = 64


def nan_unless_finite(scores: Tensor) -> Tensor:
    """Replace infinities by NaN: an overflow is an error, not a protected token."""
    return torch.where(scores.isfinite(), scores, torch.nan)


def window_attention(view: CacheView, *, smooth: bool) -> Tensor:
    """Attention of the last W queries to each candidate (the score of SnapKV, arXiv 2404.14469): (N, H, C) float32.

    Softmax over the candidates of q·k / sqrt(D), mean over the queries and the G query heads of the KV head: sums to 1
    over C. With ``smooth`` the mean of 5 neighbors in text order (zero padded, divided by 5).
    """
    attention = _window_attention(view)
    return torch.nn.functional.avg_pool1d(attention, 5, stride=1, padding=2) if smooth else attention


def _window_attention(view: CacheView) -> Tensor:
    if view.queries is not None and served_by_kernels(view.keys):
        from vase_cli.kernels.window_attention import window_attention as kernel

        return kernel(view.queries, view.keys, view.item_rows, view.slot_mapping, view.candidates, view.lse)
    queries, keys = view.item_queries, view.candidate_keys
    items, window, query_heads, head_dim = queries.shape
    heads = keys.shape[1]
    queries = queries.float().reshape(items, window, heads, query_heads // heads, head_dim)
    queries = queries.permute(0, 2, 3, 1, 4).reshape(items, heads, -1, head_dim) / math.sqrt(head_dim)
    weights = torch.softmax(queries @ keys.transpose(-1, -2), dim=-1)
    return weights.reshape(items, heads, -1, window, view.candidates).mean(dim=3).mean(dim=2)


def value_range(view: CacheView) -> Tensor:
    """Maximum minus minimum of each candidate's value vector: (N, H, C) float32."""
    if served_by_kernels(view.values):
        from vase_cli.kernels import state_scores

        return state_scores.value_range(
            view.values, view.item_rows, view.slot_mapping, view.candidates, known=view.ranges, newest=view.window
        )
    values = view.candidate_values
    return nan_unless_finite(values.amax(dim=-1) - values.amin(dim=-1))


def redundancy(view: CacheView) -> Tensor:
    """Likeness of each key to the other candidates (the second score of R-KV, arXiv 2505.24133): (N, H, C) float32.

    Softmax over the candidates of the mean cosine similarity to all candidates, its own counted as 0: sums to 1 over C.
    The mean comes from the sum of the unit keys, so the C x C matrix is never formed.
    """
    if served_by_kernels(view.keys):
        from vase_cli.kernels import state_scores

        return state_scores.redundancy(view.keys, view.item_rows, view.slot_mapping, view.candidates)
    unit = torch.nn.functional.normalize(view.candidate_keys, dim=-1)
    similarity = (unit @ unit.sum(dim=2, keepdim=True).transpose(-1, -2)).squeeze(-1) - unit.square().sum(dim=-1)
    return torch.softmax(similarity / view.candidates, dim=-1)


def leverage(view: CacheView, projection: Tensor) -> Tensor:
    """Approximate leverage of keys and values, ``|k P|² |v P|²`` (the score of CurDKV, arXiv 2509.15038).

    From P, (N, D, r) float32, to (N, H, C) float32.
    """
    if not served_by_kernels(view.keys):
        return _leverage(view, projection)
    if projection.shape[-1] > _WIDEST_KERNEL_PROJECTION:
        alone = (_leverage(view.only(item), projection[item : item + 1]) for item in range(projection.shape[0]))
        return torch.cat(list(alone))
    from vase_cli.kernels import state_scores

    return state_scores.leverage(view.keys, view.values, view.item_rows, view.slot_mapping, view.candidates, projection)


def _leverage(view: CacheView, projection: Tensor) -> Tensor:
    keys = (view.candidate_keys @ projection[:, None]).square().sum(dim=-1)
    values = (view.candidate_values @ projection[:, None]).square().sum(dim=-1)
    return nan_unless_finite(keys * values)


def gaussian_projection(view: CacheView, rank: int, text_tokens: Tensor | None) -> Tensor:
    """P, (N, D, rank) float32 with entries N(0, 1) / sqrt(rank), one for each item.

    ``text_tokens``, (N,) int64, changes it at each cut; with None a sequence keeps its own.
    """
    head_dim = view.keys.shape[-1]
    return view.noise.normal_numbers(head_dim * rank, text_tokens).view(-1, head_dim, rank) / math.sqrt(rank)


def sampled(view: CacheView, weights: Tensor | None) -> Tensor:
    """Scores whose top K is a sample without replacement in proportion to ``weights``.

    ``log w`` plus Gumbel noise (Gumbel-top-k, arXiv 1903.06059), drawn anew at each cut; (N, H, C) float32, no weight
    negative, None for equal weights.
    """
    return view.noise.token_gumbel(view.text_tokens, view.positions, view.item_rows, view.candidates, weights)


def protect(scores: Tensor, mask: Tensor, checked: Tensor | None = None) -> Tensor:
    """``scores`` with ``inf`` where ``mask`` is set; NaN where they, or the other scores ``checked``, are NaN."""
    if kernels.usable(scores):
        from vase_cli.kernels import token_scores

        return token_scores.protect(scores, mask, checked)
    if checked is not None:
        scores = scores + 0.0 * checked
    return torch.where(mask & ~scores.isnan(), torch.inf, scores)


def protect_sinks(view: CacheView, scores: Tensor, sinks: int) -> Tensor:
    """``scores``, (N, H, C), with ``inf`` at the first ``sinks`` tokens of the text, the attention sinks; NaN stays."""
    if kernels.usable(scores):
        from vase_cli.kernels import token_scores

        return token_scores.protect_sinks(scores, view.positions, view.item_rows, sinks)
    return protect(scores, view.positions_below(sinks))
