"""Model entries and recipes: frozen values, checked wherever they come from.

Later wins: zoo entry < recipe < command line. What :func:`~vase_cli.config.resolve.resolve_recipe` returns has no value
left to guess but those that belong to a task (``samples``, ``max_new_tokens`` and ``max_total_tokens``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from vase_cli.config import types
from vase_cli.config.architecture import Architecture
from vase_cli.config.budget import BudgetSpec, Ratio
from vase_cli.config.types import needs, record

Mode = Literal["thinking", "plain"]
ThinkingMode = Literal["always", "switch", "never"]


@record
class SamplingParams:
    """How a token is drawn from the logits; ConfigError for a value out of range.

    The penalty acts first, then temperature and the filters in the order of fields.
    """

    temperature: types.Temperature = Field(default=0.0, description="0 is greedy.")
    top_k: types.TopK = Field(default=0, description="Most likely tokens that stay; 0 switches it off.")
    top_p: types.TopP = Field(default=1.0, description="Share of probability that stays; 1 switches it off.")
    min_p: types.MinP = Field(default=0.0, description="Least share of the best probability; 0 switches it off.")
    repetition_penalty: types.Penalty = Field(
        default=1.0, description="Divides the positive logits of tokens in the text, multiplies the others; 1 is off."
    )

    def recorded(self) -> dict[str, float]:
        """The values by key as files record them: a penalty that is off is left out, as before there was one."""
        return {key: value for key, value in vars(self).items() if key != "repetition_penalty" or value != 1.0}


SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

# What a model is sampled with where neither its zoo entry nor its generation_config.json says: the paper's settings.
DEFAULT_SAMPLING = SamplingParams(temperature=0.6, top_p=0.95)


@record
class ModelShape:
    """What the cache is sized by; checked against the loaded model's config."""

    layers: types.Count = Field(description="Layers.")
    heads: types.Count = Field(description="Query heads of a layer.")
    kv_heads: types.Count = Field(description="KV heads of a layer, into which the query heads divide.")
    head_dim: types.Count = Field(description="Width of a head.")


@record
class Thinking:
    """Whether a model thinks before it answers, and who opens it: the chat template's prompt or the model."""

    mode: ThinkingMode = Field(default="switch", description="switch: by the chat template's enable_thinking.")
    opened_by: Literal["prompt", "model"] = Field(default="model", description="Who writes the opening <think>.")


def _both_modes(modes: Mapping[Mode, SamplingParams]) -> Mapping[Mode, SamplingParams]:
    if not modes:
        raise ValueError("is empty; write thinking, plain or both under it")
    only = next(iter(modes.values()))
    return {"thinking": modes.get("thinking", only), "plain": modes.get("plain", only)}


_Thinking = Annotated[Thinking, needs("mode", "write always, switch or never")]
_Sampling = Annotated[SamplingParams, needs("temperature", "0 is greedy")]
_Modes = Annotated[Mapping[Mode, _Sampling], AfterValidator(_both_modes)]


@record
class ModelEntry:
    """Facts about one model. Exactly one of ``hub_id`` and ``path`` is set."""

    name: str = Field(description="Name of the zoo file or the folder, or the hub id.")
    hub_id: types.HubId | None = Field(default=None, description="organization/name on the hub.")
    path: Annotated[Path, types.AsText] | None = Field(default=None, description="Folder of the model.")
    revision: types.Text | None = Field(default=None, description="Commit or branch on the hub.")
    shape: ModelShape | None = Field(default=None, description="What the cache is sized by.")
    architecture: Architecture | None = Field(default=None, description="What random weights are built from.")
    parameters: types.Parameters | None = Field(default=None, description="Weights, a tied head counted once.")
    dtype: types.DType = Field(default="auto", description="Type of the weights.")
    context_tokens: types.Tokens | None = Field(default=None, description="Native context.")
    configured_tokens: types.Tokens | None = Field(default=None, description="The config's max_position_embeddings.")
    thinking: _Thinking = Field(default=Thinking(), description="Whether the model thinks.")
    sampling: _Modes = Field(default_factory=lambda: _both_modes({"plain": DEFAULT_SAMPLING}), description="Per mode.")
    solves: Annotated[tuple[types.Text, ...], types.NotEmpty] = Field(default=(), description="Its only tasks, if any.")
    dense_tokens: types.Lengths = Field(default_factory=dict, description="Mean tokens of the full cache, per task.")
    budgets: Mapping[str, types.Tokens] = Field(default_factory=dict, description="Budget in tokens, per task.")
    thresholds: types.Text | None = Field(default=None, description="Facts of a calibration: a .thresholds.yaml file.")
    license: types.Text | None = Field(default=None, description="License of the weights.")
    url: types.Text | None = Field(default=None, description="Page of the model.")
    source: Path | None = Field(default=None, description="The zoo file; none for a folder or hub id.")
    origins: Mapping[str, str] = Field(default_factory=dict, description="Where each value is written.")


