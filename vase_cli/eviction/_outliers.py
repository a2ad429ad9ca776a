"""The protected value states of large range, which the value-aware methods share (arXiv 2606.03928)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.eviction._scores import protect_sinks
from vase_cli.eviction.base import CacheView, EvictionPolicy, check_at_least


@dataclass(frozen=True, kw_only=True)
class ProtectsOutliers(EvictionPolicy):
    """A method by attention that protects the sinks and the value states of largest range, ``n_large`` in all.

    Attributes:
        n_large: how many tokens of each head are protected; none given is a quarter of the budget.
        sinks: first tokens of the text among them; their value range is small, so they are named.
        outliers: count protects n_large tokens whatever their range; threshold only those of them above their head's
            calibrated threshold, and leaves the other places to the rest.
    """

    needs = frozenset({"queries", "ranges"})
    batches = True

    n_large: int | None = None
    sinks: int = 4
    outliers: Literal["count", "threshold"] = "count"

    def protected(self, view: CacheView, ranges: Tensor) -> Tensor:
        """(N, H, C) bool: the sinks and the outliers among ``ranges``, (N, H, C) float32."""
        return outlier_mask(view, ranges, self.n_large, self.sinks, self.outliers)

    def check(self, budget: int, window: int) -> None:
        """Refuse an ``n_large`` that does not fit beside the window, or does not hold the sinks."""
        check_at_least("sinks", self.sinks, 0)
        check_n_large(self.n_large, self.sinks, budget, window)


def outlier_mask(view: CacheView, ranges: Tensor, n_large: int | None, sinks: int, by: str) -> Tensor:
    """The sinks and the tokens of largest range, by "count" or "threshold": (N, H, C) float32 ranges to bool."""
    ranked = protect_sinks(view, ranges, sinks)
    mask = view.ops.largest(ranked, min(view.budget // 4 if n_large is None else n_large, view.budget - view.window))
    if by == "count":
        return mask
    if view.thresholds is None:
        raise RuntimeError("this method reads thresholds: the view must carry them")
    return mask & (ranked > view.thresholds[..., None])


def check_n_large(n_large: int | None, sinks: int, budget: int, window: int) -> None:
    if n_large is None:
        return
    if n_large < sinks:
        least = f"it must be at least {sinks}, the number of sinks; raise it, or lower sinks"
        raise ConfigError(f"n_large is {n_large}: {least}")
    if n_large > budget - window:
        places = f"a budget of {budget} tokens with a window of {window} has {budget - window} places to choose for"
        raise ConfigError(f"n_large is {n_large}: {places}; set n_large to that or less")
