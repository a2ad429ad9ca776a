"""A run before a weight is read: the recipe's method, device, attention and limits, checked and final.

Shapes: B rows (max_num_seqs), S cached tokens a row can hold (budget + W), W window (also the eviction interval).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vase_cli import plugins
from vase_cli.attention.base import AttentionBackend
from vase_cli.compiled_files import keep_kernels
from vase_cli.config.budget import Budget, cut_at, resolve_budget
from vase_cli.config.method_options import make_method
from vase_cli.config.schema import ModelEntry, Recipe, SamplingParams
from vase_cli.config.yaml import COMMAND_LINE
from vase_cli.device import Device, resolve_device
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.requests import Request
from vase_cli.engine.rows import Need, need_of
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.kernels.ops import TorchOps, select_ops
from vase_cli.models.describe import ModelFacts, describe
from vase_cli.models.generation_config import FILE, read_generation_config
from vase_cli.models.identity import at_commit, model_files
from vase_cli.models.random_weights import RandomWeights
from vase_cli.models.thresholds import Thresholds, load_thresholds

PREFILL_TOKENS = 8192  # the fewest tokens, on an H200, that more of them do not make faster


@dataclass(frozen=True)
class GenerationLimits:
    """Budget (None for a method that does not evict) and limits of one task; None is no limit on new tokens."""

    budget: Budget | None
    max_new_tokens: int | None
    max_total_tokens: int

    @property
    def budget_tokens(self) -> int | None:
        """Tokens kept at a cut; None for a method that does not evict."""
        return None if self.budget is None else self.budget.tokens


@dataclass(frozen=True)
class Demand:
    """The texts that an engine is made for.

    Attributes:
        limits: those of their task.
        longest_prompt_tokens: of the prompts that are not refused.
        needs: what each text may come to, the longest first; None for any number of texts, as long as the limits allow.
    """

    limits: GenerationLimits
    longest_prompt_tokens: int
    needs: tuple[Need, ...] | None = None

    @classmethod
    def of(cls, limits: GenerationLimits, requests: Iterable[Request]) -> "Demand":
        """All requests of a task, those that are finished already too: a run that goes on has the rows of its start."""
        requests, most = list(requests), limits.max_total_tokens
        needs = (need_of(request, limits.max_new_tokens, most) for request in requests)
        prompts = (len(request.prompt_token_ids) for request in requests)
        longest_prompt = max((tokens for tokens in prompts if tokens < most), default=1)
        return cls(limits, longest_prompt, tuple(sorted(needs, key=lambda need: need.text_tokens, reverse=True)))

    def of_any_length(self) -> "Demand":
        """The same, though any text may end early."""
        return replace(self, needs=self.needs and tuple(need._replace(certain=False) for need in self.needs))


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
    prefill_tokens: int = PREFILL_TOKENS  # most tokens of prompts that are computed together; a longer one is alone
    prefill_chunk: int = PREFILL_TOKENS  # most of them between two decode steps; changes no token of any text
    text_tokens: tuple[int, ...] | None = None  # of each text at most, the longest first; None: any number of texts

    @property
    def longest_text(self) -> int:
        """Tokens of the longest text that may come."""
        return self.max_total_tokens if self.text_tokens is None else max((1, *self.text_tokens))

    @property
    def cut_at(self) -> int | None:
        """Tokens at which a row is cut, budget + W; None where no row comes to hold so many."""
        return None if self.budget is None else cut_at(self.budget, self.window, self.longest_text)

    def cache_shape(
        self,
        facts: ModelFacts,
        policy: EvictionPolicy,
        backend: AttentionBackend,
        ops: TorchOps,
        *,
        usual_scale: bool = True,
    ) -> CacheShape:
        """Sizes of the cache, for the memory plan as for the engine; ``usual_scale`` is of a loaded model.

        Rows are as long as the texts that may come where no row is cut and the backend finds each row's start.
        """
        cut_at, model = self.cut_at, facts.shape
        row_tokens = None
        if cut_at is None and backend.supports_row_starts and self.text_tokens is not None:
            idle = (1,) * (self.max_num_seqs - len(self.text_tokens))
            row_tokens = tuple(max(1, tokens) for tokens in self.text_tokens[: self.max_num_seqs]) + idle
        return CacheShape(
            layers=model.layers,
            max_num_seqs=self.max_num_seqs,
            tokens=cut_at or self.longest_text,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            query_heads=model.heads,
            query_window=self.window if cut_at and "queries" in policy.needs else 0,
            element_bytes=facts.torch_dtype.itemsize,
            lse=backend.supports_lse and usual_scale,
            ranges=cut_at is not None and "ranges" in policy.needs and ops.scores_in_place(model.head_dim),
            cut=cut_at is not None,
            row_tokens=None if row_tokens is None or len(set(row_tokens)) == 1 else row_tokens,
        )

    def row_need(self, request: Request) -> int:
        """Tokens that a request's row comes to hold at most."""
        tokens = need_of(request, self.max_new_tokens, self.max_total_tokens).text_tokens
        return min(tokens, self.cut_at or tokens)

    def length(self, request: Request) -> int:
        """How long a text is to be, for the order in which texts get their rows.

        The longest are started first, so that none is left alone at the end. Where a text may end early, that is known
        only of what its row must hold.
        """
        if request.ignore_eos:
            return need_of(request, self.max_new_tokens, self.max_total_tokens).text_tokens
        return self.row_need(request)

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
    """Refuse a budget and method that do not fit each other with a ``ConfigError``."""
    if policy.evicts:
        if settings.budget is None:
            raise ConfigError("this method evicts and needs a budget: give --budget, or use method full")
        if settings.budget <= settings.window:
            window = f"the window of {settings.window} tokens, which are always kept"
            hint = "raise the budget or lower the window"
            raise ConfigError(f"budget {settings.budget} is not larger than {window}: {hint}")
        policy.check(settings.budget, settings.window)


