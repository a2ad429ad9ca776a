"""What an engine is built with.

Letters: B slots, S cached tokens a row can hold (budget + W), W window (also the eviction interval).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vase_cli.config.schema import ModelShape, SamplingParams
from vase_cli.errors import ConfigError

if TYPE_CHECKING:
    from vase_cli.engine.cache import CacheShape
    from vase_cli.eviction.base import EvictionPolicy


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built with.

    Attributes:
        budget: tokens kept per KV head at a cut; None for a method that does not evict.
        window: W; the last W tokens are always kept, and a row is cut when it holds budget + W.
        slots: B.
        sampling: how tokens are drawn.
        seed: of both random streams.
        max_new_tokens: limit on generated tokens; None is no limit but the total.
        max_total_tokens: limit on prompt and generated tokens together.
    """

    budget: int | None
    window: int
    slots: int
    sampling: SamplingParams
    seed: int
    max_new_tokens: int | None
    max_total_tokens: int

    def row_tokens(self) -> int:
        """S: what a row must hold, never more than the longest text."""
        if self.budget is None:
            return self.max_total_tokens
        return min(self.budget + self.window, self.max_total_tokens)

    def cache_shape(
        self, model: ModelShape, policy: "EvictionPolicy", element_bytes: int, *, log_sums: bool, ranges: bool
    ) -> "CacheShape":
        """Sizes of the cache; nothing is allocated.

        Args:
            model, policy: what it is for.
            element_bytes: of a key or value element.
            log_sums: whether decode steps leave them for the cuts.
            ranges: whether a cut keeps the value ranges it finds, if the method needs them.
        """
        from vase_cli.engine.cache import CacheShape

        cuts = policy.evicts and self.budget is not None and self.row_tokens() == self.budget + self.window
        return CacheShape(
            layers=model.layers,
            slots=self.slots,
            tokens=self.row_tokens(),
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            query_heads=model.heads,
            query_window=self.window if cuts and "queries" in policy.needs else 0,
            element_bytes=element_bytes,
            log_sums=log_sums,
            ranges=ranges and cuts and "ranges" in policy.needs,
        )


def check_settings(policy: "EvictionPolicy", settings: EngineSettings) -> None:
    """Refuse a budget and method that do not fit each other, before a model is loaded.

    Raises:
        ConfigError: one line.
    """
    if policy.evicts:
        if settings.budget is None:
            raise ConfigError("this method evicts and needs a budget: give --budget, or use method full")
        if settings.budget <= settings.window:
            raise ConfigError(
                f"budget {settings.budget} is not larger than the window of {settings.window} tokens, which are always "
                "kept: raise the budget or lower the window"
            )
        policy.check(settings.budget, settings.window)
