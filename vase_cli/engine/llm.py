"""The Python API: a model under an eviction method, from prompts to texts and to what its cache kept.

Shapes: L layers, H KV heads, T cached tokens.
"""

import math
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from vase_cli.config.catalog import Catalog
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cut import Cut
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.engine.requests import Completion, FinishedRow, FinishReason, NewTokens, Notice, Request, RowCut
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.models.tokenizer import Message, TextStream
from vase_cli.tasks.base import Task

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_ROUND_TOKENS = 256  # the longest prompt is rounded up to these, so that an engine serves more than one call

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a chat as messages with "role" and "content", or token ids."""


@dataclass(frozen=True)
class NewText:
    """A piece of a text that is being generated, of one prompt's sample."""

    index: int
    sample: int
    text: str


@dataclass(frozen=True)
class Output:
    """A generated text.

    Attributes:
        index, sample: of the prompt in the call, and which of its samples this is.
        text, token_ids: what was generated; the ids with a final end-of-text token.
        prompt_tokens: length of the prompt.
        finish_reason: "stop" (the model ended the text), "length" (a limit), or "error".
        error: for "error", what went wrong, in one line.
        num_cuts: how often each head was cut back to the budget.
        cached_tokens: T, held per KV head at the end.
        latency_s: from the start of the prefill to the last token.
        positions: (L, H, T) int32 on the CPU, the text positions that each head holds at the end; if asked for.
        cuts: every cut with its scores; if asked for.
    """

    index: int
    sample: int
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    error: str | None
    num_cuts: int
    cached_tokens: int
    latency_s: float
    positions: Tensor | None = None
    cuts: tuple[Cut, ...] = ()


