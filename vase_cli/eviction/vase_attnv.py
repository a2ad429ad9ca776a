"""Value-aware stochastic eviction by attention (VaSE-AttnV, arXiv 2606.03928)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._outliers import ProtectsOutliers
from vase_cli.eviction._scores import protect, sampled, value_range, window_attention
from vase_cli.eviction.base import CacheView


@dataclass(frozen=True, kw_only=True)
class VaseAttnV(ProtectsOutliers):
    """Protects sinks and value states of largest range; samples the rest in proportion to attention.

    Attributes:
        smooth: average the attention over 5 neighboring slots before sampling.
    """

    smooth: bool = False

    def keep_scores(self, view: CacheView) -> Tensor:
        """Log attention plus Gumbel noise; outliers are protected and so leave the draw."""
        ranges = value_range(view)
        scores = sampled(view, window_attention(view, smooth=self.smooth))
        return protect(view, scores, self.protected(view, ranges), ranges)


METHOD = VaseAttnV
