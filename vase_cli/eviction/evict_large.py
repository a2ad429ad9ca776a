"""The ablation that shows why value states matter (arXiv 2606.03928)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import value_range
from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class EvictLarge(EvictionPolicy):
    """Evicts the value states of largest range: an ablation that is meant to fail."""

    batches = True

    def keep_scores(self, view: CacheView) -> Tensor:
        """The smaller the range, the better."""
        return -value_range(view)


METHOD = EvictLarge
