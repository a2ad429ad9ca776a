"""The engine: schedule, launch a step, process the output of the step before it.

A fixed number of rows of the static cache; a finished sequence frees its row for the next request at once
(continuous batching). Rows are packed from storage slot 0 with their own lengths; a text is
prefilled without regard to those beside it and every decode step runs over all rows, so all arithmetic, and with
counter-based randomness every token, is the same whoever the neighbors are.

On a GPU the host runs one step ahead: it launches a step before it has read the tokens of the one before, which it
can, as lengths and limits are known without them. A text that ends with an end token is therefore computed one step
too far, and what that step made is dropped.

Shapes: B rows, L layers, S cached tokens a row can hold, H KV heads, D head dim, T tokens of one row.
"""

import time
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from vase_cli.attention.base import AttentionBackend, upload
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import Cut, CutSubject, Cutter
from vase_cli.engine.decoding import DecodeLoop, PendingOutput, SlotState, set_row
from vase_cli.engine.plan import EngineSettings, check_settings
from vase_cli.engine.prefill import Prefill, next_pack
from vase_cli.engine.requests import (
    Completion,
    EngineStats,
    Event,
    FinishedRow,
    FinishReason,
    NewTokens,
    Notice,
    Request,
    RowCut,
)
from vase_cli.engine.scheduler import Scheduler
from vase_cli.engine.sequence import Batch, BatchEntry, Sequence
from vase_cli.engine.timing import StepTimer, milliseconds
from vase_cli.errors import ModelError, first_line
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.kernels.ops import TorchOps, select_ops
from vase_cli.models.language_model import LanguageModel
from vase_cli.randomness import stream_key