@record
class Comparison:
    """Several runs in one: every method at every budget (``full`` once). Either may be empty: the recipe's own."""

    methods: Annotated[tuple[types.Method, ...], types.NotEmpty] = Field(default=(), description="Methods.")
    budgets: Annotated[tuple[BudgetSpec, ...], types.NotEmpty] = Field(default=(), description="Budgets.")


@record
class Recipe:
    """One run, every value resolved."""

    name: str = Field(description="Name of the recipe.")
    model: types.Text = Field(description="Zoo name, hub id or folder.")
    method: types.Method = Field(default="vase-attnv", description="Eviction method.")
    method_options: Mapping[str, types.Option] = Field(default_factory=dict, description="Options of the method.")
    budget: BudgetSpec | None = Field(default=None, description="Tokens per KV head; 4x: a quarter of all.")
    budgets: Mapping[str, BudgetSpec] = Field(default_factory=dict, description="Budgets of single tasks.")
    dense_tokens: types.Lengths = Field(default_factory=dict, description="Mean tokens of the full cache, per task.")
    window: types.Tokens = Field(default=64, description="Tokens between cuts, and at the end, which always stay.")
    tasks: Annotated[tuple[types.Text, ...], types.NotEmpty] = Field(default=(), description="Tasks or problem files.")
    samples: types.Samples | None = Field(default=None, description="Samples per problem; the task's own if none.")
    seed: types.Seed = Field(default=0, description="Of tokens and eviction.")
    limit: types.Problems | None = Field(default=None, description="First problems of each task; all if none.")
    max_new_tokens: types.Tokens | None = Field(default=None, description="Limit on generated tokens; or the task's.")
    max_total_tokens: types.Tokens | None = Field(default=None, description="With the prompt's; or the task's.")
    sampling: SamplingParams = Field(default=DEFAULT_SAMPLING, description="How a token is drawn.")
    think: types.Flag = Field(default=True, description="Thinking mode, where the model has a switch.")
    system_prompt: types.Text | None = Field(default=None, description="System prompt.")
    slots: types.Slots = Field(default="auto", description="Sequences at a time; auto takes what fits.")
    dtype: types.DType | None = Field(default=None, description="Type of the weights; the model's own if none.")
    attention: types.Attention = Field(default="auto", description="Attention backend.")
    compile: Literal["auto", "on", "off"] = Field(default="auto", description="torch.compile of decode steps.")
    device: types.Device = Field(default="auto", description="auto, cpu, cuda, cuda:N or mps.")
    compare: Comparison = Field(default=Comparison(), description="What vase eval runs side by side.")
    origins: Mapping[str, str] = Field(default_factory=dict, description="Where each value is from, by dotted key.")

    def budget_for(self, task: str | None) -> int | Ratio | None:
        """The budget of one task; None: of a prompt of no task."""
        return self.budget if task is None else self.budgets.get(task, self.budget)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file, checked but not resolved: ``values`` by key, ``origins`` by dotted key; empty without a file."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
