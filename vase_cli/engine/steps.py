"""The attention of each layer while a model's forward runs: a prefill or a decode step.

One of these objects travels through the model as a keyword argument of its forward, down to the attention
function that ``models`` registers. There is no global state and no patched forward.

Shapes: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend, LSEOut, PromptPack, RowPlaces, upload
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import CutSubject, Cutter


class PrefillStep:
    """Prompts into rows that were reset; those longer than the budget are cut some layers at a time."""

    def __init__(
        self,
        cache: StaticCache,
        backend: AttentionBackend,
        cutter: Cutter | None,
        subjects: Sequence[CutSubject],
        pack: PromptPack,
    ) -> None:
        """There is one subject for each prompt of the pack."""
        self._cache = cache
        self._backend = backend
        self._cutter = cutter
        self._pack = pack
        placed = list(zip(subjects, pack.spans(), strict=True))
        most = cache.shape.tokens if cutter is None else cutter.budget
        whole = [(subject, span) for subject, span in placed if subject.prompt_tokens <= most]
        self._cut = [(subject, span) for subject, span in placed if subject.prompt_tokens > most]
        self._waiting: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in self._cut]  # layers, of each of them
        self._finite: list[Tensor] = []  # (prompts that are cut, layers)
        self._at_once = 1
        if self._cut and cutter is not None:
            self._at_once = cutter.prompt_layers_at_once(sum(subject.prompt_tokens for subject, _ in self._cut))
        self._slots: Tensor | None = None  # where the tokens that are not cut go
        self._tokens: Tensor | None = None  # which they are; None for all of the pack
        if whole:
            self._slots = upload(
                [slot for subject, _ in whole for slot in cache.slots(subject.row, subject.prompt_tokens)], pack.device
            )
            if self._cut:
                self._tokens = upload(
                    [token for _, span in whole for token in range(span.start, span.stop)], pack.device
                )
        self._ring: tuple[Tensor, Tensor] | None = None  # whose queries are kept, and where
        if window := cache.shape.query_window:
            last = [
                (span.start + position, cache.ring_place(subject.row, position))
                for subject, span in placed
                for position in range(subject.prompt_tokens)[-window:]
            ]
            tokens, places = zip(*last, strict=True)
            self._ring = (upload(tokens, pack.device), upload(places, pack.device))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        queries, keys, values = queries[0], keys[0], values[0]
        if self._slots is not None:
            whole = (keys, values) if self._tokens is None else (keys[self._tokens], values[self._tokens])
            self._cache.write_slots(layer, self._slots, *whole)
        if self._cut:
            self._take(layer, queries, keys, values)
        if self._ring is not None:
            tokens, places = self._ring
            self._cache.write_queries(layer, places, queries[tokens])
        if self._backend.supports_packs:
            return self._backend.prefill(queries, keys, values, scale, self._pack)[None]
        return self._backend.prefill(queries, keys, values, scale)[None]

    def _take(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep a layer's states of the prompts that are cut, and cut them when there are enough."""
        assert self._cutter is not None
        due = layer == self._cache.shape.layers - 1 or len(self._waiting[0]) == self._at_once - 1
        finite = []
        for (subject, span), waiting in zip(self._cut, self._waiting, strict=True):
            states = (queries[span][-self._cutter.window :], keys[span], values[span])
            if not due:
                queries_kept, keys_kept, values_kept = (part.clone() for part in states)  # not all of the pack
                waiting.append((queries_kept, keys_kept, values_kept))
                continue
            waiting.append(states)
            stacked = (torch.stack(parts) for parts in zip(*waiting, strict=True))
            finite.append(self._cutter.cut_prompt(subject, layer + 1 - len(waiting), *stacked))
            waiting.clear()
        if due:
            self._finite.append(torch.stack(finite))

    def bad_layers(self) -> Tensor | None:
        """After the forward, int64: the first layer not finite of each prompt that was cut, L if all were; or None."""
        if self._cutter is None or not self._finite:
            return None
        return self._cutter.first_bad_layer(torch.cat(self._finite, dim=1))


@dataclass
class DecodeStep:
    """One token for every row, idle rows included: the shapes of a step never change."""

    cache: StaticCache
    backend: AttentionBackend
    text_positions: Tensor  # (B,) int64, of the new tokens
    active: Tensor  # (B,) int32, 0 for an idle row
    seq_lens: Tensor  # (B,) int32, tokens that each row holds with the new one, 0 in an idle row
    longest: int | None  # the largest of ``seq_lens``; None where only the device knows

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        self.cache.keep_queries(layer, queries[:, 0], self.text_positions)
        self.cache.append(layer, keys[:, 0], values[:, 0], self.active)
        return self.attend_to_cache(layer, queries[:, 0], scale)[:, None]

    def attend_to_cache(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Attend once the new states are in the cache: queries (B, Hq, D) to (B, Hq, D)."""
        cache = self.cache
        place = (queries, cache.keys[layer], cache.values[layer], self.seq_lens, self.longest, scale)
        if cache.row_starts is not None:
            return self.backend.decode(*place, row_places=RowPlaces(cache.row_starts, cache.shape.tokens))
        if cache.lse is None:
            return self.backend.decode(*place)
        lse_out = LSEOut(cache.lse[layer], cache.shape.candidates, self.text_positions)
        return self.backend.decode(*place, lse_out)
