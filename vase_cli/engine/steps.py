"""What the attention of each layer does while a model's forward runs: a prefill or a decode step.

One of these objects travels through the model as a keyword argument of its forward, down to the attention
function that ``models`` registers. There is no global state and no patched forward.

Letters: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim.
"""

from typing import cast

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend, LoggingBackend
from vase_cli.engine.cache import StaticCache
from vase_cli.engine.cut import CutSubject, Cutter


class PrefillStep:
    """One prompt into one row that was reset; a prompt longer than the budget is cut some layers at a time.

    Attributes:
        finite: after the forward, bool vectors, one flag for each layer that was cut.
    """

    def __init__(
        self, cache: StaticCache, backend: AttentionBackend, cutter: Cutter | None, subject: CutSubject
    ) -> None:
        self.finite: list[Tensor] = []
        self._cache = cache
        self._backend = backend
        self._cutter = cutter if cutter is not None and subject.prompt_tokens > cutter.budget else None
        self._subject = subject
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        queries, keys, values = queries[0], keys[0], values[0]
        if self._cutter is not None:
            self._waiting.append((queries[-self._cutter.window :], keys, values))
            last = layer == self._cache.shape.layers - 1
            if last or len(self._waiting) == self._cutter.prompt_layers_at_once(keys.shape[0]):
                states = (torch.stack(parts) for parts in zip(*self._waiting, strict=True))
                first_layer = layer + 1 - len(self._waiting)
                self.finite.append(self._cutter.cut_prompt(self._subject, first_layer, *states))
                self._waiting.clear()
        else:
            self._cache.write(slice(layer, layer + 1), self._subject.row, keys[None], values[None])
        kept_queries = queries[-self._cache.shape.query_window :]
        self._cache.write_queries(layer, self._subject.row, kept_queries, queries.shape[0] - kept_queries.shape[0])
        return self._backend.prefill(queries, keys, values, scale)[None]


class DecodeStep:
    """One token for every row, idle rows included: the shapes of a step never change."""

    def __init__(
        self,
        cache: StaticCache,
        backend: AttentionBackend,
        text_positions: Tensor,
        active: Tensor,
        held: Tensor,
        longest: int | None,
    ) -> None:
        """What the step is about, on the device but for ``longest``.

        Args:
            cache: where the new tokens go.
            backend: attends.
            text_positions: (B,) int64, of the new tokens.
            active: (B,) int32, 0 for an idle row.
            held: (B,) int32, tokens that each row holds with the new one, 0 in an idle row.
            longest: the largest of ``held``; None where only the device knows.
        """
        self.cache = cache
        self.backend = backend
        self.text_positions = text_positions
        self.active = active
        self.held = held
        self.longest = longest

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        self.cache.keep_queries(layer, queries[:, 0], self.text_positions)
        self.cache.append(layer, keys[:, 0], values[:, 0], self.active)
        return self.attend_to_cache(layer, queries[:, 0], scale)[:, None]

    def attend_to_cache(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Attend once the new states are in the cache: queries (B, Hq, D) to (B, Hq, D)."""
        cache = self.cache
        keys, values = cache.keys[layer], cache.values[layer]
        if cache.log_sums is None:
            return self.backend.decode(queries, keys, values, self.held, self.longest, scale)
        logging = cast(LoggingBackend, self.backend)
        candidates = cache.shape.candidates
        return logging.decode_and_log(
            queries, keys, values, self.held, scale, cache.log_sums[layer], candidates, self.text_positions
        )
