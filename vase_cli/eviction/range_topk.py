"""Value-aware eviction without the sampling (an ablation of arXiv 2606.03928)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._outliers import ProtectsOutliers
from vase_cli.eviction._scores import protect, value_range, window_attention
from vase_cli.eviction.base import CacheView


@dataclass(frozen=True, kw_only=True)
class RangeTopK(ProtectsOutliers):
    """Protects sinks and value states of largest range; keeps the rest by largest attention.

    Attributes:
        smooth: average the attention over 5 neighboring slots.
    """

    smooth: bool = True

    def keep_scores(self, view: CacheView) -> Tensor:
        """The window attention; outliers are protected."""
        ranges = value_range(view)
        scores = window_attention(view, smooth=self.smooth)
        return protect(view, scores, self.protected(view, ranges), ranges)


METHOD = RangeTopK
