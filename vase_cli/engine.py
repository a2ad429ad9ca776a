"""Slots: admit -> prefill -> decode -> cut -> emit.

A fixed number of slots, each a row of the static cache. A finished sequence frees its slot for the next
request at once (continuous batching). Rows are packed from slot 0 with their own lengths; a sequence is
prefilled and cut by itself and every decode step runs over all slots, so the shape of all arithmetic, and with
counter-based randomness every token, is the same whoever the neighbours are.

Letters: B slots, S cached tokens a row can hold (budget + W), W window (also the eviction interval), V vocabulary.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend
from vase_cli.cache import CacheShape, StaticCache
from vase_cli.config import ModelShape, SamplingParams
from vase_cli.cut import CutSubject, Cutter
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import EvictionPolicy
from vase_cli.forward import DecodeStep, PrefillStep
from vase_cli.models import LanguageModel
from vase_cli.randomness import stream_key
from vase_cli.sampling import sample

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Request:
    """One text to generate.

    Attributes:
        id: names it in errors and in the completion.
        prompt_token_ids: the prompt, at least one token.
        problem_id: with ``sample`` and the engine's seed, names its random numbers.
        sample: which of several texts for the same problem.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    problem_id: str
    sample: int = 0


@dataclass(frozen=True)
class Completion:
    """A finished text.

    Attributes:
        request: what was asked.
        token_ids: what was generated, a final end-of-text token included.
        finish_reason: "stop" (an end-of-text token), "length" (a limit), or "error".
        error: why, for "error"; names the sequence and, for states that are not finite, the layer.
        cuts: how often the row was cut back to the budget.
        cached_tokens: tokens held per KV head at the end.
        latency_s: from the start of the prefill to the last token.
    """

    request: Request
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: str | None
    cuts: int
    cached_tokens: int
    latency_s: float


@dataclass(frozen=True)
class NewTokens:
    """The tokens of one moment, (request, token id) each; a text's first token comes from its prefill."""

    tokens: tuple[tuple[Request, int], ...]


@dataclass
class EngineStats:
    """What the engine has done so far; times are host times around finished work."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0
    cuts: int = 0


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built with.

    Attributes:
        budget: tokens kept per KV head at a cut; None for a method that does not evict.
        window: W; the last W tokens are always kept, and a row is cut when it holds budget + W.
        slots: B.
        sampling: how tokens are drawn.
        seed: of both random streams.
        max_new_tokens: limit on generated tokens; None is no limit but the total.
        max_total_tokens: limit on prompt and generated tokens together.
    """

    budget: int | None
    window: int
    slots: int
    sampling: SamplingParams
    seed: int
    max_new_tokens: int | None
    max_total_tokens: int

    def row_tokens(self) -> int:
        """S: what a row must hold, never more than the longest text."""
        if self.budget is None:
            return self.max_total_tokens
        return min(self.budget + self.window, self.max_total_tokens)

    def cache_shape(self, model: ModelShape, policy: EvictionPolicy, element_bytes: int) -> CacheShape:
        """Sizes of the cache; nothing is allocated."""
        cuts = policy.evicts and self.budget is not None and self.row_tokens() == self.budget + self.window
        return CacheShape(
            layers=model.layers,
            slots=self.slots,
            tokens=self.row_tokens(),
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            query_heads=model.heads,
            query_window=self.window if cuts and "queries" in policy.needs else 0,
            element_bytes=element_bytes,
        )


def check_settings(policy: EvictionPolicy, settings: EngineSettings) -> None:
    """Refuse a budget and method that do not fit each other, before a model is loaded.

    Raises:
        ConfigError: one line.
    """
    if policy.evicts:
        if settings.budget is None:
            raise ConfigError("this method evicts and needs a budget: give --budget, or use method full")
        if settings.budget <= settings.window:
            raise ConfigError(
                f"budget {settings.budget} is not larger than the window of {settings.window} tokens, which are always "
                "kept: raise the budget or lower the window"
            )
        policy.check(settings.budget, settings.window)


@dataclass
class _Sequence:
    request: Request
    row: int
    eviction_key: int
    started_s: float
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    cuts: int = 0

    @property
    def text_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.token_ids)


