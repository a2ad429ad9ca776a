"""Model entries and recipes: frozen values, read strictly, every one with where it came from.

Later wins: zoo entry < recipe < command line. What :func:`resolve_recipe` returns has no value left to guess but
those that belong to a task (``samples``, ``max_new_tokens`` and ``max_total_tokens``: None is the task's own).
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from vase_cli.config.architecture import Architecture
from vase_cli.errors import ConfigError

T = TypeVar("T")

ThinkingMode = Literal["always", "switch", "never"]

COMMAND_LINE = "command line"
"""Where a value comes from that was typed, among a recipe's ``origins``."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn from the logits; the filters apply in the order of the fields.

    ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1.0 and ``min_p`` 0.0 switch a filter off.

    Raises:
        ConfigError: a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature: {self.temperature} is not 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise ConfigError(f"top_k: {self.top_k} is not 0 (off) or a number of tokens")
        if not 0 < self.top_p <= 1:
            hint = f"; write {self.top_p / 100:g} for {self.top_p:g} percent" if 1 < self.top_p <= 100 else ""
            raise ConfigError(f"top_p: {self.top_p} is not in (0, 1], 1 being off{hint}")
        if not 0 <= self.min_p < 1:
            raise ConfigError(f"min_p: {self.min_p} is not in [0, 1), 0 being off")


@dataclass(frozen=True)
class ModelShape:
    """What the cache is sized by; checked against the loaded model's config."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Thinking:
    """Whether a model thinks before it answers, and who writes the opening ``<think>``.

    ``mode``: "always", "switch" (the chat template's ``enable_thinking``) or "never". ``opened_by``: "prompt" where
    the chat template ends the generation prompt with ``<think>``, "model" where the model writes it.
    """

    mode: ThinkingMode = "switch"
    opened_by: Literal["prompt", "model"] = "model"


# What a model is sampled with where neither its zoo entry nor its generation_config.json says: the paper's settings.
DEFAULT_SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)


@dataclass(frozen=True)
class ModelEntry:
    """Facts about one model. Exactly one of ``hub_id`` and ``path`` is set.

    ``parameters`` counts every weight once (a tied head is the embedding). ``context_tokens`` is the native context,
    ``configured_tokens`` the config's ``max_position_embeddings``. ``sampling`` has the keys "thinking" and "plain".
    ``dense_tokens`` (mean tokens of the full cache) and ``budgets`` (tokens) are per task. ``thresholds`` is the path
    of a calibration file. ``source`` is the YAML file, None for a model named by its folder or hub id.
    """

    name: str
    hub_id: str | None = None
    path: Path | None = None
    revision: str | None = None
    shape: ModelShape | None = None
    architecture: Architecture | None = None
    parameters: int | None = None
    dtype: str = "auto"
    context_tokens: int | None = None
    configured_tokens: int | None = None
    thinking: Thinking = Thinking()
    sampling: Mapping[str, SamplingParams] = field(
        default_factory=lambda: {"thinking": DEFAULT_SAMPLING, "plain": DEFAULT_SAMPLING}
    )
    dense_tokens: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    thresholds: str | None = None
    license: str | None = None
    url: str | None = None
    source: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Several runs in one: every method at every budget (``full`` once). Either may be empty: the recipe's own."""

    methods: tuple[str, ...] = ()
    budgets: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One run, every value resolved; ``origins`` says where each came from, by dotted key such as "budgets.gsm8k".

    ``model`` is a zoo name, a hub id or a folder. ``budget`` is tokens per KV head, or "4x" of the mean full-cache
    length, for every task that ``budgets`` does not name. ``window`` is the eviction interval in tokens; the last
    ``window`` tokens are always kept. ``samples``, ``max_new_tokens`` and ``max_total_tokens`` None: the task's own.
    ``limit`` None: every problem. ``dtype`` None: the model's own. ``compare`` is what `vase eval` runs side by side
    where the command line names no method and no budget.
    """

    name: str
    model: str
    method: str = "vase-attnv"
    method_options: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    budget: int | str | None = None
    budgets: Mapping[str, int | str] = field(default_factory=dict)
    dense_tokens: Mapping[str, float] = field(default_factory=dict)
    window: int = 64
    tasks: tuple[str, ...] = ()
    samples: int | None = None
    seed: int = 0
    limit: int | None = None
    max_new_tokens: int | None = None
    max_total_tokens: int | None = None
    sampling: SamplingParams = DEFAULT_SAMPLING
    think: bool = True
    system_prompt: str | None = None
    slots: int | str = "auto"
    dtype: str | None = None
    attention: str = "auto"
    compile: str = "auto"
    device: str = "auto"
    compare: Comparison = Comparison()
    origins: Mapping[str, str] = field(default_factory=dict)

    def budget_for(self, task: str | None) -> int | str | None:
        """The budget as written for one task (None: a prompt of no task); ``config.budget`` resolves it."""
        return self.budget if task is None else self.budgets.get(task, self.budget)


@dataclass(frozen=True)
class RecipeFile:
    """What one recipe file says, checked but not resolved: ``values`` by key, ``lines`` by dotted key.

    ``path`` None: no file, a run that names a model only.
    """

    name: str
    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where a value of this file is: "recipe qwen3-8b (file:line)"."""
        return f"recipe {self.name} ({self.path}:{self.lines[key]})"


def is_hub_id(name: str) -> bool:
    """Whether ``name`` has the form organisation/name."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name, re.ASCII) is not None


SAMPLING_KEYS = tuple(one.name for one in dataclasses.fields(SamplingParams))
