"""The stochastic variant of SnapKV (an ablation of arXiv 2606.03928)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vase_cli.eviction._scores import sampled, window_attention
from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class SnapKVSample(EvictionPolicy):
    """Samples candidates without replacement, in proportion to the attention of the last queries.

    Attributes:
        smooth: average the attention over 5 neighbouring slots before sampling.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"queries"})
    batches: ClassVar[bool] = True

    smooth: bool = False

    def keep_scores(self, view: CacheView) -> Tensor:
        """Log attention plus Gumbel noise."""
        return sampled(view, window_attention(view, smooth=self.smooth))


METHOD = SnapKVSample
