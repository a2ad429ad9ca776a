"""Attention sinks and a sliding window (StreamingLLM, arXiv 2309.17453)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import protect_sinks
from vase_cli.eviction.base import CacheView, EvictionPolicy, check_at_least


@dataclass(frozen=True, kw_only=True)
class Streaming(EvictionPolicy):
    """Keeps the first tokens of the text (the attention sinks) and the most recent ones.

    Attributes:
        sinks: how many first tokens are kept.
    """

    batches = True

    sinks: int = 4

    def keep_scores(self, view: CacheView) -> Tensor:
        """The later, the better; sinks are protected."""
        return protect_sinks(view, view.candidate_positions.float(), self.sinks)

    def check(self, budget: int, window: int) -> None:
        """Refuse a negative number of sinks."""
        check_at_least("sinks", self.sinks, 0)


METHOD = Streaming
