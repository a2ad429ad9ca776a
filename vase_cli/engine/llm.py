"""The Python API: a model under an eviction method, from prompts to texts and to what its cache kept.

Shapes: L layers, H KV heads, T cached tokens.
"""

import gc
import operator
import os
import warnings
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_option
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.cut import Cut
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import Demand, plan_run
from vase_cli.engine.requests import Completion, Event, FinishedRow, NewTokens, Notice, Request, RowCut
from vase_cli.errors import ConfigError, first_line
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.models.tokenizer import Message, TextStream
from vase_cli.tasks.base import Task

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
        recipe: str | os.PathLike[str] | None = None,
        zoo: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        """Resolve the arguments; the budget is worked out, and the weights are read, for the first text.

        ConfigError or ModelError says in one line what cannot work.

        Args:
            model: zoo name, folder or hub id; the recipe's if left out.
            method: name of an eviction method, or one's own; "vase-attnv" if neither this nor a recipe names one.
            budget: tokens kept per KV head, or "4x" for a quarter of the full cache; none for "full".
            recipe: name or file of a recipe, which the other arguments override.
            zoo: folder of zoo entries, searched first.
            settings: other keys of a recipe, such as ``window``, ``method_options``, ``seed``, ``slots`` (sequences
                at a time), ``device``, ``dtype``, ``think``, ``system_prompt``, ``temperature`` or ``max_new_tokens``.
        """
        own = method if isinstance(method, EvictionPolicy) else None
        if own is not None and settings.get("method_options"):
            raise ConfigError("method_options: the method is an instance, which has its options; leave them out")
        if isinstance(settings.get("sampling"), SamplingParams):
            settings["sampling"] = vars(settings["sampling"])
        changes = {**settings, "model": model and os.fspath(model), "method": None if own else method, "budget": budget}
        catalog = Catalog.open(zoo=None if zoo is None else Path(zoo))
        name = None if recipe is None else os.fspath(recipe)
        resolved, entry = catalog.resolve(name, changes)
        super().__init__(plan_run(resolved, entry, policy=own))
        for note in (*catalog.notes(name, entry), *self.plan.notes):
            warnings.warn(note, stacklevel=2)
        self._engine: Engine | None = None
        self._events: Generator[Event] | None = None
        self._engine_key: tuple[object, ...] = ()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        samples: int | None = None,
        max_new_tokens: int | None = None,
        raw: bool = False,
        positions: bool = False,
        cut_records: bool = False,
    ) -> list[Output]:
        """Generate texts; those of a prompt are together, the prompts in their order.

        The same call gives the same texts: random numbers are a function of the seed, the prompt's index and the
        sample. They are those of ``vase run`` with the same prompts. A single text that fails has an ``error``;
        ConfigError or ModelError says in one line why nothing can be generated.

        Args:
            prompts: one or several texts, chats or lists of token ids.
            sampling: how tokens are drawn; as the recipe says if left out.
            samples: texts for each prompt; the recipe's, or one, if left out.
            max_new_tokens: limit on generated tokens; the recipe's if left out.
            raw: take texts as they are, without the chat template.
            positions, cut_records: keep what each head holds at the end, and every cut with its scores; it takes time.
        """
        _, events = self._start(prompts, sampling, samples, max_new_tokens, raw, (positions, cut_records))
        kept: dict[str, Tensor] = {}
        recorded: dict[str, list[Cut]] = defaultdict(list)
        outputs = []
        for event in events:
            match event:
                case Notice(message, restarted):
                    warnings.warn(message, stacklevel=2)
                    for request in restarted:
                        recorded.pop(request.id, None)
                case RowCut(request, cut):
                    recorded[request.id].append(Cut(cut.text_tokens, *(tensor.clone() for tensor in cut[1:])))
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
        samples: int | None = None,
        max_new_tokens: int | None = None,
        raw: bool = False,
    ) -> Iterator[NewText | Output]:
        """As :meth:`generate`, while it happens: the pieces of each text, in whole characters, then its output.

        Another call ends it. A text that starts again, as memory ran out, goes on behind the pieces that it has.
        """
        requests, events = self._start(prompts, sampling, samples, max_new_tokens, raw, (False, False))
        return self._pieces(requests, events)

    def _pieces(self, requests: Sequence[Request], events: Iterator[Event]) -> Iterator[NewText | Output]:
        texts = {request.id: TextStream(self.tokenizer.decode) for request in requests}
        told = dict.fromkeys(texts, 0)  # characters of each text that are yielded
        again = dict.fromkeys(texts, 0)  # of those, the ones that a text that started again still has to repeat

        def new(request: Request, piece: str) -> Iterator[NewText]:
            fresh, again[request.id] = piece[again[request.id] :], max(0, again[request.id] - len(piece))
            told[request.id] += len(fresh)
            if fresh:
                yield NewText(_index(request), request.sample, fresh)

        for event in events:
            match event:
                case Notice(message, restarted):
                    warnings.warn(message, stacklevel=2)
                    for request in restarted:
                        texts[request.id], again[request.id] = TextStream(self.tokenizer.decode), told[request.id]
                case NewTokens(tokens):
                    for token in tokens:
                        yield from new(token.request, texts[token.request.id].add(token.token_id))
                case Completion(request):
                    yield from new(request, texts[request.id].finish())
                    yield self._output(event)

    def release(self) -> None:
        """Give back the memory of the last call's cache; the weights stay."""
        if self._events is not None:
            self._events.close()  # a stream that was left half read
        self._events = self._engine = None
        gc.collect()

    def _start(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None,
        samples: int | None,
        max_new_tokens: int | None,
        raw: bool,
        record: tuple[bool, bool],
    ) -> tuple[list[Request], Iterator[Event]]:
        """Encode the prompts and start an engine: the last call's, where its cache is the one that is needed."""
        if self._events is not None:
            self._events.close()
        plan = self.plan
        if sampling is not None:
            plan = replace(plan, recipe=replace(plan.recipe, sampling=sampling))
        limits = plan.limits(None, max_new_tokens=None, max_total_tokens=Task.max_total_tokens)
        if limits.budget is not None and limits.budget.warning:
            warnings.warn(limits.budget.warning, stacklevel=3)
        if max_new_tokens is not None:
            limits = replace(limits, max_new_tokens=check_option("max_new_tokens", max_new_tokens))
        encoded = self._encoded(prompts, raw)
        samples = plan.recipe.samples or 1 if samples is None else check_option("samples", samples)
        requests = [
            Request(f"prompts/{index}/{sample}", token_ids, f"prompts/{index}", sample, limits.max_new_tokens)
            for index, token_ids in enumerate(encoded)
            for sample in range(samples)
        ]
        # Each request brings its own limit, so that rows as long serve other limits too.
        demand = Demand.of(replace(limits, max_new_tokens=None), requests)
        rows = plan.settings(demand, max_num_seqs=len(requests))
        shape = rows.cache_shape(plan.facts, plan.policy, plan.backend, plan.ops)
        key = (plan.recipe.sampling, record, shape)
        if self._engine is None or self._engine_key != key:
            self.release()  # so that its memory counts as free
            factory = EngineFactory(plan, beside=self)
            memory = factory.memory([demand], plan.recipe.slots)
            self._engine_key = key
            self._engine = factory.engine(
                demand,
                max_num_seqs=memory.max_num_seqs,
                compiled=factory.decode_path(0).compiled,
                record_cuts=record[1],
                run_ahead=False if any(record) else None,
            )
        self._events = self._stream_of(self._engine, requests)
        return requests, self._events

    def _stream_of(self, engine: Engine, requests: Sequence[Request]) -> Generator[Event]:
        try:
            yield from engine.stream(requests)
        except Exception:
            self._engine = None  # whatever has failed, the next call begins with a new one
            raise

    def _encoded(self, prompts: Any, raw: bool) -> list[tuple[int, ...]]:
        """Token ids of one prompt or several, in any iterable."""
        try:
            listed = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
            if listed and (isinstance(listed[0], Mapping) or hasattr(listed[0], "__index__")):
                listed = [listed]
            return [self._token_ids(prompt, raw) for prompt in listed]
        except (TypeError, KeyError, AttributeError) as error:
            kinds = "a text, a list of messages with role and content, or a list of token ids"
            raise ConfigError(f"a prompt must be {kinds} ({first_line(error)})") from error

    def _token_ids(self, prompt: Any, raw: bool) -> tuple[int, ...]:
        if isinstance(prompt, str) or not all(hasattr(item, "__index__") for item in prompt):
            return self.encode(prompt, raw=raw).token_ids
        vocabulary, token_ids = self.plan.facts.vocabulary, tuple(map(operator.index, prompt))
        if not all(0 <= token_id < vocabulary for token_id in token_ids):
            raise ConfigError(f"a prompt's token ids are not all from 0 to {vocabulary - 1:,}: use this model's own")
        return token_ids

    def _output(self, completion: Completion, positions: Tensor | None = None, cuts: tuple[Cut, ...] = ()) -> Output:
        return Output(
            **vars(completion), text=self.tokenizer.decode(completion.token_ids), positions=positions, cut_records=cuts
        )


def _index(request: Request) -> int:
    return int(request.problem_id.partition("/")[2])
