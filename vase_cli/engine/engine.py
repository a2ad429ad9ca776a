"""Slots: admit -> prefill -> decode -> cut -> emit.

A fixed number of slots, each a row of the static cache. A finished sequence frees its slot for the next
request at once (continuous batching). Rows are packed from slot 0 with their own lengths; a sequence is
prefilled by itself and every decode step runs over all slots, so the shape of all arithmetic, and with
counter-based randomness every token, is the same whoever the neighbours are.

On a GPU the host runs one step ahead: it launches a step before it has read the tokens of the one before, which it
can, as lengths and limits are known without them. A text that ends with an end token is therefore computed one step
too far, and what that step made is dropped.

Letters: B slots, S cached tokens a row can hold (budget + W), W window (also the eviction interval), V vocabulary.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from vase_cli import kernels
from vase_cli.attention.base import AttentionBackend
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import CutSubject, Cutter
from vase_cli.engine.decoding import DecodeLoop, Readback, SlotState, StepTimer, set_row
from vase_cli.engine.requests import Completion, EngineStats, FinishReason, NewTokens, Notice, Request
from vase_cli.engine.sampling import sample
from vase_cli.engine.settings import EngineSettings, check_settings
from vase_cli.engine.steps import PrefillStep
from vase_cli.errors import ConfigError, ModelError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.models.language_model import LanguageModel
from vase_cli.randomness import stream_key


@dataclass
class _Sequence:
    """A running text, as far as it is launched; its tokens may still be on their way from the device."""

    request: Request
    row: int
    eviction_key: int
    started_s: float
    token_ids: list[int] = field(default_factory=list)
    launched: int = 0
    cached_tokens: int = 0
    cuts: int = 0
    finished: bool = False

    @property
    def launched_text(self) -> int:
        """Tokens of text, those on their way included."""
        return len(self.request.prompt_token_ids) + self.launched


@dataclass(frozen=True)
class _Launched:
    """A sequence as it stood after a step."""

    sequence: _Sequence
    cached_tokens: int
    cuts: int


@dataclass(frozen=True)
class _Flight:
    """A prefill or a decode step whose results are on their way.

    Attributes:
        launched: the sequences in it.
        rows: where each one's token stands in the results.
        cut_rows: rows that were cut, in the order of their flags.
        readback: tokens, finite flags and the first bad layer of each cut row.
        prefill: start and end of a prefill; None for a decode step.
    """

    launched: tuple[_Launched, ...]
    rows: tuple[int, ...]
    cut_rows: tuple[int, ...]
    readback: Readback
    prefill: "tuple[torch.cuda.Event, torch.cuda.Event] | float | None" = None


class Engine:
    """Generates texts for requests with one model, one eviction method and one cache.

    Attributes:
        settings: as given; ``slots`` shrinks where memory runs out.
        cache: the static cache; its size never changes while memory lasts.
        stats: see :class:`EngineStats`.
        timer: times of each step, if asked for.
    """

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
    ) -> None:
        """Allocate the cache.

        Args:
            model, policy, backend, settings: what generates, and how.
            timed: keep the time of each step.
            observer: told of each finished text, with the values that its row holds: (L, T, H, D) in storage order,
                a view that lives until it returns. For ``full`` that is the text order, the last token left out; with
                a method that evicts, the step in flight may have cut the row once more.
            thresholds: (L, H) float32 on the model's device, for a method that reads them.

        Raises:
            ConfigError: settings that do not fit the method, or a backend that does not fit the model.
        """
        check_settings(policy, settings)
        if refusal := backend.refusal(model.device, model.dtype, model.facts.shape.head_dim):
            raise ConfigError(refusal)
        self.settings = settings
        self.stats = EngineStats()
        self.timer = StepTimer(model.device) if timed else None
        self._model = model
        self._policy = policy
        self._backend = backend
        self._observer = observer
        self._thresholds = thresholds
        self._lag = 1 if model.device.type == "cuda" else 0
        model.reserve(settings.max_total_tokens)
        try:
            self._build()
        except torch.OutOfMemoryError as error:
            asked = str(error).splitlines()[0]
            raise ModelError(
                f"out of memory for a cache of {settings.slots} slots ({asked}): use fewer --slots, or a smaller "
                "budget or limit"
            ) from error

    def _build(self) -> None:
        """Allocate the cache and what stands beside it, for ``settings.slots`` rows, all idle."""
        settings, model = self.settings, self._model
        shape = settings.cache_shape(
            model.facts.shape,
            self._policy,
            model.dtype.itemsize,
            log_sums=self._backend.leaves_log_sums and model.usual_scale,
            ranges=kernels.usable(torch.empty(0, device=model.device)),
        )
        self.cache = StaticCache(shape, model.dtype, model.device)
        self._cutter: Cutter | None = None
        if self._policy.evicts and settings.budget is not None and shape.tokens == settings.budget + settings.window:
            self._cutter = Cutter(self._policy, self.cache, settings.budget, settings.window, self._thresholds)
        self._state = SlotState(settings.slots, model.device)
        self._loop: DecodeLoop | None = None
        self._sequences: list[_Sequence | None] = [None] * settings.slots
        self._flights: deque[_Flight] = deque()
        self._notices: list[str] = []

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield each request's completion as it finishes; requests are taken only when a slot is free."""
        for event in self.stream(requests):
            if isinstance(event, Completion):
                yield event

    def held(self) -> dict[str, tuple[int, int]]:
        """Cached tokens per KV head and cuts so far, by the id of each running request."""
        running = [sequence for sequence in self._sequences if sequence is not None]
        return {sequence.request.id: (sequence.cached_tokens, sequence.cuts) for sequence in running}

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
                    memory_error = str(error).splitlines()[0]
                if memory_error:  # outside of the handler, whose traceback keeps tensors alive
                    yield self._shrink(waiting, memory_error)
        finally:
            self._flights.clear()
            for row in range(len(self._sequences)):
                self._free(row)

    @torch.inference_mode()
    def occupy(self, requests: Sequence[Request], cached_tokens: Sequence[int]) -> None:
        """Fill the first rows as if these requests were prefilled, with random states, for benchmarks.

        Args:
            requests: one for each row.
            cached_tokens: how many tokens each row holds, at most S.
        """
        self._prepared()
        for states in (self.cache.keys, self.cache.values, self.cache.queries):
            if states is not None:
                states.normal_()
        for row, (request, held) in enumerate(zip(requests, cached_tokens, strict=True)):
            sequence = _Sequence(request, row, self._stream_key(request, "eviction"), time.perf_counter())
            sequence.cached_tokens = held
            self._sequences[row] = sequence
            self.cache.reset(row)
            self._activate(sequence)
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
                if refusal := self._prompt_refusal(len(request.prompt_token_ids)):
                    waiting.popleft()
                    refused = _Sequence(request, row, 0, time.perf_counter())
                    yield self._completion(_Launched(refused, 0, 0), "error", f"{request.id}: {refusal}")
                    continue
                self._admit(request, row)
                waiting.popleft()
                if not self._lag:
                    yield from self._read(self._flights.popleft())
        running = [one for one in self._sequences if one is not None and not self._at_limit(one)]
        if running:
            if waiting:
                self.stats.queued_slot_steps += self.settings.slots
                self.stats.queued_busy_slot_steps += len(running)
            self._decode(loop, running)
        ahead = self._lag if running else 0
        while sum(flight.prefill is None for flight in self._flights) > ahead or (self._flights and not ahead):
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
        prompt_tokens = len(request.prompt_token_ids)
        started = time.perf_counter()
        device, cutter = self._model.device, self._cutter
        sequence = _Sequence(request, row, self._stream_key(request, "eviction"), started)
        subject = CutSubject(row, sequence.eviction_key, prompt_tokens, prompt_tokens)
        step = PrefillStep(self.cache, self._backend, cutter, subject)
        start = self._event()
        self.cache.reset(row)
        token_ids = torch.tensor(request.prompt_token_ids, dtype=torch.int64)
        if self._lag:
            token_ids = token_ids.pin_memory().to(device, non_blocking=True)
        logits = self._model.prefill(token_ids, step)
        set_row(self._state.token_keys, row, self._stream_key(request, "tokens"))
        token_keys = self._state.token_keys[row : row + 1]
        positions = torch.full_like(token_keys, prompt_tokens)
        token, finite = sample(logits, self.settings.sampling, token_keys, positions)
        sequence.cached_tokens = prompt_tokens
        results = [token, finite.long()]
        cut = bool(step.finite) and cutter is not None
        if cut:
            results.append(first_false(torch.cat(step.finite))[None])
            sequence.cached_tokens = cutter.budget if cutter is not None else prompt_tokens
            sequence.cuts += 1
            self.stats.cuts += 1
        readback = Readback(results)
        self._state.tokens[row : row + 1] = token
        sequence.launched = 1
        self._sequences[row] = sequence
        self._activate(sequence)
        end = self._event()
        launched = _Launched(sequence, sequence.cached_tokens, sequence.cuts)
        duration = time.perf_counter() - started if start is None or end is None else (start, end)
        self._flights.append(_Flight((launched,), (0,), (row,) if cut else (), readback, duration))

    def _activate(self, sequence: _Sequence) -> None:
        """Let a row take part in the next steps, unless its text is at its limit already."""
        row = sequence.row
        set_row(self.cache.lengths, row, sequence.cached_tokens)
        set_row(self._state.text_positions, row, len(sequence.request.prompt_token_ids))
        if not self._at_limit(sequence):
            set_row(self._state.active, row, 1)

    def _decode(self, loop: DecodeLoop, running: Sequence[_Sequence]) -> None:
        """Launch one step of all rows, and the cuts that are due after it."""
        if self.timer is not None:
            self.timer.mark()
        loop.step(max(sequence.cached_tokens for sequence in running) + 1)
        for sequence in running:
            sequence.cached_tokens += 1
        if self.timer is not None:
            self.timer.mark()
        results = list(self._state.result.unbind())
        due = []
        if self._cutter is not None:
            full = self._cutter.budget + self._cutter.window
            due = [sequence for sequence in running if sequence.cached_tokens == full]
            if due:
                results.append(self._cut(self._cutter, due))
        if self.timer is not None:
            self.timer.mark()
        for sequence in running:
            sequence.launched += 1
            if self._at_limit(sequence):
                set_row(self._state.active, sequence.row, 0)
        self.stats.decode_steps += 1
        launched = tuple(_Launched(sequence, sequence.cached_tokens, sequence.cuts) for sequence in running)
        rows = tuple(sequence.row for sequence in running)
        self._flights.append(_Flight(launched, rows, tuple(sequence.row for sequence in due), Readback(results)))

    def _cut(self, cutter: Cutter, due: Sequence[_Sequence]) -> torch.Tensor:
        subjects = [
            CutSubject(one.row, one.eviction_key, len(one.request.prompt_token_ids), one.launched_text) for one in due
        ]
        bad_layers = cutter.cut(subjects)
        for sequence in due:
            set_row(self.cache.lengths, sequence.row, cutter.budget)
            sequence.cached_tokens = cutter.budget
            sequence.cuts += 1
        self.stats.cuts += len(due)
        return bad_layers

    def _read(self, flight: _Flight) -> Iterator[NewTokens | Completion]:
        """Take what a prefill or a step has made."""
        tokens, finite, *flags = flight.readback.read()
        bad_layers = dict(zip(flight.cut_rows, *flags, strict=True)) if flags else {}
        now = time.perf_counter()
        if flight.prefill is None:
            self.stats.decode_s += now - self._read_s
            self._read_s = now
        else:
            seconds = _seconds(flight.prefill)
            self.stats.prefill_s += seconds
            self.stats.prefill_tokens += len(flight.launched[0].sequence.request.prompt_token_ids)
            self._read_s += seconds
        running = [
            (launched, tokens[place], finite[place])
            for launched, place in zip(flight.launched, flight.rows, strict=True)
            if not launched.sequence.finished
        ]
        if flight.prefill is None:
            self.stats.decode_tokens += len(running)
        layers = self._model.facts.shape.layers
        new = []
        checked = []
        for launched, token, logits_finite in running:
            layer = bad_layers.get(launched.sequence.row, layers)
            failed = layer < layers or not logits_finite
            checked.append((launched, token, failed, layer if layer < layers else None))
            if not failed or flight.prefill is None:
                new.append((launched.sequence.request, token))
        if new:
            yield NewTokens(tuple(new))
        for launched, token, failed, layer in checked:  # each by itself: one that fails loses no other's completion
            if failed:
                yield self._fail(launched, layer)
            else:
                yield from self._take(launched, token)

    def _take(self, launched: _Launched, token_id: int) -> list[Completion]:
        """Add a token to its text and finish the text if it ends here."""
        sequence = launched.sequence
        sequence.token_ids.append(token_id)
        reason: FinishReason
        if token_id in self._model.eos_token_ids:
            reason = "stop"
        elif self._over(sequence, len(sequence.token_ids)):
            reason = "length"
        else:
            return []
        completion = self._completion(launched, reason, None)
        if self._observer is not None:
            self._observer(completion, self.cache.values[:, sequence.row, : launched.cached_tokens])
        self._free(sequence.row)
        return [completion]

    def _fail(self, launched: _Launched, layer: int | None) -> Completion:
        """End a text whose states are not finite, naming the first such layer; its row is cleaned for the next one.

        ``layer`` is what a cut has found. What the row still holds may show an earlier one.
        """
        sequence = launched.sequence
        found = [number for number in (layer, self._first_layer_not_finite(sequence)) if number is not None]
        layer = min(found, default=None)
        what = "the logits" if layer is None else f"keys or values of layer {layer}"
        text_tokens = len(sequence.request.prompt_token_ids) + len(sequence.token_ids)
        message = (
            f"{sequence.request.id}: {what} are not finite after {text_tokens:,} tokens of text; "
            "try --dtype bfloat16 or float32, and check the weights"
        )
        self._free(sequence.row)
        self.cache.clear(sequence.row)
        return self._completion(launched, "error", message)

    def _first_layer_not_finite(self, sequence: _Sequence) -> int | None:
        held = slice(0, sequence.cached_tokens)
        for layer in range(self.cache.shape.layers):
            for states in (self.cache.keys, self.cache.values):
                if not bool(states[layer, sequence.row, held].isfinite().all()):
                    return layer
        return None

    def _shrink(self, waiting: deque[Request], memory_error: str) -> Notice:
        """Start again with three quarters of the slots; unfinished requests go back to the head of the queue."""
        unfinished = sorted((one for one in self._sequences if one is not None), key=lambda one: one.started_s)
        waiting.extendleft(sequence.request for sequence in reversed(unfinished))
        self._sequences = []  # nothing to free, should the rebuilding fail
        self._flights.clear()
        while memory_error:
            if self.settings.slots == 1:
                raise ModelError(f"out of memory with one slot ({memory_error}): use a smaller budget, limit or model")
            self.settings = replace(self.settings, slots=self.settings.slots * 3 // 4)
            for name in ("cache", "_cutter", "_loop", "_state"):
                self.__dict__.pop(name, None)
            if self._model.device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            try:
                self._build()
                memory_error = ""
            except torch.OutOfMemoryError as error:
                memory_error = str(error).splitlines()[0]
        slots = "one slot" if self.settings.slots == 1 else f"{self.settings.slots} slots"
        return Notice(
            f"out of memory: going on with {slots}; unfinished texts ({len(unfinished)}) start again, finished ones "
            "are kept"
        )

    def _free(self, row: int) -> None:
        sequence = self._sequences[row]
        if sequence is None:
            return
        sequence.finished = True
        self._sequences[row] = None
        self._state.clear(row)
        set_row(self.cache.lengths, row, 0)

    def _completion(self, launched: _Launched, reason: FinishReason, error: str | None) -> Completion:
        sequence = launched.sequence
        return Completion(
            request=sequence.request,
            token_ids=tuple(sequence.token_ids),
            finish_reason=reason,
            error=error,
            cuts=launched.cuts,
            cached_tokens=launched.cached_tokens,
            latency_s=time.perf_counter() - sequence.started_s,
        )

    def _prompt_refusal(self, prompt_tokens: int) -> str | None:
        if prompt_tokens == 0:
            return "the prompt is empty"
        if prompt_tokens >= self.settings.max_total_tokens:
            return (
                f"the prompt has {prompt_tokens:,} tokens, which leaves nothing of the limit of "
                f"{self.settings.max_total_tokens:,}; raise --max-total-tokens"
            )
        return None

    def _at_limit(self, sequence: _Sequence) -> bool:
        """Whether the last token that the limits allow is launched."""
        return self._over(sequence, sequence.launched)

    def _over(self, sequence: _Sequence, new_tokens: int) -> bool:
        settings, request = self.settings, sequence.request
        return (
            new_tokens in (settings.max_new_tokens, request.max_new_tokens)
            or len(request.prompt_token_ids) + new_tokens >= settings.max_total_tokens
        )

    def _event(self) -> "torch.cuda.Event | None":
        """A mark in the device's work; None on a CPU."""
        if not self._lag:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stream_key(self, request: Request, stream: Literal["tokens", "eviction"]) -> int:
        return stream_key(self.settings.seed, request.problem_id, request.sample, stream)


def _seconds(prefill: "tuple[torch.cuda.Event, torch.cuda.Event] | float") -> float:
    """How long a prefill took; waits for its end, which comes a little after that of its readback."""
    if isinstance(prefill, float):
        return prefill
    start, end = prefill
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


def first_false(flags: torch.Tensor) -> torch.Tensor:
    """Index of the first False of a bool vector, its length if all are True; int64, on the device."""
    numbers = torch.arange(flags.shape[0], device=flags.device)
    return torch.where(flags, flags.shape[0], numbers).amin()
