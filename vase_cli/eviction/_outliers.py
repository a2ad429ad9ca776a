"""What the value-aware methods share: the count of protected value states (arXiv 2606.03928)."""

from abc import ABC
from dataclasses import dataclass

import torch
from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.eviction._scores import is_sink
from vase_cli.eviction.base import CacheView, EvictionPolicy, check_at_least
from vase_cli.ranking import largest


@dataclass(frozen=True, kw_only=True)
class ProtectsOutliers(EvictionPolicy, ABC):
    """A method that protects the sinks and the value states of largest range, ``n_large`` in all.

    Attributes:
        n_large: how many tokens of each head are protected; none given is a quarter of the budget.
        sinks: first tokens of the text among them; their value range is small, so they are named.
    """

    n_large: int | None = None
    sinks: int = 4

    def outliers(self, view: CacheView, ranges: Tensor) -> Tensor:
        """(N, H, C) bool: the sinks and the largest of ``ranges``, (N, H, C) float32."""
        count = view.budget // 4 if self.n_large is None else self.n_large
        ranked = torch.where(is_sink(view, self.sinks), torch.inf, ranges)
        return largest(ranked, min(count, view.budget - view.window))

    def check(self, budget: int, window: int) -> None:
        """Refuse an ``n_large`` that does not fit beside the window, or does not hold the sinks."""
        check_at_least("sinks", self.sinks, 0)
        if self.n_large is None:
            return
        check_at_least("n_large", self.n_large, self.sinks)
        if self.n_large > budget - window:
            raise ConfigError(
                f"n_large is {self.n_large}: a budget of {budget} tokens with a window of {window} has "
                f"{budget - window} places to choose for; set n_large to that or less"
            )
