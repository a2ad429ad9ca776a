"""The stochastic variant of SnapKV (an ablation of arXiv 2606.03928)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import sampled
from vase_cli.eviction.base import CacheView
from vase_cli.eviction.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class SnapKVSample(SnapKV):
    """Samples candidates without replacement, in proportion to the attention of the last queries.

    Attributes:
        smooth: average the attention over 5 neighboring slots before sampling.
    """

    smooth: bool = False

    def keep_scores(self, view: CacheView) -> Tensor:
        """Log attention plus Gumbel noise."""
        return sampled(view, super().keep_scores(view))


METHOD = SnapKVSample