class LLM(EngineFactory):
    """A model whose KV cache is cut back to a budget.

    Attributes:
        plan: what the arguments were resolved to; ``plan.recipe`` holds every value.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        method: str | EvictionPolicy | None = None,
        budget: int | str | None = None,
        recipe: str | None = None,
        zoo: Path | None = None,
        **settings: Any,
    ) -> None:
        """Resolve and check everything; the weights are read for the first text.

        Args:
            model: zoo name, folder or hub id; the recipe's if left out.
            method: name of an eviction method, or one's own; "vase-attnv" if neither this nor a recipe names one.
            budget: tokens kept per KV head, or "4x" for a quarter of the full cache; none for "full".
            recipe: name or file of a recipe, which the other arguments override.
            zoo: folder of zoo entries, searched first.
            settings: other keys of a recipe, such as ``window``, ``method_options``, ``seed``, ``slots`` (sequences
                at a time), ``device``, ``dtype``, ``think``, ``system_prompt``, ``temperature`` or ``max_new_tokens``.

        Raises:
            ConfigError, ModelError: one line that says what cannot work.
        """
        own = method if isinstance(method, EvictionPolicy) else None
        changes = {**settings, "model": model and os.fspath(model), "method": None if own else method, "budget": budget}
        resolved, entry, notes = Catalog.open(zoo=zoo).resolve(recipe, changes)
        super().__init__(plan_run(resolved, entry, policy=own))
        for note in (*notes, *self.plan.notes):
            warnings.warn(note, stacklevel=2)
        self._engine: Engine | None = None
        self._engine_key: tuple[object, ...] = ()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        samples: int = 1,
        max_new_tokens: int | None = None,
        raw: bool = False,
        positions: bool = False,
        cuts: bool = False,
    ) -> list[Output]:
        """Generate texts; those of a prompt are together, the prompts in their order.

        The same call gives the same texts: random numbers are a function of the seed, the prompt's index and the
        sample. They are those of ``vase run`` with the same prompts.

        Args:
            prompts: one or several texts, chats or lists of token ids.
            sampling: how tokens are drawn; as the recipe says if left out.
            samples: texts for each prompt.
            max_new_tokens: limit on generated tokens; the recipe's if left out.
            raw: take texts as they are, without the chat template.
            positions, cuts: keep what each head holds at the end, and every cut with its scores; that takes time.

        Raises:
            ConfigError, ModelError: nothing can be generated; one line. A single text that fails has an ``error``.
        """
        requests, engine = self._start(prompts, sampling, samples, max_new_tokens, raw, (positions, cuts))
        kept: dict[str, Tensor] = {}
        recorded: dict[str, list[Cut]] = defaultdict(list)
        outputs = []
        for event in engine.stream(requests):
            match event:
                case Notice(message):
                    warnings.warn(message, stacklevel=2)
                case RowCut(request, cut):
                    recorded[request.id].append(cut)
                case FinishedRow(completion) if positions:
                    kept[completion.request.id] = event.positions.cpu().clone()
                case Completion(request):
                    outputs.append(self._output(event, kept.get(request.id), tuple(recorded[request.id])))
        return sorted(outputs, key=lambda output: (output.index, output.sample))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        samples: int = 1,
        max_new_tokens: int | None = None,
        raw: bool = False,
    ) -> Iterator[NewText | Output]:
        """As :meth:`generate`, while it happens: the pieces of each text, in whole characters, then its output."""
        requests, engine = self._start(prompts, sampling, samples, max_new_tokens, raw, (False, False))
        texts = {request.id: TextStream(self.tokenizer.decode) for request in requests}
        for event in engine.stream(requests):
            match event:
                case Notice(message):
                    warnings.warn(message, stacklevel=2)
                case NewTokens(tokens):
                    for token in tokens:
                        if piece := texts[token.request.id].add(token.token_id):
                            yield NewText(*_place(token.request), piece)
                case Completion(request):
                    if piece := texts.pop(request.id).finish():
                        yield NewText(*_place(request), piece)
                    yield self._output(event)

    def _start(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None,
        samples: int,
        max_new_tokens: int | None,
        raw: bool,
        record: tuple[bool, bool],
    ) -> tuple[list[Request], Engine]:
        """Encode the prompts and make an engine for them, or take the last one, if it was made for such a call."""
        plan = self.plan
        if sampling is not None:
            plan = replace(plan, recipe=replace(plan.recipe, sampling=sampling))
        limits = plan.limits(None, max_new_tokens=None, max_total_tokens=Task.max_total_tokens)
        limits = replace(limits, max_new_tokens=max_new_tokens or limits.max_new_tokens)
        if limits.budget is not None and limits.budget.warning:
            warnings.warn(limits.budget.warning, stacklevel=3)
        encoded = [self._token_ids(prompt, raw) for prompt in ([prompts] if _is_prompt(prompts) else prompts)]
        requests = [
            Request(f"prompts/{index}/{sample}", token_ids, f"prompts/{index}", sample, limits.max_new_tokens)
            for index, token_ids in enumerate(encoded)
            for sample in range(samples)
        ]
        longest = math.ceil(max(map(len, encoded), default=1) / _ROUND_TOKENS) * _ROUND_TOKENS
        key = (plan.recipe.sampling, limits.max_new_tokens, longest, len(requests), record)
        if self._engine is None or self._engine_key != key:
            self._engine = None  # its memory counts as free
            factory = EngineFactory(plan, beside=self)
            memory = factory.memory([(limits, longest)], max(1, len(requests)), plan.recipe.slots)
            self._engine = factory.engine(
                limits,
                max_num_seqs=memory.max_num_seqs,
                longest_prompt_tokens=longest,
                compiled=factory.decode_path(0).compiled,
                record_cuts=record[1],
                run_ahead=False if any(record) else None,
            )
            self._engine_key = key
        return requests, self._engine

    def _token_ids(self, prompt: Prompt, raw: bool) -> tuple[int, ...]:
        if _are_token_ids(prompt):
            return tuple(prompt)
        return self.encode(prompt, raw=raw).token_ids

    def _output(self, completion: Completion, positions: Tensor | None = None, cuts: tuple[Cut, ...] = ()) -> Output:
        index, sample = _place(completion.request)
        return Output(
            index=index,
            sample=sample,
            text=self.tokenizer.decode(completion.token_ids),
            token_ids=completion.token_ids,
            prompt_tokens=len(completion.request.prompt_token_ids),
            finish_reason=completion.finish_reason,
            error=completion.error,
            num_cuts=completion.cuts,
            cached_tokens=completion.cached_tokens,
            latency_s=completion.latency_s,
            positions=positions,
            cuts=cuts,
        )


def _are_token_ids(prompt: Prompt) -> "TypeIs[Sequence[int]]":
    return not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt)


def _is_prompt(prompts: Prompt | Sequence[Prompt]) -> "TypeIs[Prompt]":
    """Whether this is one prompt, not several."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | Mapping))


def _place(request: Request) -> tuple[int, int]:
    """Index of the prompt, and the sample."""
    return int(request.problem_id.partition("/")[2]), request.sample
