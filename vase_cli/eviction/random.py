"""Uniform random eviction (with the prompt protected, the baseline of arXiv 2609.03430)."""

from dataclasses import dataclass

from torch import Tensor

from vase_cli.eviction._scores import sampled
from vase_cli.eviction.base import CacheView, EvictionPolicy


@dataclass(frozen=True, kw_only=True)
class Random(EvictionPolicy):
    """Keeps a uniform sample of the candidates; with protect_prompt this is "Random Attention"."""

    batches = True

    def keep_scores(self, view: CacheView) -> Tensor:
        """The same weight for every candidate."""
        return sampled(view, None)


METHOD = Random
