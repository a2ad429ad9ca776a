"""From a resolved recipe to an engine: everything is checked and planned before a weight is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vase_cli import plugins
from vase_cli.attention.base import AttentionBackend
from vase_cli.config.budget import Budget, resolve_budget
from vase_cli.config.method_options import make_method
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.device import resolve_device
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.device import Device
from vase_cli.engine.engine import Engine
from vase_cli.engine.memory import MemoryPlan, plan_memory
from vase_cli.engine.requests import Completion, EngineStats
from vase_cli.engine.sampling import drawn_from_few
from vase_cli.engine.settings import EngineSettings, check_settings
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.kernels.ops import select_ops
from vase_cli.models.compiled import WORTHWHILE_STEPS
from vase_cli.models.describe import ModelFacts, describe
from vase_cli.models.fused import FusionError
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.random_weights import RandomWeights
from vase_cli.models.thresholds import Thresholds, load_thresholds
from vase_cli.models.tokenizer import ChatTokenizer, load_tokenizer

MOST_NUM_SEQS = {"cuda": 256, "cpu": 16, "mps": 16}
"""The most that ``--slots auto`` takes: on a CPU more rows only make each one slower."""


@dataclass(frozen=True)
class Part:
    """Budget and limits of one task, resolved; ``task`` is None for prompts of no task.

    ``budget`` is None for a method that does not evict; ``max_new_tokens`` is None for no limit but that on prompt and
    generated tokens together.
    """

    task: str | None
    budget: Budget | None
    max_new_tokens: int | None
    max_total_tokens: int

    @property
    def budget_tokens(self) -> int | None:
        """Tokens kept at a cut; None for a method that does not evict."""
        return None if self.budget is None else self.budget.tokens


@dataclass
class _Loaded:
    """The tokenizer and model that assemblies of one model share, and why the model could not be fused."""

    tokenizer: ChatTokenizer | None = None
    model: LanguageModel | None = None
    unfused: str = ""


class Assembly:
    """A recipe brought together with its model.

    Attributes:
        recipe, entry: as resolved.
        policy: the method with its options; one that asks for thresholds, where the model has none, counts instead.
        thresholds: those of the model, where the method reads them.
        notes: one line for each thing the user should know.
        device, hardware, ops: the device that the model runs on, its figures, and what computes cuts and draws there.
        facts, backend: figures of the model, and its attention.
        random_weights: drawn in place of the model's own; None where those are read.
    """

    def __init__(
        self,
        recipe: Recipe,
        entry: ModelEntry,
        *,
        beside: "Assembly | None" = None,
        weights: RandomWeights | None = None,
    ) -> None:
        """Read the model's config and refuse what cannot work.

        Args:
            beside: an assembly of the same model, whose weights and tokenizer this one uses too.
            weights: drawn instead of read; the model's files are then not needed.

        Raises:
            ConfigError, ModelError: one line.
        """
        self.recipe = recipe
        self.entry = entry
        self.policy: EvictionPolicy = make_method(recipe)
        self.device = resolve_device(recipe.device)
        self.hardware = Device(self.device)
        self.ops = select_ops(self.device)
        self.random_weights = weights
        describe_model = describe if weights is None else weights.describe
        self.facts: ModelFacts = describe_model(entry, recipe.dtype, self.device)
        self.backend = self._choose_backend()
        self.notes: list[str] = []
        self.thresholds: Thresholds | None = None
        if self.policy.reads_thresholds:
            self.thresholds = load_thresholds(entry, self.facts.shape) if weights is None else None
            if self.thresholds is None:
                counting = {**recipe.method_options, "outliers": "count"}
                self.policy = make_method(replace(recipe, method_options=counting))
                self.notes.append(
                    f"warning: {recipe.method}: {entry.name} has no thresholds, so outliers are told by their count; "
                    "`vase calibrate` makes thresholds"
                )
        self._loaded = _Loaded()
        if beside is not None:
            same_weights = replace(beside.entry, thresholds=entry.thresholds) == entry
            if not same_weights or (beside.device, beside.facts) != (self.device, self.facts):
                raise ValueError("assemblies of different models share nothing")
            self._loaded = beside._loaded

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer; loaded when first asked for, without the weights."""
        if self._loaded.tokenizer is None:
            self._loaded.tokenizer = load_tokenizer(self.entry)
        return self._loaded.tokenizer

    def part(self, task: str | None, *, max_new_tokens: int | None, max_total_tokens: int) -> Part:
        """Resolve budget and limits of one task; the recipe's limits win over those given here, the task's own.

        Raises:
            ConfigError: a budget or limit that cannot work.
        """
        recipe = self.recipe
        total = recipe.max_total_tokens or max_total_tokens
        configured = self.facts.max_tokens
        if configured is not None and total > configured:
            if recipe.max_total_tokens is not None:
                most = f"{self.entry.name} is configured for {configured:,} tokens of text"
                raise ConfigError(f"max_total_tokens {total:,}: {most}; set it to {configured:,} or less")
            total = configured
        new = recipe.max_new_tokens or max_new_tokens
        budget = None
        if self.policy.evicts:
            dense_tokens = {**self.entry.dense_tokens, **recipe.dense_tokens}
            budget = resolve_budget(
                recipe.budget_for(task), task=task, window=recipe.window, token_limit=total, dense_tokens=dense_tokens
            )
        part = Part(task, budget, new, total)
        check_settings(self.policy, self._settings(part, max_num_seqs=1, longest_prompt_tokens=total))
        return part

    def plan(
        self,
        parts: Sequence[tuple[Part, int]],
        requests: int,
        max_num_seqs: int | str,
        *,
        most_num_seqs: int | None = None,
        available_bytes: int | None = None,
        reserved_bytes: int = 0,
    ) -> MemoryPlan:
        """Plan memory for parts with their longest prompts' tokens; the part that needs most decides.

        Args:
            parts: each with the tokens of its longest prompt.
            requests: more rows than these bring nothing.
            max_num_seqs, most_num_seqs: rows, or "auto" for most_num_seqs at most; None is
                :data:`MOST_NUM_SEQS`.
            available_bytes: to plan with, weights included; None is all that is free.
            reserved_bytes: will be allocated beside the run.

        Raises:
            ConfigError: it does not fit.
        """

        def cache_shape(count: int) -> CacheShape:
            shapes = [
                self._settings(part, max_num_seqs=count, longest_prompt_tokens=longest).cache_shape(
                    self.facts, self.policy, self.backend, self.ops
                )
                for part, longest in parts
            ]
            return max(shapes, key=lambda shape: shape.bytes)

        if available_bytes is None:  # as if the weights were not read yet
            loaded = 0 if self._loaded.model is None else self.facts.weights_bytes
            available_bytes = self.hardware.available_bytes() + loaded
        return plan_memory(
            self.facts,
            cache_shape,
            sampled=self.recipe.sampling.temperature > 0,
            longest_prompt_tokens=max(longest for _, longest in parts),
            available_bytes=available_bytes - reserved_bytes,
            max_num_seqs=max_num_seqs,
            most_num_seqs=max(1, min(most_num_seqs or MOST_NUM_SEQS[self.device.type], requests)),
            kernels=self.ops.has_kernels,
            few_candidates=drawn_from_few(self.recipe.sampling),
        )

    def load(self) -> LanguageModel:
        """The model, its weights read when it is first asked for.

        Raises:
            ModelError: one line.
        """
        if self._loaded.model is None:
            if self.random_weights is None:
                self._loaded.model = load(self.entry, self.tokenizer, self.recipe.dtype, self.device)
            else:
                self._loaded.model = self.random_weights.load(self.entry, self.recipe.dtype, self.device)
            if self.ops.has_kernels:
                try:
                    self._loaded.model.fuse()
                except FusionError as error:
                    self._loaded.unfused = str(error)
            elif self.device.type == "cuda":
                self._loaded.unfused = "no Triton on this device"
        return self._loaded.model

    def decode_through(self, planned_steps: int) -> str:
        """Choose what decode steps run through, for a run of so many; the choice in one line. Loads the weights."""
        model, asked, cuda = self.load(), self.recipe.compile, self.device.type == "cuda"
        fused = cuda and not self._loaded.unfused
        worthwhile = cuda and not fused and planned_steps >= WORTHWHILE_STEPS
        compiled = asked == "on" or (asked == "auto" and worthwhile)
        model.compile(compiled)
        if compiled:
            return "decode steps run through torch.compile, which takes about a minute once"
        if fused:
            return "decode steps run through fused kernels"
        why = f" ({self._loaded.unfused})" if self._loaded.unfused else ""
        return f"decode steps run through transformers' forward{why}"

    def engine(
        self,
        part: Part,
        *,
        max_num_seqs: int,
        longest_prompt_tokens: int,
        timed: bool = False,
        observer: Callable[[Completion, torch.Tensor], None] | None = None,
    ) -> Engine:
        """An engine with a cache of its own, for one part; loads the weights."""
        settings = self._settings(part, max_num_seqs=max_num_seqs, longest_prompt_tokens=longest_prompt_tokens)
        thresholds = None if self.thresholds is None else self.thresholds.values.to(self.device)
        options: dict[str, Any] = {"timed": timed, "observer": observer, "thresholds": thresholds, "ops": self.ops}
        return Engine(self.load(), self.policy, self.backend, settings, **options)

    def _settings(self, part: Part, *, max_num_seqs: int, longest_prompt_tokens: int) -> EngineSettings:
        total = part.max_total_tokens
        if part.max_new_tokens is not None:
            total = min(total, longest_prompt_tokens + part.max_new_tokens)
        return EngineSettings(
            budget=part.budget_tokens,
            window=self.recipe.window,
            max_num_seqs=max_num_seqs,
            sampling=self.recipe.sampling,
            seed=self.recipe.seed,
            max_new_tokens=part.max_new_tokens,
            max_total_tokens=total,
        )

    def _choose_backend(self) -> AttentionBackend:
        asked = self.recipe.attention
        by_speed = ("triton", "flash_attention_2", "sdpa") if self.device.type == "cuda" else ("sdpa",)
        for name in by_speed if asked == "auto" else (asked,):
            backend: AttentionBackend = plugins.load("attention", name)()
            try:
                backend.check(self.device, self.facts.torch_dtype, self.facts.shape.head_dim)
                return backend
            except ConfigError as error:
                refusal = error
        raise refusal


def measured(
    assembly: Assembly, stats: EngineStats, *, max_num_seqs: int, samples: int, cache: CacheShape | None
) -> dict[str, Any]:
    """The session keys of the report: what this process measured, see ``vase eval --schema``."""
    return {
        "device": assembly.hardware.name,
        "slots": max_num_seqs,
        "samples": samples,
        "prefill_tokens": stats.prefill_tokens,
        "prefill_s": round(stats.prefill_s, 3),
        "decode_tokens": stats.decode_tokens,
        "decode_s": round(stats.decode_s, 3),
        "weights_bytes": assembly.facts.weights_bytes,
        "cache_bytes": None if cache is None else cache.bytes,
        "cache_bytes_per_token": None if cache is None else cache.kv_bytes // (cache.max_num_seqs * cache.tokens),
        "peak_bytes": assembly.hardware.peak_bytes(),
    }
