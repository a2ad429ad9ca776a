"""The operations that kernels serve, on a CUDA device or in Triton's interpreter; shapes as in ``ops``.

What no kernel serves goes to plain torch. Importing this module imports Triton.
"""

from typing import ClassVar

import torch
from torch import Tensor

from vase_cli.kernels import sampling, selection, state_scores, token_scores, vocabulary_sampling, window_attention
from vase_cli.kernels.ops import Place, TorchOps

_HEAD_DIMS = (16, 32, 64, 128, 256)
_WIDEST_PROJECTION = 64


class TritonOps(TorchOps):
    """The operations in few launches, which read the cache's own memory."""

    has_kernels: ClassVar[bool] = True
    sequence_uniforms = staticmethod(token_scores.sequence_uniforms)
    token_gumbel = staticmethod(token_scores.token_gumbel)
    protect = staticmethod(token_scores.protect)
    protect_sinks = staticmethod(token_scores.protect_sinks)

    def scores_in_place(self, head_dim: int) -> bool:
        """For the head dims that the kernels serve."""
        return head_dim in _HEAD_DIMS

    def window_attention(self, queries: Tensor, keys: Tensor, place: Place, lse: Tensor | None = None) -> Tensor:
        """Of the head dims that the kernels serve."""
        if not self.scores_in_place(keys.shape[-1]):
            return super().window_attention(queries, keys, place)
        return window_attention.window_attention(queries, keys, *place, lse)

    def value_range(self, values: Tensor, place: Place, known: Tensor | None = None, newest: int = 0) -> Tensor:
        """Of the head dims that the kernels serve."""
        if not self.scores_in_place(values.shape[-1]):
            return super().value_range(values, place)
        return state_scores.value_range(values, *place, known, newest)

    def redundancy(self, keys: Tensor, place: Place) -> Tensor:
        """Of the head dims that the kernels serve."""
        if not self.scores_in_place(keys.shape[-1]):
            return super().redundancy(keys, place)
        return state_scores.redundancy(keys, *place)

    def leverage(self, keys: Tensor, values: Tensor, place: Place, projection: Tensor) -> Tensor:
        """Of the head dims that the kernels serve; under a projection too wide for them one item at a time."""
        if not self.scores_in_place(keys.shape[-1]):
            return super().leverage(keys, values, place, projection)
        if projection.shape[-1] <= _WIDEST_PROJECTION:
            return state_scores.leverage(keys, values, *place, projection)
        of_item, alone = super().leverage, zip(place.rows.split(1), projection.split(1), strict=True)
        return torch.cat([of_item(keys, values, place._replace(rows=row), own) for row, own in alone])

    def largest(self, scores: Tensor, count: int) -> Tensor:
        """Of no more candidates than one program holds."""
        served = scores.shape[-1] <= selection.LONGEST
        return selection.largest(scores, count) if served else super().largest(scores, count)

    def evict(self, scores: Tensor, must_keep: Tensor | None, *rest: Tensor) -> Tensor:
        """Of no more candidates than one program holds."""
        served = scores.shape[-1] <= selection.LONGEST
        return selection.evict(scores, must_keep, *rest) if served else super().evict(scores, must_keep, *rest)

    def draw(
        self, logits: Tensor, candidates: int, temperature: float, top_p: float, min_p: float, keys: Tensor,
        positions: Tensor, seen: Tensor | None = None, penalty: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """From few candidates by their own kernels; the greedy choice is from one, at any temperature."""
        few = candidates <= sampling.MOST_CANDIDATES
        draw_by_kernel = sampling.draw if few else vocabulary_sampling.draw
        return draw_by_kernel(logits, candidates, temperature or 1.0, top_p, min_p, keys, positions, seen, penalty)