@dataclass(frozen=True)
class RunPlan:
    """What :func:`plan_run` resolves.

    Attributes:
        recipe: as it was given.
        entry: as it was given, a hub model at the commit that is loaded.
        method: the method's name; the class's, where the policy was given.
        device: what the model runs on.
        ops: what computes cuts and draws on the device.
        facts, backend: figures of the model, and its attention.
        policy: the method with its options; one that asks for thresholds, where the model has none, counts instead.
        thresholds: those of the model, where the method reads them.
        notes: one line for each thing the user should know.
        files: what a model folder is made of, see :func:`model_files`; None for a hub model or random weights.
        random_weights: drawn in place of the model's own; None where those are read.
    """

    recipe: Recipe
    entry: ModelEntry
    method: str
    device: Device
    ops: TorchOps
    facts: ModelFacts
    backend: AttentionBackend
    policy: EvictionPolicy
    thresholds: Thresholds | None
    notes: tuple[str, ...]
    files: Mapping[str, str] | None
    random_weights: RandomWeights | None

    def limits(self, task: str | None, *, max_new_tokens: int | None, max_total_tokens: int) -> GenerationLimits:
        """Resolve budget and limits of one task, or of prompts of none; the recipe's limits win over the task's.

        ConfigError for a budget or limit that cannot work.
        """
        recipe, configured = self.recipe, self.facts.max_tokens
        total = recipe.max_total_tokens or max_total_tokens
        if configured is not None and total > configured:
            if recipe.max_total_tokens is not None:
                most = f"{self.entry.name} is configured for {configured:,} tokens of text"
                raise ConfigError(f"max_total_tokens {total:,}: {most}; set it to {configured:,} or less")
            total = configured
        budget = None
        if self.policy.evicts:
            dense_tokens = {**self.entry.dense_tokens, **recipe.dense_tokens}
            budget = resolve_budget(
                recipe.budget_for(task), task=task, window=recipe.window, token_limit=total, dense_tokens=dense_tokens
            )
        limits = GenerationLimits(budget, recipe.max_new_tokens or max_new_tokens, total)
        check_settings(self.policy, self.settings(Demand(limits, total), max_num_seqs=1))
        return limits

    def settings(self, demand: Demand, *, max_num_seqs: int) -> EngineSettings:
        """Settings of an engine, whose rows are no longer than the texts it is made for need."""
        limits = demand.limits
        total = limits.max_total_tokens
        if demand.needs is None and limits.max_new_tokens is not None:
            total = min(total, demand.longest_prompt_tokens + limits.max_new_tokens)
        return EngineSettings(
            budget=limits.budget_tokens,
            window=self.recipe.window,
            max_num_seqs=max_num_seqs,
            sampling=self.recipe.sampling,
            seed=self.recipe.seed,
            max_new_tokens=limits.max_new_tokens,
            max_total_tokens=total,
            text_tokens=None if demand.needs is None else tuple(need.text_tokens for need in demand.needs),
        )


