"""Slots: admit -> prefill -> decode -> cut -> emit.

A fixed number of slots, each a row of the static cache. A finished text frees its slot for the next
request at once (continuous batching). Rows are packed from slot 0 with their own lengths; a text is
prefilled by itself and every decode step runs over all slots, so the shape of all arithmetic, and with
counter-based randomness every token, is the same whoever the neighbours are.

On a GPU the host runs one step ahead: it launches a step before it has read the tokens of the one before, which it
can, as lengths and limits are known without them. A text that ends with an end token is therefore computed one step
too far, and what that step made is dropped.

Shapes: B slots, L layers, S cached tokens a row can hold, H KV heads, D head dim, T tokens of one row.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch

from vase_cli.attention.base import AttentionBackend
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import CutSubject, Cutter
from vase_cli.engine.decoding import DecodeLoop, Readback, SlotState, set_row
from vase_cli.engine.requests import Completion, EngineStats, FinishReason, NewTokens, Notice, Request
from vase_cli.engine.sampling import sample
from vase_cli.engine.sequences import Flight, Launched, RunningText
from vase_cli.engine.settings import EngineSettings, check_settings
from vase_cli.engine.steps import PrefillStep
from vase_cli.engine.timing import StepTimer, mark, milliseconds
from vase_cli.errors import ConfigError, ModelError, first_line
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.models.language_model import LanguageModel
from vase_cli.randomness import stream_key


class Engine:
    """Generates texts for requests with one model, one eviction method and one cache.

    Attributes:
        settings: as given; ``slots`` shrinks where memory runs out.
        cache: the static cache; its size never changes while memory lasts.
        stats: see :class:`EngineStats`.
        timer: times of each step, if asked for.
    """

    cache: StaticCache
    _state: SlotState

    def __init__(
        self,
        model: LanguageModel,
        policy: EvictionPolicy,
        backend: AttentionBackend,
        settings: EngineSettings,
        *,
        timed: bool = False,
        observer: Callable[[Completion, torch.Tensor], None] | None = None,
        thresholds: torch.Tensor | None = None,
        run_ahead: bool | None = None,
    ) -> None:
        """Allocate the cache.

        Args:
            model, policy, backend, settings: what generates, and how.
            timed: keep the time of each step.
            observer: called with each finished text and the values that its row holds: (L, T, H, D) in storage order,
                a view that lives until it returns. For ``full`` that is the text order, the last token left out; with
                a method that evicts, the step in flight may have cut the row once more.
            thresholds: (L, H) float32 on the model's device, for a method that reads them.
            run_ahead: whether a step is launched before the one before it is read; None is on CUDA only.

        Raises:
            ConfigError: settings that do not fit the method, or a backend that does not fit the model.
            ModelError: out of memory.
        """
        check_settings(policy, settings)
        if refusal := backend.refusal(model.device, model.facts.torch_dtype, model.facts.shape.head_dim):
            raise ConfigError(refusal)
        self.settings = settings
        self.stats = EngineStats()
        self.timer = StepTimer(model.device, on=timed)
        self._model = model
        self._policy = policy
        self._backend = backend
        self._observer = observer
        self._thresholds = thresholds
        self._cuda = model.device.type == "cuda"
        self._run_ahead = self._cuda if run_ahead is None else run_ahead
        self._cutter: Cutter | None = None
        self._loop: DecodeLoop | None = None
        self._sequences: list[RunningText | None] = []
        self._flights: deque[Flight] = deque()
        self._notices: list[str] = []
        self._read_s = 0.0
        model.reserve(settings.max_total_tokens)
        try:
            self._allocate()
        except torch.OutOfMemoryError as error:
            asked = first_line(error)
            raise ModelError(
                f"out of memory for a cache of {settings.slots} slots ({asked}): use fewer --slots, or a smaller "
                "budget or limit"
            ) from error

    def _allocate(self) -> None:
        """Make the cache and what stands beside it, for ``settings.slots`` rows, all idle; all of it or nothing."""
        settings, model = self.settings, self._model
        shape = settings.cache_shape(
            model.facts, self._policy, self._backend, model.device, usual_scale=model.usual_scale
        )
        cache = StaticCache(shape, model.facts.torch_dtype, model.device)
        cutter = None
        if settings.budget is not None and settings.cut_at is not None:
            cutter = Cutter(self._policy, cache, settings.budget, settings.window, self._thresholds)
        self._state = SlotState(settings.slots, model.device)
        self.cache, self._cutter = cache, cutter
        self._sequences = [None] * settings.slots

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield each request's completion as it finishes; requests are taken only when a slot is free."""
        for event in self.stream(requests):
            if isinstance(event, Completion):
                yield event

    def held(self) -> dict[str, tuple[int, int]]:
        """Cached tokens per KV head and cuts so far, by the id of each running request."""
        running = [text for text in self._sequences if text is not None]
        return {text.request.id: (text.cached_tokens, text.cuts) for text in running}

    @torch.inference_mode()
    def stream(self, requests: Iterable[Request]) -> Iterator[NewTokens | Completion | Notice]:
        """As :meth:`generate`, and the tokens of every moment as they are made.

        Raises:
            ModelError: out of memory with a single slot.
        """
        waiting = deque(requests)
        self._read_s = time.perf_counter()
        try:
            while waiting or self._flights or any(self._sequences):
                memory_error = ""
                try:
                    yield from self._advance(waiting)
                except torch.OutOfMemoryError as error:
                    memory_error = first_line(error)
                if memory_error:  # outside of the handler, whose traceback keeps tensors alive
                    yield self._shrink(waiting, memory_error)
        finally:
            self._flights.clear()
            for row in range(len(self._sequences)):
                self._free(row)

    @torch.inference_mode()
    def occupy(self, requests: Sequence[Request], cached_tokens: Sequence[int]) -> None:
        """Fill the first rows as if these requests were prefilled, with random states, for benchmarks.

        There is one request, and one number of cached tokens, at most S, for each row.
        """
        self._prepared()
        for states in (self.cache.keys, self.cache.values, self.cache.queries):
            if states is not None:
                states.normal_()
        for row, (request, held) in enumerate(zip(requests, cached_tokens, strict=True)):
            text = RunningText(request, row, self._stream_key(request, "eviction"), time.perf_counter())
            text.cached_tokens = held
            self._sequences[row] = text
            self.cache.reset(row)
            self._activate(text)
            set_row(self._state.tokens, row, 1)
            set_row(self._state.token_keys, row, self._stream_key(request, "tokens"))

    def _advance(self, waiting: deque[Request]) -> Iterator[NewTokens | Completion | Notice]:
        """Fill the free rows, launch a step, and read what the host is due."""
        loop = self._prepared()
        while self._notices:
            yield Notice(self._notices.pop(0))
        for row in range(self.settings.slots):
            while waiting and self._sequences[row] is None:
                request = waiting[0]
                if refusal := self.settings.prompt_refusal(len(request.prompt_token_ids)):
                    waiting.popleft()
                    refused = Launched(RunningText(request, row, 0, time.perf_counter()), 0, 0)
                    yield refused.completion("error", f"{request.id}: {refusal}")
                    continue
                self._admit(request, row)
                waiting.popleft()
                if not self._run_ahead:
                    yield from self._read(self._flights.popleft())
        running = [text for text in self._sequences if text is not None and not self._at_limit(text)]
        if running:
            self._decode(loop, running)
        ahead = self._run_ahead and bool(running)  # then the step just launched stays in flight
        while self._flights and not (ahead and sum(flight.prefill is None for flight in self._flights) <= 1):
            yield from self._read(self._flights.popleft())

    def _prepared(self) -> DecodeLoop:
        """The decode loop, compiled and captured while all rows are idle: doing so runs some steps."""
        if self._loop is None:
            self._loop = DecodeLoop(self._model, self.cache, self._backend, self._state, self.settings.sampling)
            self._notices += self._loop.prepare()
            if self._cutter is not None:
                self._notices += self._cutter.prepare()
            self._read_s = time.perf_counter()  # what is compiled and captured is not decoding
        return self._loop

    def _admit(self, request: Request, row: int) -> None:
        """Launch a prompt's prefill into a free row, and the draw of its first token."""
        text = RunningText(request, row, self._stream_key(request, "eviction"), time.perf_counter())
        prompt_tokens = text.cached_tokens = text.prompt_tokens
        subject = CutSubject(row, text.eviction_key, prompt_tokens, prompt_tokens)
        step = PrefillStep(self.cache, self._backend, self._cutter, subject)
        start = mark(self._model.device)
        self.cache.reset(row)
        token_ids = torch.tensor(request.prompt_token_ids, dtype=torch.int64)
        if self._cuda:
            token_ids = token_ids.pin_memory()
        logits = self._model.prefill(token_ids.to(self._model.device, non_blocking=self._cuda), step)
        set_row(self._state.token_keys, row, self._stream_key(request, "tokens"))
        token_keys = self._state.token_keys[row : row + 1]
        positions = torch.full_like(token_keys, prompt_tokens)
        token, finite = sample(logits, self.settings.sampling, token_keys, positions)
        finite, bad_layer = finite.long(), step.bad_layer()
        if bad_layer is not None:
            self._note_cut(text)
        results = Readback(token, finite, bad_layer)
        self._state.tokens[row : row + 1] = token
        text.launched = 1
        self._sequences[row] = text
        self._activate(text)
        cut = None if bad_layer is None else 0
        launched = Launched(text, text.cached_tokens, text.cuts, cut=cut)
        self._flights.append(Flight((launched,), results, (start, mark(self._model.device))))

    def _activate(self, text: RunningText) -> None:
        """Let a row take part in the next steps, unless its text is at its limit already."""
        set_row(self.cache.lengths, text.row, text.cached_tokens)
        set_row(self._state.text_positions, text.row, text.prompt_tokens)
        if not self._at_limit(text):
            set_row(self._state.active, text.row, 1)

    def _decode(self, loop: DecodeLoop, running: Sequence[RunningText]) -> None:
        """Launch one step of all rows, and the cuts that are due after it."""
        cut_at = self.settings.cut_at
        self.timer.start_step()
        loop.step(max(text.cached_tokens for text in running) + 1)
        for text in running:
            text.cached_tokens += 1
        with self.timer.cuts():
            due = [text for text in running if text.cached_tokens == cut_at]
            bad_layers = self._cut(due) if due else None
        for text in running:
            text.launched += 1
            if self._at_limit(text):
                set_row(self._state.active, text.row, 0)
        self.stats.decode_steps += 1
        places = {text.row: place for place, text in enumerate(due)}
        launched = tuple(
            Launched(text, text.cached_tokens, text.cuts, text.row, places.get(text.row)) for text in running
        )
        tokens, finite = self._state.result.unbind()
        self._flights.append(Flight(launched, Readback(tokens, finite, bad_layers)))

    def _cut(self, due: Sequence[RunningText]) -> torch.Tensor:
        """Cut rows that are full; the first bad layer of each, see :meth:`Cutter.cut`."""
        assert self._cutter is not None
        subjects = [
            CutSubject(text.row, text.eviction_key, text.prompt_tokens, text.prompt_tokens + text.launched)
            for text in due
        ]
        bad_layers = self._cutter.cut(subjects)
        for text in due:
            self._note_cut(text)
            set_row(self.cache.lengths, text.row, text.cached_tokens)
        return bad_layers

    def _note_cut(self, text: RunningText) -> None:
        assert self.settings.budget is not None
        text.cached_tokens = self.settings.budget
        text.cuts += 1
        self.stats.cuts += 1

    def _read(self, flight: Flight) -> Iterator[NewTokens | Completion]:
        """Take what a prefill or a step has made."""
        tokens, finite, bad_layers = flight.results.read()
        running = [launched for launched in flight.launched if not launched.text.finished]
        now = time.perf_counter()
        if flight.prefill is None:
            self.stats.decode_s += now - self._read_s
            self.stats.decode_tokens += len(running)
            self._read_s = now
        else:
            seconds = milliseconds(*flight.prefill) / 1000.0
            self.stats.prefill_s += seconds
            self.stats.prefill_tokens += flight.launched[0].text.prompt_tokens
            self._read_s += seconds
        layers = self.cache.shape.layers
        outcomes: list[tuple[Launched, int, int | None]] = []
        for launched in running:
            layer = layers if launched.cut is None else bad_layers[launched.cut]
            failed = layer < layers or not finite[launched.place]
            outcomes.append((launched, tokens[launched.place], layer if failed else None))
        announced = [outcome for outcome in outcomes if outcome[2] is None or flight.prefill is None]
        if announced:
            yield NewTokens(tuple((launched.text.request, token) for launched, token, _ in announced))
        for launched, token, bad_layer in outcomes:  # each by itself: one that fails loses no other's completion
            if bad_layer is None:
                yield from self._take(launched, token)
            else:
                yield self._fail(launched, bad_layer)

    def _take(self, launched: Launched, token_id: int) -> Iterator[Completion]:
        """Add a token to its text and finish the text if it ends here."""
        text = launched.text
        text.token_ids.append(token_id)
        reason: FinishReason
        if token_id in self._model.eos_token_ids and not text.request.ignore_eos:
            reason = "stop"
        elif self.settings.ends(text.request, len(text.token_ids)):
            reason = "length"
        else:
            return
        completion = launched.completion(reason)
        if self._observer is not None:
            self._observer(completion, self.cache.values[:, text.row, : launched.cached_tokens])
        self._free(text.row)
        yield completion

    def _fail(self, launched: Launched, bad_layer: int) -> Completion:
        """End a text whose states are not finite, naming the first such layer; its row is cleaned for the next one.

        ``bad_layer`` is what a cut has found, or L. What the row still holds may show an earlier one.
        """
        text = launched.text
        bad_layer = min(bad_layer, self.cache.first_bad_layer(text.row, text.cached_tokens))
        where = f"keys or values of layer {bad_layer}" if bad_layer < self.cache.shape.layers else "the logits"
        text_tokens = text.prompt_tokens + len(text.token_ids)
        message = (
            f"{text.request.id}: {where} are not finite after {text_tokens:,} tokens of text; "
            "try --dtype bfloat16 or float32, and check the weights"
        )
        self._free(text.row)
        self.cache.clear(text.row)
        return launched.completion("error", message)

    def _shrink(self, waiting: deque[Request], memory_error: str) -> Notice:
        """Start again with three quarters of the slots; unfinished requests go back to the head of the queue."""
        unfinished = [text for text in self._sequences if text is not None]
        unfinished.sort(key=lambda text: text.started_s)
        waiting.extendleft(text.request for text in reversed(unfinished))
        self._sequences = []  # nothing to free, should the rebuilding fail
        self._flights.clear()
        self._cutter = self._loop = None
        del self.cache, self._state
        while memory_error:
            if self.settings.slots == 1:
                raise ModelError(f"out of memory with one slot ({memory_error}): use a smaller budget, limit or model")
            self.settings = replace(self.settings, slots=self.settings.slots * 3 // 4)
            if self._cuda:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            try:
                self._allocate()
                memory_error = ""
            except torch.OutOfMemoryError as error:
                memory_error = first_line(error)
        slots = "one slot" if self.settings.slots == 1 else f"{self.settings.slots} slots"
        return Notice(
            f"out of memory: going on with {slots}; unfinished texts ({len(unfinished)}) start again, finished ones "
            "are kept"
        )

    def _free(self, row: int) -> None:
        text = self._sequences[row]
        if text is not None:
            text.finished = True
            self._sequences[row] = None
            self._state.clear(row)
            set_row(self.cache.lengths, row, 0)

    def _at_limit(self, text: RunningText) -> bool:
        """Whether the last token that the limits allow is launched."""
        return self.settings.ends(text.request, text.launched)

    def _stream_key(self, request: Request, stream: Literal["tokens", "eviction"]) -> int:
        return stream_key(self.settings.seed, request.problem_id, request.sample, stream)