class Engine:
    """Generates texts for requests with one model, one eviction method and one cache.

    Attributes:
        cache: the static cache; its size never changes.
        stats: see :class:`EngineStats`.
    """

    def __init__(
        self, model: LanguageModel, policy: EvictionPolicy, backend: AttentionBackend, settings: EngineSettings
    ) -> None:
        check_settings(policy, settings)
        if refusal := backend.refusal(model.device, model.dtype, model.facts.shape.head_dim):
            raise ConfigError(refusal)
        self.settings = settings
        self.stats = EngineStats()
        self.cache = StaticCache(
            settings.cache_shape(model.facts.shape, policy, model.dtype.itemsize), model.dtype, model.device
        )
        self._model = model
        self._backend = backend
        self._cutter: Cutter | None = None
        if (
            policy.evicts
            and settings.budget is not None
            and self.cache.shape.tokens == settings.budget + settings.window
        ):
            self._cutter = Cutter(policy, self.cache, settings.budget, settings.window)
        device = model.device
        self._tokens = torch.zeros(settings.slots, dtype=torch.int64, device=device)
        self._text_positions = torch.zeros(settings.slots, dtype=torch.int64, device=device)
        self._active = torch.zeros(settings.slots, dtype=torch.int32, device=device)
        self._token_keys = torch.zeros(settings.slots, dtype=torch.int64, device=device)
        self._sequences: list[_Sequence | None] = [None] * settings.slots

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
    def stream(self, requests: Iterable[Request]) -> Iterator[NewTokens | Completion]:
        """As :meth:`generate`, and the tokens of every moment as they are made."""
        waiting = deque(requests)
        try:
            while waiting or any(self._sequences):
                for row in range(self.settings.slots):
                    while waiting and self._sequences[row] is None:
                        yield from self._admit(waiting.popleft(), row)
                if any(self._sequences):
                    yield from self._decode()
        finally:
            for row in range(self.settings.slots):
                self._free(row)

    def _admit(self, request: Request, row: int) -> Iterator[NewTokens | Completion]:
        """Prefill a prompt into a free row and sample its first token."""
        prompt_tokens = len(request.prompt_token_ids)
        started = time.perf_counter()
        sequence = _Sequence(request, row, self._stream_key(request, "eviction"), started)
        if refusal := self._prompt_refusal(prompt_tokens):
            yield self._completion(sequence, "error", f"{request.id}: {refusal}")
            return
        device = self._model.device
        subject = CutSubject(row, sequence.eviction_key, prompt_tokens, prompt_tokens)
        step = PrefillStep(self.cache, self._backend, self._cutter, subject)
        token_ids = torch.tensor([request.prompt_token_ids], dtype=torch.int64, device=device)
        positions = torch.arange(prompt_tokens, device=device)[None]
        self._token_keys[row] = self._stream_key(request, "tokens")
        logits = self._model.forward(token_ids, positions, step)
        token, finite = self._sample(logits, self._token_keys[row : row + 1], positions[:, -1] + 1)
        (first,), (logits_finite,) = token.tolist(), finite.tolist()
        self.stats.prefill_tokens += prompt_tokens
        self.stats.prefill_s += time.perf_counter() - started

        self._sequences[row] = sequence
        sequence.cached_tokens = prompt_tokens
        if step.finite and self._cutter is not None:
            sequence.cached_tokens = self._cutter.budget
            sequence.cuts += 1
            self.stats.cuts += 1
            if (layer := _first_false(torch.cat(step.finite))) is not None:
                yield self._fail(sequence, layer)
                return
        if not logits_finite:
            yield self._fail(sequence, None)
            return
        self.cache.lengths[row] = sequence.cached_tokens
        self._tokens[row] = first
        self._text_positions[row] = prompt_tokens
        self._active[row] = 1
        yield NewTokens(((request, first),))
        yield from self._take(sequence, first)

    def _decode(self) -> Iterator[NewTokens | Completion]:
        """One step of all rows, then the cuts that are due."""
        started = time.perf_counter()
        live = [-1 if sequence is None else sequence.cached_tokens for sequence in self._sequences]
        step = DecodeStep(self.cache, self._backend, self._text_positions, live)
        logits = self._model.forward(self._tokens[:, None], self._text_positions[:, None], step)
        tokens, finite = self._sample(logits, self._token_keys, self._text_positions + 1)
        self.cache.lengths += self._active
        self._text_positions += self._active
        self._tokens.copy_(tokens * self._active)
        running = [sequence for sequence in self._sequences if sequence is not None]
        for sequence in running:
            sequence.cached_tokens += 1
        cut_finite = self._cut_full_rows(running)
        # The one place where the host waits for the device in a step.
        new_tokens, logits_finite = torch.stack((tokens, finite.long())).tolist()
        now = time.perf_counter()
        self.stats.decode_s += now - started
        self.stats.decode_steps += 1
        self.stats.decode_tokens += len(running)

        yield NewTokens(tuple((sequence.request, new_tokens[sequence.row]) for sequence in running))
        for sequence in running:
            layer = _first_false(cut_finite[sequence.row]) if sequence.row in cut_finite else None
            if layer is not None or not logits_finite[sequence.row]:
                yield self._fail(sequence, layer)
            else:
                yield from self._take(sequence, new_tokens[sequence.row])

    def _cut_full_rows(self, running: Sequence[_Sequence]) -> dict[int, Tensor]:
        """Cut every row that holds budget + W tokens; (L,) bool flags by row."""
        cutter = self._cutter
        if cutter is None:
            return {}
        due = [sequence for sequence in running if sequence.cached_tokens == cutter.budget + cutter.window]
        flags = {}
        for sequence in due:
            subject = CutSubject(
                sequence.row, sequence.eviction_key, len(sequence.request.prompt_token_ids), sequence.text_tokens
            )
            flags[sequence.row] = cutter.cut(subject)
            self.cache.lengths[sequence.row] = cutter.budget
            sequence.cached_tokens = cutter.budget
            sequence.cuts += 1
            self.stats.cuts += 1
        return flags

    def _sample(self, logits: Tensor, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens, (B,) int64, and whether a row's logits were finite, (B,) bool."""
        finite = logits.isfinite().all(dim=-1)
        safe = logits.masked_fill(~finite[:, None], 0.0)
        return sample(safe, self.settings.sampling, keys, positions), finite

    def _take(self, sequence: _Sequence, token_id: int) -> Iterator[Completion]:
        """Add a token to its text and finish the text if it ends here."""
        sequence.token_ids.append(token_id)
        reason: FinishReason | None = None
        if token_id in self._model.eos_token_ids:
            reason = "stop"
        elif (
            len(sequence.token_ids) == self.settings.max_new_tokens
            or sequence.text_tokens >= self.settings.max_total_tokens
        ):
            reason = "length"
        if reason is not None:
            self._free(sequence.row)
            yield self._completion(sequence, reason, None)

    def _fail(self, sequence: _Sequence, layer: int | None) -> Completion:
        """End a text whose states are not finite, naming the first such layer; its row is cleaned for the next one.

        ``layer`` is what a cut has found. What the row still holds may show an earlier one.
        """
        found = [number for number in (layer, self._first_layer_not_finite(sequence)) if number is not None]
        layer = min(found, default=None)
        what = "the logits" if layer is None else f"keys or values of layer {layer}"
        message = (
            f"{sequence.request.id}: {what} are not finite after {sequence.text_tokens:,} tokens of text; "
            "try --dtype bfloat16 or float32, and check the weights"
        )
        self._free(sequence.row)
        self.cache.clear(sequence.row)
        return self._completion(sequence, "error", message)

    def _first_layer_not_finite(self, sequence: _Sequence) -> int | None:
        held = slice(0, sequence.cached_tokens)
        for layer in range(self.cache.shape.layers):
            for states in (self.cache.keys, self.cache.values):
                if not bool(states[layer, sequence.row, held].isfinite().all()):
                    return layer
        return None

    def _free(self, row: int) -> None:
        if self._sequences[row] is None:
            return
        self._sequences[row] = None
        for per_row in (self.cache.lengths, self._tokens, self._text_positions, self._active, self._token_keys):
            per_row[row] = 0

    def _completion(self, sequence: _Sequence, reason: FinishReason, error: str | None) -> Completion:
        return Completion(
            request=sequence.request,
            token_ids=tuple(sequence.token_ids),
            finish_reason=reason,
            error=error,
            cuts=sequence.cuts,
            cached_tokens=sequence.cached_tokens,
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

    def _stream_key(self, request: Request, stream: Literal["tokens", "eviction"]) -> int:
        return stream_key(self.settings.seed, request.problem_id, request.sample, stream)


def _first_false(flags: Tensor) -> int | None:
    """Index of the first False of a bool vector, None if all are True."""
    values: list[bool] = flags.tolist()
    return values.index(False) if False in values else None
