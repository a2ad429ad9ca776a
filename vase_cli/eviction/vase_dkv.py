"""VaSE with stochastic leverage (VaSE-DKV, arXiv 2606.03928)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.eviction._outliers import check_n_large, outlier_mask
from vase_cli.eviction._scores import gaussian_projection, protect, value_range
from vase_cli.eviction.base import CacheView
from vase_cli.eviction.curdkv import CurDKV


@dataclass(frozen=True, kw_only=True)
class VaseDKV(CurDKV):
    """Keeps the candidates of largest key and value leverage, under a projection drawn anew at every cut.

    Attributes:
        outliers: none protects the sinks only; count also the tokens of largest value range, n_large in all;
            threshold only those of them above their head's calibrated threshold.
        n_large: how many tokens of each head are protected, the sinks among them; none given is a quarter of the
            budget.
    """

    outliers: Literal["none", "count", "threshold"] = "none"
    n_large: int | None = None

    def keep_scores(self, view: CacheView) -> Tensor:
        """The leverage; sinks are protected, and outliers unless ``outliers`` is none."""
        scores = super().keep_scores(view)
        if self.outliers == "none":
            return scores
        return protect(view, scores, outlier_mask(view, value_range(view), self.n_large, self.sinks, self.outliers))

    def projection(self, view: CacheView) -> Tensor:
        """P, (N, D, rank) float32: another one at each cut."""
        return gaussian_projection(view, self.rank, view.seq_lens)

    def check(self, budget: int, window: int) -> None:
        """Refuse what leverage refuses, and an ``n_large`` that does not fit or that nothing reads."""
        super().check(budget, window)
        if self.outliers != "none":
            check_n_large(self.n_large, self.sinks, budget, window)
        elif self.n_large is not None:
            raise ConfigError("n_large: nothing is counted while outliers is none; add outliers=count or leave it out")


METHOD = VaseDKV
