"""The settings of an engine.

Shapes: B rows (max_num_seqs), S cached tokens a row can hold (budget + W), W window (also the eviction interval).
"""

from dataclasses import dataclass

from vase_cli.attention.base import AttentionBackend
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.requests import Request
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.kernels.ops import TorchOps
from vase_cli.models.describe import ModelFacts


@dataclass(frozen=True)
class EngineSettings:
    """Sizes and limits of an engine."""

    budget: int | None  # tokens kept per KV head at a cut; None for a method that does not evict
    window: int  # W; the last W tokens are always kept, and a row is cut when it holds budget + W
    max_num_seqs: int  # B
    sampling: SamplingParams
    seed: int  # of the draws of tokens, and of evictions
    max_new_tokens: int | None  # limit on generated tokens; None is no limit but the total
    max_total_tokens: int  # limit on prompt and generated tokens together

    @property
    def cut_at(self) -> int | None:
        """Tokens at which a row is cut, budget + W; None where no row comes to hold so many."""
        if self.budget is None or self.budget + self.window > self.max_total_tokens:
            return None
        return self.budget + self.window

    def cache_shape(
        self,
        facts: ModelFacts,
        policy: EvictionPolicy,
        backend: AttentionBackend,
        ops: TorchOps,
        *,
        usual_scale: bool = True,
    ) -> CacheShape:
        """Sizes of the cache, for the memory plan as for the engine; nothing is allocated.

        ``usual_scale``, see :class:`vase_cli.models.language_model.LanguageModel`, is not known before it is loaded.
        """
        cut_at, model = self.cut_at, facts.shape
        return CacheShape(
            layers=model.layers,
            max_num_seqs=self.max_num_seqs,
            tokens=cut_at or self.max_total_tokens,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            query_heads=model.heads,
            query_window=self.window if cut_at and "queries" in policy.needs else 0,
            element_bytes=facts.torch_dtype.itemsize,
            lse=backend.supports_lse and usual_scale,
            ranges=cut_at is not None and "ranges" in policy.needs and ops.scores_in_place(model.head_dim),
        )

    def ends(self, request: Request, new_tokens: int) -> bool:
        """Whether a text has come to its limit with so many generated tokens."""
        return (
            new_tokens in (self.max_new_tokens, request.max_new_tokens)
            or len(request.prompt_token_ids) + new_tokens >= self.max_total_tokens
        )

    def check_prompt(self, prompt_tokens: int) -> None:
        """Refuse a prompt of so many tokens with a ``ConfigError`` if it is empty or leaves nothing of the limit."""
        if prompt_tokens == 0:
            raise ConfigError("the prompt is empty")
        if prompt_tokens >= self.max_total_tokens:
            hint = f"leaves nothing of the limit of {self.max_total_tokens:,}; raise --max-total-tokens"
            raise ConfigError(f"the prompt has {prompt_tokens:,} tokens, which {hint}")


def check_settings(policy: EvictionPolicy, settings: EngineSettings) -> None:
    """Refuse a budget and method that do not fit each other, before a model is loaded.

    Raises:
        ConfigError: one line.
    """
    if policy.evicts:
        if settings.budget is None:
            raise ConfigError("this method evicts and needs a budget: give --budget, or use method full")
        if settings.budget <= settings.window:
            window = f"the window of {settings.window} tokens, which are always kept"
            hint = "raise the budget or lower the window"
            raise ConfigError(f"budget {settings.budget} is not larger than {window}: {hint}")
        policy.check(settings.budget, settings.window)
