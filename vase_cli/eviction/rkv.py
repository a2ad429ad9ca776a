"""Attention against redundancy (R-KV, arXiv 2505.24133)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.eviction._scores import redundancy, window_attention
from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class RKV(EvictionPolicy):
    """Keeps candidates that are attended to and unlike the others: lambda * A - (1 - lambda) * redundancy.

    Attributes:
        attention_share: lambda. 0.5 is what arXiv 2606.03928 compares with; R-KV's own default is 0.1.
        smooth: average the attention over 5 neighboring slots.
    """

    needs = frozenset({"queries"})
    batches = True

    attention_share: float = 0.5
    smooth: bool = True

    def keep_scores(self, view: CacheView) -> Tensor:
        """The weighted difference of attention and redundancy."""
        attention = window_attention(view, smooth=self.smooth)
        return self.attention_share * attention - (1.0 - self.attention_share) * redundancy(view)

    def check(self, budget: int, window: int) -> None:
        """Refuse a lambda outside 0 to 1."""
        if not 0.0 <= self.attention_share <= 1.0:
            raise ConfigError(f"attention_share is {self.attention_share}: it must be between 0 and 1")


METHOD = RKV
