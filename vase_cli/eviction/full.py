"""The dense baseline."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class Full(EvictionPolicy):
    """Keeps every token: the dense baseline, whose cache is as long as the text may become."""

    evicts = False

    def keep_scores(self, view: CacheView) -> Tensor:
        """Never called: nothing is evicted."""
        raise RuntimeError("the full cache is never cut")


METHOD = Full
