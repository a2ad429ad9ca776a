"""The protected value states of large range, which the value-aware methods share (arXiv 2606.03928)."""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.eviction._scores import protect_sinks
from vase_cli.eviction.base import CacheView, EvictionPolicy, check_at_least
from vase_cli.kernels.ranking import largest

By = Literal["count", "threshold"]


@dataclass(frozen=True, kw_only=True)
class ProtectsOutliers(EvictionPolicy, ABC):
    """A method that protects the sinks and the value states of largest range, ``n_large`` in all.

    Attributes:
        n_large: how many tokens of each head are protected; none given is a quarter of the budget.
        sinks: first tokens of the text among them; their value range is small, so they are named.
        outliers: count protects n_large tokens whatever their range; threshold only those of them above their head's
            calibrated threshold, and leaves the other places to the rest.
    """

    n_large: int | None = None
    sinks: int = 4
    outliers: By = "count"

    @property
    def reads_thresholds(self) -> bool:
        """Whether a threshold tells the outliers."""
        return self.outliers == "threshold"

    def protected(self, view: CacheView, ranges: Tensor) -> Tensor:
        """(N, H, C) bool: the sinks and the outliers among ``ranges``, (N, H, C) float32."""
        return outlier_mask(view, ranges, self.n_large, self.sinks, self.outliers)

    def check(self, budget: int, window: int) -> None:
        """Refuse an ``n_large`` that does not fit beside the window, or does not hold the sinks."""
        check_at_least("sinks", self.sinks, 0)
        check_n_large(self.n_large, self.sinks, budget, window)


def outlier_mask(view: CacheView, ranges: Tensor, n_large: int | None, sinks: int, by: By) -> Tensor:
    """The sinks and the tokens of largest range, as :class:`ProtectsOutliers` says: (N, H, C) float32 ranges to bool.

    Raises:
        RuntimeError: thresholds are asked for and the view has none.
    """
    count = view.budget // 4 if n_large is None else n_large
    ranked = protect_sinks(view, ranges, sinks)
    mask = largest(ranked, min(count, view.budget - view.window))
    if by == "count":
        return mask
    if view.thresholds is None:
        raise RuntimeError("this method reads thresholds: the view must carry them")
    return mask & (ranked > view.thresholds[..., None])


def check_n_large(n_large: int | None, sinks: int, budget: int, window: int) -> None:
    """Refuse an ``n_large`` that does not fit beside the window, or does not hold the sinks."""
    if n_large is not None and n_large < sinks:
        raise ConfigError(
            f"n_large is {n_large}: it must be at least {sinks}, the number of sinks; raise it, or lower sinks"
        )
    if n_large is not None and n_large > budget - window:
        raise ConfigError(
            f"n_large is {n_large}: a budget of {budget} tokens with a window of {window} has "
            f"{budget - window} places to choose for; set n_large to that or less"
        )