def plan_run(
    recipe: Recipe,
    entry: ModelEntry,
    *,
    policy: EvictionPolicy | None = None,
    weights: RandomWeights | None = None,
) -> RunPlan:
    """Bring a recipe together with its model: read the model's config, and refuse what cannot work in one line.

    ``policy`` is the method, in place of the recipe's; ``weights`` are drawn instead of read from the model's files.
    """
    method = recipe.method if policy is None else type(policy).__name__
    policy = make_method(recipe) if policy is None else policy
    if "__dataclass_fields__" not in vars(type(policy)):  # its fields are what is on record
        raise ConfigError(f"method {method}: write @dataclass(frozen=True, kw_only=True) above the class")
    device = Device(resolve_device(recipe.device))
    given, entry = entry, at_commit(entry) if weights is None else entry
    facts = (describe if weights is None else weights.describe)(entry, recipe.dtype, device.torch)
    notes = _check_generation_config(recipe, entry) if weights is None else ()
    files = model_files(entry.path) if entry.path is not None and weights is None else None
    backend = _choose_backend(recipe.attention, facts, device)
    thresholds = None
    if policy.reads_thresholds:
        thresholds = load_thresholds(given, facts.shape, entry.revision) if weights is None else None
        if thresholds is None:
            counting: dict[str, Any] = {"outliers": "count"}
            if counting.keys() - vars(policy).keys():
                raise ConfigError(f"method {method} needs thresholds; `vase calibrate` makes those of {entry.name}")
            policy = replace(policy, **counting)
            counted = f"{entry.name} has no thresholds, so outliers are told by their count"
            notes += (f"warning: {method}: {counted}; `vase calibrate` makes thresholds",)
    if device.type == "cuda" or recipe.compile == "on":
        notes += keep_kernels()
    ops = select_ops(device.torch)
    return RunPlan(recipe, entry, method, device, ops, facts, backend, policy, thresholds, notes, files, weights)


def _check_generation_config(recipe: Recipe, entry: ModelEntry) -> tuple[str, ...]:
    """Refuse what the model's file asks for and is not served; note a penalty that entry and recipe do not speak of."""
    asked, key = read_generation_config(entry).get("repetition_penalty", 1), "sampling.repetition_penalty"
    said = recipe.origins.get(key, "").startswith(("recipe", COMMAND_LINE))
    said |= any(origin.endswith(".repetition_penalty") for origin in entry.origins)
    if said or asked in (1, recipe.sampling.repetition_penalty):
        return ()
    problem = f"{entry.name}: {FILE} asks for a repetition_penalty of {asked}, which is not applied"
    return (f"warning: {problem}; add --repetition-penalty {asked}, or write it into a zoo entry",)


def _choose_backend(asked: str, facts: ModelFacts, device: Device) -> AttentionBackend:
    by_speed = ("triton", "flash_attention_2", "sdpa") if device.type == "cuda" else ("sdpa",)
    for name in by_speed if asked == "auto" else (asked,):
        backend: AttentionBackend = plugins.make("attention", name)
        try:
            backend.check(device.torch, facts.torch_dtype, facts.shape.head_dim)
            return backend
        except ConfigError as error:
            refusal = error
    raise refusal
