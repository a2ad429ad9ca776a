"""Top-K by window attention (SnapKV, arXiv 2404.14469), applied while decoding."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import window_attention
from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class SnapKV(EvictionPolicy):
    """Keeps the candidates that the last queries attend to most.

    Attributes:
        smooth: average the attention over 5 neighboring slots.
    """

    needs = frozenset({"queries"})
    batches = True

    smooth: bool = True

    def keep_scores(self, view: CacheView) -> Tensor:
        """The window attention."""
        return window_attention(view, smooth=self.smooth)


METHOD = SnapKV
