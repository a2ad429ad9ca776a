"""How much memory a run needs, worked out before a weight is read.

Shapes: B rows, T prompt tokens.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from vase_cli.device import readable_bytes
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.cut import KERNEL_PROMPT_BYTES, working_bytes
from vase_cli.engine.plan import PREFILL_TOKENS
from vase_cli.errors import ConfigError
from vase_cli.models.describe import ModelFacts
from vase_cli.models.language_model import MOST_RESERVED_TOKENS
from vase_cli.models.prefill import MLP_TOKENS_AT_ONCE

_SPARE_SHARE = 0.1  # of the free memory that is not planned with: it is for what others take meanwhile
_MOST_SPARE_BYTES = 4 * 2**30
"""Most of it that is left with kernels, whose plan is of what is allocated. Beside that there are kernels' code and
stacks, graphs and the allocator's rounding, which are some hundred MiB and do not grow with the device."""
_GREEDY_BYTES_PER_LOGIT = 8
_SAMPLED_BYTES_PER_LOGIT = 44  # logits and what sampling makes of them: float32, ranks and indices in int64
_KERNEL_BYTES_PER_LOGIT = 4  # with kernels: logits in half precision, and what is left of them on the way to a token
_PENALTY_BYTES_PER_LOGIT = 22  # which tokens were seen, and logits in float32 with what the penalty makes of them
_KERNEL_PENALTY_BYTES_PER_LOGIT = 1  # which tokens were seen
_ELEMENTS_PER_PAIR = 8  # of a token and one of its experts: where it stands among those of the expert, and its weight
_PRODUCTS_WORKSPACE_BYTES = 32 * 2**20  # what the vendor's matrix products keep for themselves on a GPU


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one run of B rows: weights, cache, logits and sampling, and the free memory they are planned for.

    ``prompt_bytes`` are states and activations of the longest prompt while it is prefilled, or of a cut.
    """

    max_num_seqs: int
    weights_bytes: int
    cache_bytes: int
    logits_bytes: int
    prompt_bytes: int
    available_bytes: int

    @property
    def total_bytes(self) -> int:
        """The expected peak."""
        return self.weights_bytes + self.cache_bytes + self.logits_bytes + self.prompt_bytes

    def message(self) -> str:
        """The plan in one line."""
        names = ("weights", f"cache of {self.max_num_seqs} slots", "logits", "prompt")
        sizes = (self.weights_bytes, self.cache_bytes, self.logits_bytes, self.prompt_bytes)
        listed = " + ".join(f"{name} {readable_bytes(size)}" for name, size in zip(names, sizes, strict=True))
        return f"{listed} = {readable_bytes(self.total_bytes)} of {readable_bytes(self.available_bytes)} free"


def plan_memory(
    facts: ModelFacts,
    cache_shape: Callable[[int], CacheShape],
    *,
    sampled: bool,
    longest_prompt_tokens: int,
    available_bytes: int,
    max_num_seqs: int | str,
    most_num_seqs: int,
    kernels: bool = False,
    penalized: bool = False,
) -> MemoryPlan:
    """Plan a run; ConfigError, with the figures, if not even one row fits, or not as many as were asked for.

    ``cache_shape`` gives the cache's sizes for a number of rows; ``max_num_seqs`` may be "auto", for as many as fit, up
    to ``most_num_seqs``. ``sampled`` says that tokens are not greedy, ``kernels`` that the fused forward and kernels
    for cuts and sampling are used, ``penalized`` that there is a repetition penalty.
    """

    def plan(count: int) -> MemoryPlan:
        shape = cache_shape(count)
        if kernels:
            per_logit = _KERNEL_BYTES_PER_LOGIT + (_KERNEL_PENALTY_BYTES_PER_LOGIT if penalized else 0)
        else:
            per_logit = _SAMPLED_BYTES_PER_LOGIT if sampled else _GREEDY_BYTES_PER_LOGIT
            per_logit += _PENALTY_BYTES_PER_LOGIT if penalized else 0
        prompt = _prompt_bytes(facts, shape, longest_prompt_tokens, kernels=kernels)
        return MemoryPlan(
            max_num_seqs=count,
            weights_bytes=facts.weights_bytes,
            cache_bytes=shape.bytes,
            logits_bytes=count * facts.vocabulary * per_logit,
            prompt_bytes=max(prompt, working_bytes(shape, kernels=kernels))
            + (_workspace_bytes(facts) if kernels else 0),
            available_bytes=available_bytes,
        )

    spare = int(available_bytes * _SPARE_SHARE)
    usable = available_bytes - (min(spare, _MOST_SPARE_BYTES) if kernels else spare)
    wanted = most_num_seqs if max_num_seqs == "auto" else int(max_num_seqs)
    fitting = bisect_right(range(1, wanted + 1), usable, key=lambda count: plan(count).total_bytes)
    of_it = f"of which {readable_bytes(usable)} can be planned with"
    if fitting < 1:
        hint = "use a smaller model, budget or limit, or a device with more memory"
        raise ConfigError(f"this run does not fit: {plan(1).message()}, {of_it}; {hint}")
    if max_num_seqs != "auto" and fitting < wanted:
        hint = f"use --slots {fitting} or less, or auto"
        raise ConfigError(f"{wanted} slots do not fit: {plan(wanted).message()}, {of_it}; {hint}")
    return plan(fitting)


def _prompt_bytes(facts: ModelFacts, shape: CacheShape, longest: int, *, kernels: bool) -> int:
    """States and activations that exist at a time while prompts of up to so many tokens are prefilled."""
    tokens = longest
    queries, states = shape.query_heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    # Of a dense MLP: gate, up and their product; of a mixture: the product, and what each expert of a token makes of
    # it, by transformers beside a copy of the token's state, and scaled, and in another order.
    of_experts = facts.experts_per_token * (facts.hidden + _ELEMENTS_PER_PAIR) * (1 if kernels else 4)
    inner = facts.mlp + max(2 * facts.mlp, of_experts)
    if not kernels:
        return tokens * shape.element_bytes * (4 * facts.hidden + inner + 2 * (queries + states))
    if shape.element_bytes == 2:  # then there are packs, and a kernel for gate, up and their product
        tokens = max(tokens, min(PREFILL_TOKENS, tokens * shape.max_num_seqs))
        inner = inner if facts.experts_per_token else facts.mlp
    attention = tokens * (3 * facts.hidden + 2 * queries + 2 * states)
    mlp = tokens * 4 * facts.hidden + min(tokens, MLP_TOKENS_AT_ONCE) * inner
    cut = KERNEL_PROMPT_BYTES if longest > shape.tokens else 0
    return max(attention, mlp) * shape.element_bytes + cut


def _workspace_bytes(facts: ModelFacts) -> int:
    """What a GPU holds beside states: the workspace of products, and cosines and sines of all positions."""
    positions = min(facts.max_tokens or 0, MOST_RESERVED_TOKENS)
    return _PRODUCTS_WORKSPACE_BYTES + 2 * positions * facts.shape.head_dim * facts.torch_dtype.itemsize
