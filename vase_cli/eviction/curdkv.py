"""Top-K by approximate CUR leverage (CurDKV, arXiv 2509.15038)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import gaussian_projection, leverage, protect_sinks
from vase_cli.eviction.base import CacheView, EvictionPolicy, check_at_least


@dataclass(frozen=True, kw_only=True)
class CurDKV(EvictionPolicy):
    """Keeps the candidates of largest key and value leverage, under one random projection for each sequence.

    Attributes:
        rank: columns of the projection.
        sinks: first tokens of the text that are protected.
    """

    batches = True

    rank: int = 20
    sinks: int = 4

    def keep_scores(self, view: CacheView) -> Tensor:
        """The leverage; sinks are protected."""
        return protect_sinks(view, leverage(view, self.projection(view)), self.sinks)

    def projection(self, view: CacheView) -> Tensor:
        """P, (N, D, rank) float32: the same at every cut of a sequence's layer, shared by its heads."""
        return gaussian_projection(view, self.rank, None)

    def check(self, budget: int, window: int) -> None:
        """Refuse an empty projection or a negative number of sinks."""
        check_at_least("rank", self.rank, 1)
        check_at_least("sinks", self.sinks, 0)


METHOD = CurDKV