class Engine:
    """Generates texts for requests with one model, one eviction method and one cache.

    Attributes:
        settings: as given; ``max_num_seqs`` shrinks where memory runs out.
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
        thresholds: torch.Tensor | None = None,
        record_cuts: bool = False,
        run_ahead: bool | None = None,
        ops: TorchOps | None = None,
    ) -> None:
        """Allocate the cache; ModelError if there is no memory for it, ConfigError if method or backend do not fit.

        Args:
            model, policy, backend, settings: what generates, and how.
            timed: keep the time of each step.
            thresholds: (L, H) float32 on the model's device, for a method that reads them.
            record_cuts: yield a :class:`RowCut` for each cut; slower, as all scores come to the host.
            run_ahead: launch a step before the one before it is read; None is on CUDA only, and not to record cuts.
            ops: what computes cuts and draws; None is :func:`select_ops`.
        """
        check_settings(policy, settings)
        backend.check(model.device, model.facts.torch_dtype, model.facts.shape.head_dim)
        self.settings = settings
        self.stats = EngineStats()
        self.timer = StepTimer(model.device, on=timed)
        self._model = model
        self._policy = policy
        self._backend = backend
        self._ops = select_ops(model.device) if ops is None else ops
        self._record_cuts = record_cuts
        self._recorded: defaultdict[int, list[Cut]] = defaultdict(list)  # of each row, until its batch is processed
        self._thresholds = thresholds
        self._cuda = model.device.type == "cuda"
        self._run_ahead = not record_cuts and (self._cuda if run_ahead is None else run_ahead)
        self._cutter: Cutter | None = None
        self._loop: DecodeLoop | None = None
        self._prefill: Prefill | None = None
        eviction_key = partial(_stream_key, settings.seed, "eviction")
        self._scheduler = Scheduler(settings.max_num_seqs, eviction_key, settings.length, self._fits)
        self._launched: deque[Batch] = deque()
        self._notices: list[str] = []
        self._read_s = 0.0
        model.reserve(settings.max_total_tokens)
        try:
            self._allocate()
        except torch.OutOfMemoryError as error:
            problem = f"out of memory for a cache of {settings.max_num_seqs} slots ({first_line(error)})"
            raise ModelError(f"{problem}: use fewer --slots, or a smaller budget or limit") from error

    def _allocate(self) -> None:
        """Make the cache and what stands beside it, for ``max_num_seqs`` rows, all idle; all of it or nothing."""
        settings, model = self.settings, self._model
        made_for = (model.facts, self._policy, self._backend, self._ops)
        shape = settings.cache_shape(*made_for, usual_scale=model.usual_scale)
        cache = StaticCache(shape, model.facts.torch_dtype, model.device, self._ops)
        cutter = None
        if settings.budget is not None and settings.cut_at is not None:
            recorded = self._recorded
            on_cut = (lambda row, cut: recorded[row].append(cut)) if self._record_cuts else None
            cutter = Cutter(self._policy, cache, settings.budget, settings.window, self._thresholds, on_cut=on_cut)
        penalized = settings.sampling.repetition_penalty != 1.0
        self._state = SlotState(settings.max_num_seqs, model.device, model.facts.vocabulary if penalized else None)
        self.cache, self._cutter = cache, cutter

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Yield each request's completion as it finishes; requests are taken only when a slot is free."""
        for event in self.stream(requests):
            if isinstance(event, Completion):
                yield event

    @torch.inference_mode()
    def stream(self, requests: Iterable[Request]) -> Generator[Event]:
        """As :meth:`generate`, and all other events; ModelError if memory runs out with a single row."""
        self._scheduler.add(requests)
        self._read_s = time.perf_counter()
        try:
            while self._scheduler.has_work or self._launched:
                memory_error = ""
                try:
                    yield from self.step()
                except torch.OutOfMemoryError as error:
                    memory_error = first_line(error)
                if memory_error:  # outside of the handler, whose traceback keeps tensors alive
                    yield self._shrink(memory_error)
        finally:
            self._launched.clear()
            self._recorded.clear()
            self._prefill = None
            self._scheduler.clear()
            for sequence in self._scheduler.running():
                self._finish(sequence)

    def step(self) -> Iterator[Event]:
        """Go on with the prompts that wait, launch a decode step, and process the output that the host is due."""
        loop = self._prepared()
        while self._notices:
            yield Notice(self._notices.pop(0))
        yield from self._fill_rows()
        if running := list(filter(self._generates, self._scheduler.running())):
            self._launched.append(self._decode(loop, running))
        ahead = self._run_ahead and bool(running)  # then the step just launched stays on its way
        while self._launched and not (ahead and sum(batch.phase == "decode" for batch in self._launched) <= 1):
            yield from self._process(self._launched.popleft())

    @torch.inference_mode()
    def occupy(self, requests: SequenceOf[Request], cached_tokens: SequenceOf[int]) -> None:
        """Fill the first rows as if these requests were prefilled, with random states, for benchmarks.

        There is one request, and one number of cached tokens, at most S, for each row.
        """
        self._prepared()
        for states in (self.cache.keys, self.cache.values, self.cache.queries):
            if states is not None:
                states.normal_()
        for row, (request, held) in enumerate(zip(requests, cached_tokens, strict=True)):
            sequence = Sequence(request, row, _stream_key(self.settings.seed, "eviction", request), cached_tokens=held)
            self._scheduler.start(sequence)
            at = upload([row], self._model.device)
            self.cache.reset(at)
            self._activate([sequence], at)
            set_row(self._state.tokens, row, 1)
            set_row(self._state.token_keys, row, _stream_key(self.settings.seed, "tokens", request))

    def _prepared(self) -> DecodeLoop:
        """The decode loop, compiled and captured while all rows are idle: doing so runs some steps."""
        if self._loop is None:
            self._loop = DecodeLoop(self._model, self.cache, self._backend, self._state, self.settings.sampling)
            self._notices += self._loop.prepare()
            if self._cutter is not None:
                self._notices += self._cutter.prepare()
            self._read_s = time.perf_counter()  # what is compiled and captured is not decoding
        return self._loop

    def _fill_rows(self) -> Iterator[Event]:
        """Launch prompts into the rows that are free; only so much of them at a time while others generate."""
        most_work, done = self.settings.prefill_chunk * self.cache.shape.layers, 0
        while not (others := any(map(self._generates, self._scheduler.running()))) or done < most_work:
            if self._prefill is None:
                packs = self._model.packs and self._backend.supports_packs
                most_tokens = self.settings.prefill_tokens if packs else 0
                sequences, refused = next_pack(self._scheduler, self.settings, self.cache.shape, most_tokens)
                for sequence, problem in refused:
                    yield BatchEntry(sequence, 0, 0).completion("error", f"{sequence.request.id}: {problem}")
                if not sequences:
                    return
                self._prefill = Prefill(self._model, self.cache, self._backend, self._cutter, sequences)
            done += self._prefill.advance(most_work - done if others else None)
            if self._prefill.logits is not None:
                self._launched.append(self._start(self._prefill))
                self._prefill = None
                if not self._run_ahead:
                    yield from self._process(self._launched.popleft())

    def _start(self, prefill: Prefill) -> Batch:
        """Launch the draw of first tokens, and let the rows of a pack take part in the next steps."""
        sequences = prefill.sequences
        keys = upload(
            [_stream_key(self.settings.seed, "tokens", seq.request) for seq in sequences], prefill.rows.device
        )
        output = prefill.draw(self.settings.sampling, keys, self._state)
        entries, cuts = [], 0
        for place, sequence in enumerate(sequences):
            sequence.cached_tokens = sequence.prompt_tokens
            sequence.num_launched = 1
            sequence.status = "running"
            cut_place = None
            if self._cutter is not None and sequence.prompt_tokens > self._cutter.budget:
                self._note_cut(sequence)
                cut_place = cuts
                cuts += 1
            entries.append(BatchEntry(sequence, sequence.cached_tokens, sequence.num_cuts, place, cut_place))
        self._activate(sequences, prefill.rows)
        return Batch("prefill", tuple(entries), output, prefill.marks)

    def _activate(self, sequences: SequenceOf[Sequence], rows: torch.Tensor) -> None:
        """Let rows, (n,) int64, take part in the next steps, but for those of texts at their limit already."""
        numbers = [(seq.cached_tokens, seq.prompt_tokens, not self._at_limit(seq)) for seq in sequences]
        lengths, positions, active = upload(numbers, rows.device).unbind(1)
        self.cache.lengths.index_copy_(0, rows, lengths.int())
        self._state.text_positions.index_copy_(0, rows, positions)
        self._state.active.index_copy_(0, rows, active.int())

    def _generates(self, sequence: Sequence) -> bool:
        """Whether a sequence is through its prefill, and not at its limit."""
        return sequence.status == "running" and not self._at_limit(sequence)

    def _decode(self, loop: DecodeLoop, running: SequenceOf[Sequence]) -> Batch:
        """Launch one step of all rows, and the cuts that are due after it."""
        cut_at = self.settings.cut_at
        self.timer.start_step()
        loop.step(max(sequence.cached_tokens for sequence in running) + 1)
        for sequence in running:
            sequence.cached_tokens += 1
        with self.timer.cuts():
            due = [sequence for sequence in running if sequence.cached_tokens == cut_at]
            bad_layers = self._cut(due) if due else None
        for sequence in running:
            sequence.num_launched += 1
            if self._at_limit(sequence):
                set_row(self._state.active, sequence.row, 0)
        self.stats.decode_steps += 1
        cut_places = {sequence.row: place for place, sequence in enumerate(due)}
        entries = [
            BatchEntry(seq, seq.cached_tokens, seq.num_cuts, seq.row, cut_places.get(seq.row)) for seq in running
        ]
        tokens, finite = self._state.result.unbind()
        return Batch("decode", tuple(entries), PendingOutput(tokens, finite, bad_layers))

    def _cut(self, due: SequenceOf[Sequence]) -> torch.Tensor:
        """Cut rows that are full; the first bad layer of each, see :meth:`Cutter.cut`."""
        assert self._cutter is not None
        subjects = [CutSubject(seq.row, seq.eviction_key, seq.prompt_tokens, seq.text_tokens) for seq in due]
        bad_layers = self._cutter.cut(subjects)
        for sequence in due:
            self._note_cut(sequence)
            set_row(self.cache.lengths, sequence.row, sequence.cached_tokens)
        return bad_layers

    def _note_cut(self, sequence: Sequence) -> None:
        assert self.settings.budget is not None
        sequence.cached_tokens = self.settings.budget
        sequence.num_cuts += 1
        self.stats.cuts += 1

    def _process(self, batch: Batch) -> Iterator[Event]:
        """Wait for a batch's output and add each token to its sequence."""
        tokens, finite, bad_layers = batch.output.read()
        entries = [entry for entry in batch.entries if entry.sequence.status != "finished"]
        now = time.perf_counter()
        if batch.marks is None:
            self.stats.decode_s += now - self._read_s
            self.stats.decode_tokens += len(entries)
            self._read_s = now
        else:
            seconds = sum(milliseconds(*part) for part in batch.marks) / 1000.0
            self.stats.prefill_s += seconds
            self.stats.prefill_tokens += sum(entry.sequence.prompt_tokens for entry in batch.entries)
            self._read_s += seconds
        layers = self.cache.shape.layers
        failed: dict[int, int] = {}  # first bad layer by row
        for entry in entries:
            bad_layer = layers if entry.cut_place is None else bad_layers[entry.cut_place]
            if bad_layer < layers or not finite[entry.place]:
                failed[entry.sequence.row] = bad_layer
        for entry in entries:
            for cut in self._recorded.pop(entry.sequence.row, ()):
                yield RowCut(entry.sequence.request, cut)
        announced = [entry for entry in entries if batch.phase == "decode" or entry.sequence.row not in failed]
        if announced:
            yield NewTokens(tuple(entry.new_token(tokens[entry.place]) for entry in announced))
        for entry in entries:  # each by itself: one that fails loses no other's completion
            if (row := entry.sequence.row) in failed:
                yield self._fail(entry, failed[row])
            else:
                yield from self._take(entry, tokens[entry.place])

    def _take(self, entry: BatchEntry, token_id: int) -> Iterator[FinishedRow | Completion]:
        """Add a token to its text and finish the text if it ends here."""
        sequence = entry.sequence
        sequence.token_ids.append(token_id)
        reason: FinishReason
        if token_id in self._model.eos_token_ids and not sequence.request.ignore_eos:
            reason = "stop"
        elif self.settings.ends(sequence.request, len(sequence.token_ids)):
            reason = "length"
        else:
            return
        completion = entry.completion(reason)
        values = self.cache.states(sequence.row)[1][:, : entry.cached_tokens]
        yield FinishedRow(completion, values, self.cache.positions[:, sequence.row, :, : entry.cached_tokens])
        self._finish(sequence)
        yield completion

    def _fail(self, entry: BatchEntry, bad_layer: int) -> Completion:
        """End a text whose states are not finite, naming the first such layer; its row is cleaned for the next one.

        ``bad_layer`` is what a cut has found, or L. What the row still holds may show an earlier one.
        """
        sequence = entry.sequence
        bad_layer = min(bad_layer, self.cache.first_bad_layer(sequence.row, sequence.cached_tokens))
        where = f"keys or values of layer {bad_layer}" if bad_layer < self.cache.shape.layers else "the logits"
        text_tokens = sequence.prompt_tokens + len(sequence.token_ids)
        problem = f"{sequence.request.id}: {where} are not finite after {text_tokens:,} tokens of text"
        message = f"{problem}; try --dtype bfloat16 or float32, and check the weights"
        self._finish(sequence)
        self.cache.clear(sequence.row)
        return entry.completion("error", message)

    def _shrink(self, memory_error: str) -> Notice:
        """Start again with three quarters of the rows; unfinished requests go back to the head of the queue."""
        unfinished = tuple(sequence.request for sequence in self._scheduler.running() if sequence.status == "running")
        self._scheduler.restart(0)  # nothing to free, should the rebuilding fail
        self._launched.clear()
        self._recorded.clear()
        self._cutter = self._loop = self._prefill = None
        del self.cache, self._state
        while memory_error:
            if self.settings.max_num_seqs == 1:
                raise ModelError(f"out of memory with one slot ({memory_error}): use a smaller budget, limit or model")
            self.settings = replace(self.settings, max_num_seqs=self.settings.max_num_seqs * 3 // 4)
            if self._cuda:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            try:
                self._allocate()
                memory_error = ""
            except torch.OutOfMemoryError as error:
                memory_error = first_line(error)
        self._scheduler.restart(self.settings.max_num_seqs)
        slots = "one slot" if self.settings.max_num_seqs == 1 else f"{self.settings.max_num_seqs} slots"
        restarted = f"unfinished texts ({len(unfinished)}) start again, finished ones are kept"
        return Notice(f"out of memory: going on with {slots}; {restarted}", unfinished)

    def _fits(self, request: Request, row: int) -> bool:
        """Whether a text may have a row; the first one is the longest, and what it cannot hold is refused."""
        return row == 0 or self.cache.shape.holds(row, self.settings.row_need(request))

    def _finish(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        self._state.clear(sequence.row)
        set_row(self.cache.lengths, sequence.row, 0)

    def _at_limit(self, sequence: Sequence) -> bool:
        """Whether the last token that the limits allow is launched."""
        return self.settings.ends(sequence.request, sequence.num_launched)


def _stream_key(seed: int, stream: Literal["tokens", "eviction"], request: Request) -> int:
    return stream_key(seed, request.problem_id, request.sample, stream)
