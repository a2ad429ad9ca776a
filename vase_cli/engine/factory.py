"""From a plan to an engine: the tokenizer and the weights, loaded when they are first needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from vase_cli.engine.cache import CacheShape
from vase_cli.engine.engine import Engine
from vase_cli.engine.memory import MemoryPlan, plan_memory
from vase_cli.engine.plan import Demand, RunPlan
from vase_cli.engine.rows import rows_for
from vase_cli.errors import ConfigError, ModelError
from vase_cli.models.compiled import WORTHWHILE_STEPS
from vase_cli.models.fused import FusionError
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.tokenizer import ChatTokenizer, Message, Prompt, load_tokenizer

MOST_NUM_SEQS = {"cuda": 256, "cpu": 16, "mps": 16}
"""The most rows that ``--slots auto`` takes: on a CPU more of them only make each one slower."""


class DecodePath(NamedTuple):
    """What decode steps run through; ``message`` says it in one line."""

    compiled: bool
    message: str


@dataclass
class _Loaded:
    """The tokenizer and model that factories of one model share, and why the model could not be fused."""

    tokenizer: ChatTokenizer | None = None
    model: LanguageModel | None = None
    unfused: str = ""


class EngineFactory:
    """Makes engines for a plan, each with a cache of its own.

    Attributes:
        plan: method, device, attention and limits, final.
    """

    def __init__(self, plan: RunPlan, *, beside: "EngineFactory | None" = None) -> None:
        """Load nothing yet; ``beside`` is a factory of the same model, whose weights this one uses too."""
        self.plan = plan
        self._loaded = _Loaded()
        if beside is not None:
            other = beside.plan
            same_weights = replace(other.entry, thresholds=plan.entry.thresholds) == plan.entry
            if not same_weights or (other.device.torch, other.facts) != (plan.device.torch, plan.facts):
                raise ValueError("factories of different models share nothing")
            self._loaded = beside._loaded

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer; loaded without the weights."""
        if self._loaded.tokenizer is None:
            self._loaded.tokenizer = load_tokenizer(self.plan.entry)
        return self._loaded.tokenizer

    def encode(self, prompt: str | Sequence[Message], *, raw: bool = False) -> Prompt:
        """Encode what the user says, or a chat, through the model's chat template, or a text as it is if ``raw``.

        ConfigError for a model without a template, for a system prompt or a chat where there is no place for it, and
        for text that is not UTF-8; ModelError if the template refuses the messages.
        """
        recipe, tokenizer = self.plan.recipe, self.tokenizer
        contents = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        texts = [*(("prompt", content) for content in contents), ("system prompt", recipe.system_prompt or "")]
        for what, content in texts:
            try:
                content.encode()
            except UnicodeEncodeError as error:  # what Python makes of other bytes on the command line
                raise ConfigError(f"the {what} is not UTF-8 at character {error.start + 1}: write it again") from error
        if not raw and not tokenizer.has_chat_template:
            raise ConfigError(f"{self.plan.entry.name} has no chat template: add --raw to give prompts as they are")
        if not raw:
            return self._in_vocabulary(tokenizer.encode_chat(prompt, system=recipe.system_prompt, think=recipe.think))
        why = "--raw gives the prompt as it is"
        if recipe.system_prompt is not None:
            raise ConfigError(f"{why}, so there is no place for a system prompt: leave it out")
        if not isinstance(prompt, str):
            raise ConfigError(f"{why}, so there is no place for the messages of a chat: give the text alone")
        return self._in_vocabulary(tokenizer.encode_text(prompt))

    def _in_vocabulary(self, prompt: Prompt) -> Prompt:
        if (largest := max(prompt.token_ids, default=0)) >= self.plan.facts.vocabulary:
            problem = f"its tokenizer makes token {largest}, its embedding has {self.plan.facts.vocabulary} rows"
            raise ModelError(f"{self.plan.entry.name}: {problem}: the tokenizer is of another model")
        return prompt

    def memory(
        self,
        demands: Sequence[Demand],
        max_num_seqs: int | str,
        *,
        most_num_seqs: int | None = None,
        available_bytes: int | None = None,
        reserved_bytes: int = 0,
    ) -> MemoryPlan:
        """Plan memory for the texts of tasks; the one that needs most decides. ConfigError if it does not fit.

        ``max_num_seqs`` may be "auto", for as many rows as serve the texts soonest, see :func:`rows_for`: no more than
        fit and than ``most_num_seqs``, by default :data:`MOST_NUM_SEQS`. ``available_bytes`` is by default what is
        free now, as if the weights were not read yet; ``reserved_bytes`` of it are for something else.
        """
        plan = self.plan

        def cache_shape(count: int) -> CacheShape:
            made_for = (plan.facts, plan.policy, plan.backend, plan.ops)
            shapes = (plan.settings(demand, max_num_seqs=count).cache_shape(*made_for) for demand in demands)
            return max(shapes, key=lambda shape: shape.bytes)

        def soonest(most: int) -> int:
            return max(most if demand.needs is None else rows_for(demand.needs, most) for demand in demands)

        if available_bytes is None:
            loaded = 0 if self._loaded.model is None else plan.facts.weights_bytes
            available_bytes = plan.device.available_bytes() + loaded
        planned = partial(
            plan_memory,
            plan.facts,
            cache_shape,
            sampled=plan.recipe.sampling.temperature > 0,
            longest_prompt_tokens=max(demand.longest_prompt_tokens for demand in demands),
            available_bytes=available_bytes - reserved_bytes,
            most_num_seqs=soonest(most_num_seqs or MOST_NUM_SEQS[plan.device.type]),
            kernels=plan.ops.has_kernels,
            penalized=plan.recipe.sampling.repetition_penalty != 1.0,
        )
        memory = planned(max_num_seqs=max_num_seqs)
        return planned(max_num_seqs=soonest(memory.max_num_seqs)) if max_num_seqs == "auto" else memory

    def load(self) -> LanguageModel:
        """The model, its weights read when it is first asked for; ModelError if they cannot be."""
        if self._loaded.model is None:
            plan, dtype = self.plan, self.plan.recipe.dtype
            if plan.random_weights is None:
                self._loaded.model = load(plan.entry, self.tokenizer, dtype, plan.device.torch)
            else:
                self._loaded.model = plan.random_weights.load(plan.entry, dtype, plan.device.torch)
            if plan.ops.has_kernels:
                try:
                    self._loaded.model.fuse()
                except FusionError as error:
                    self._loaded.unfused = str(error)
            elif plan.device.type == "cuda":
                self._loaded.unfused = "no Triton on this device"
        return self._loaded.model

    def decode_path(self, planned_steps: int) -> DecodePath:
        """Choose what decode steps run through, for a run of so many; loads the weights."""
        self.load()
        asked, cuda, unfused = self.plan.recipe.compile, self.plan.device.type == "cuda", self._loaded.unfused
        fused = cuda and not unfused
        worthwhile = cuda and not fused and planned_steps >= WORTHWHILE_STEPS
        if asked == "on" or (asked == "auto" and worthwhile):
            return DecodePath(True, "decode steps run through torch.compile, which takes about a minute once")
        if fused:
            return DecodePath(False, "decode steps run through fused kernels")
        why = f" ({unfused})" if unfused else ""
        return DecodePath(False, f"decode steps run through transformers' forward{why}")

    def engine(
        self,
        demand: Demand,
        *,
        max_num_seqs: int,
        compiled: bool = False,
        timed: bool = False,
        record_cuts: bool = False,
        run_ahead: bool | None = None,
    ) -> Engine:
        """An engine for one task's texts; loads the weights. ``compiled`` is from :meth:`decode_path`, the last three
        are the engine's own."""
        plan, model = self.plan, self.load()
        model.compile(compiled)
        return Engine(
            model,
            plan.policy,
            plan.backend,
            plan.settings(demand, max_num_seqs=max_num_seqs),
            ops=plan.ops,
            thresholds=None if plan.thresholds is None else plan.thresholds.values.to(plan.device.torch),
            timed=timed,
            record_cuts=record_cuts,
            run_ahead=run_ahead,
        )
