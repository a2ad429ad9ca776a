"""The Python API: a model under an eviction method, from prompts to texts and to what its cache kept.

Shapes: L layers, H KV heads, T cached tokens.
"""

import gc
import os
import warnings
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_option
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cut import Cut
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.engine.requests import Completion, Event, FinishedRow, NewTokens, Notice, Request, RowCut
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.models.tokenizer import Message, TextStream
from vase_cli.tasks.base import Task

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a chat as messages with "role" and "content", or token ids."""


@dataclass(frozen=True)
class NewText:
    """A piece of a text that is being generated, of one prompt's sample."""

    index: int
    sample: int
    text: str


@dataclass(frozen=True)
class Output(Completion):
    """A generated text: a :class:`~vase_cli.engine.requests.Completion`, and what goes beyond it.

    Attributes:
        text: what was generated.
        positions: (L, H, T) int32 on the CPU, the text positions that each head holds at the end; if asked for.
        cut_records: every cut with its scores; if asked for.
    """

    text: str
    positions: Tensor | None = None
    cut_records: tuple[Cut, ...] = ()

    @property
    def index(self) -> int:
        """Which prompt of the call this is for."""
        return _index(self.request)

    @property
    def sample(self) -> int:
        """Which of the prompt's samples this is."""
        return self.request.sample

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)


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
        catalog = Catalog.open(zoo=zoo)
        resolved, entry = catalog.resolve(recipe, changes)
        super().__init__(plan_run(resolved, entry, policy=own))
        for note in (*catalog.notes(recipe, entry), *self.plan.notes):
            warnings.warn(note, stacklevel=2)
        self._engine: Engine | None = None
        self._events: Generator[Event] | None = None
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
        cut_records: bool = False,
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
            positions, cut_records: keep what each head holds at the end, and every cut with its scores; it takes time.

        Raises:
            ConfigError, ModelError: nothing can be generated; one line. A single text that fails has an ``error``.
        """
        _, events = self._start(prompts, sampling, samples, max_new_tokens, raw, (positions, cut_records))
        kept: dict[str, Tensor] = {}
        recorded: dict[str, list[Cut]] = defaultdict(list)
        outputs = []
        for event in events:
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
        """As :meth:`generate`, while it happens: the pieces of each text, in whole characters, then its output.

        Another call ends it.
        """
        requests, events = self._start(prompts, sampling, samples, max_new_tokens, raw, (False, False))
        texts = {request.id: TextStream(self.tokenizer.decode) for request in requests}
        for event in events:
            match event:
                case Notice(message):
                    warnings.warn(message, stacklevel=2)
                case NewTokens(tokens):
                    for token in tokens:
                        if piece := texts[token.request.id].add(token.token_id):
                            yield NewText(_index(token.request), token.request.sample, piece)
                case Completion(request):
                    if piece := texts.pop(request.id).finish():
                        yield NewText(_index(request), request.sample, piece)
                    yield self._output(event)

    def _start(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None,
        samples: int,
        max_new_tokens: int | None,
        raw: bool,
        record: tuple[bool, bool],
    ) -> tuple[list[Request], Iterator[Event]]:
        """Encode the prompts and start an engine: the last call's, where its cache is the one that is needed."""
        if self._events is not None:
            self._events.close()  # a stream that was left half read
        plan = self.plan
        if sampling is not None:
            plan = replace(plan, recipe=replace(plan.recipe, sampling=sampling))
        limits = plan.limits(None, max_new_tokens=None, max_total_tokens=Task.max_total_tokens)
        if limits.budget is not None and limits.budget.warning:
            warnings.warn(limits.budget.warning, stacklevel=3)
        if max_new_tokens is not None:
            limits = replace(limits, max_new_tokens=check_option("max_new_tokens", max_new_tokens))
        encoded = [self._token_ids(prompt, raw) for prompt in ([prompts] if _is_prompt(prompts) else prompts)]
        requests = [
            Request(f"prompts/{index}/{sample}", token_ids, f"prompts/{index}", sample, limits.max_new_tokens)
            for index, token_ids in enumerate(encoded)
            for sample in range(check_option("samples", samples))
        ]
        longest = max(map(len, encoded), default=1)
        needed = plan.settings(limits, max_num_seqs=1, longest_prompt_tokens=longest)
        if needed.cut_at is not None:  # rows as long for any text: each request brings its own limit
            limits = replace(limits, max_new_tokens=None)
        key = (plan.recipe.sampling, record, len(requests), needed.cut_at or needed.max_total_tokens)
        if self._engine is None or self._engine_key != key:
            self._engine = None
            gc.collect()  # its memory counts as free
            factory = EngineFactory(plan, beside=self)
            memory = factory.memory([(limits, longest)], max(1, len(requests)), plan.recipe.slots)
            self._engine_key, self._engine = (
                key,
                factory.engine(
                    limits,
                    max_num_seqs=memory.max_num_seqs,
                    longest_prompt_tokens=longest,
                    compiled=factory.decode_path(0).compiled,
                    record_cuts=record[1],
                    run_ahead=False if any(record) else None,
                ),
            )
        self._events = self._engine.stream(requests)
        return requests, self._events

    def _token_ids(self, prompt: Prompt, raw: bool) -> tuple[int, ...]:
        if _are_token_ids(prompt):
            return tuple(prompt)
        return self.encode(prompt, raw=raw).token_ids

    def _output(self, completion: Completion, positions: Tensor | None = None, cuts: tuple[Cut, ...] = ()) -> Output:
        return Output(
            **vars(completion), text=self.tokenizer.decode(completion.token_ids), positions=positions, cut_records=cuts
        )


def _are_token_ids(prompt: Prompt) -> "TypeIs[Sequence[int]]":
    return not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt)


def _is_prompt(prompts: Prompt | Sequence[Prompt]) -> "TypeIs[Prompt]":
    """Whether this is one prompt, not several."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | Mapping))


def _index(request: Request) -> int:
    return int(request.problem_id.partition("/")[2])
