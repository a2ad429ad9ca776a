"""The attention of each layer while a model's forward runs: a prefill or a decode step.

One of these objects travels through the model as a keyword argument of its forward, down to the attention
function that ``models`` registers. There is no global state and no patched forward.

Shapes: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend, LSEOut, RowPlaces
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import CutSubject, Cutter


@dataclass
class PrefillStep:
    """One prompt into one row that was reset; a prompt longer than the budget is cut some layers at a time."""

    cache: StaticCache
    backend: AttentionBackend
    cutter: Cutter | None
    subject: CutSubject
    _waiting: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, init=False)
    _finite: list[Tensor] = field(default_factory=list, init=False)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        queries, keys, values = queries[0], keys[0], values[0]
        if self.cutter is not None and self.subject.prompt_tokens > self.cutter.budget:
            self._waiting.append((queries[-self.cutter.window :], keys, values))
            last = layer == self.cache.shape.layers - 1
            if last or len(self._waiting) == self.cutter.prompt_layers_at_once(keys.shape[0]):
                states = (torch.stack(parts) for parts in zip(*self._waiting, strict=True))
                first_layer = layer + 1 - len(self._waiting)
                self._finite.append(self.cutter.cut_prompt(self.subject, first_layer, *states))
                self._waiting.clear()
        else:
            self.cache.write(slice(layer, layer + 1), self.subject.row, keys[None], values[None])
        kept_queries = queries[-self.cache.shape.query_window :]
        self.cache.write_queries(layer, self.subject.row, kept_queries, queries.shape[0] - kept_queries.shape[0])
        return self.backend.prefill(queries, keys, values, scale)[None]

    def bad_layer(self) -> Tensor | None:
        """After the forward, (1,) int64: the first layer not finite, L if all were; None where nothing was cut."""
        if self.cutter is None or not self._finite:
            return None
        return self.cutter.first_bad_layer(torch.cat(self._finite)[None])


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
