"""What the attention of each layer does while a model's forward runs: a prefill or a decode step.

One of these objects travels through the model as a keyword argument of its forward, down to the attention
function that ``models`` registers. There is no global state and no patched forward.

Letters: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vase_cli.attention.base import AttentionBackend
from vase_cli.cache import StaticCache
from vase_cli.cut import CutSubject, Cutter


class ForwardStep(Protocol):
    """The cache's side of one forward."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store a layer's new states and attend.

        Args:
            layer: which layer.
            queries: (1, T, Hq, D) in a prefill, (B, 1, Hq, D) in a decode step; rotated.
            keys: the same with H heads; rotated.
            values: the same with H heads.
            scale: factor on q·k.

        Returns:
            The shape of ``queries``.
        """
        ...


class PrefillStep:
    """One prompt into one row; a prompt longer than the budget is cut layer by layer.

    Attributes:
        finite: after the forward, (1,) bool for each layer that was cut.
    """

    def __init__(
        self, cache: StaticCache, backend: AttentionBackend, cutter: Cutter | None, subject: CutSubject
    ) -> None:
        self.finite: list[Tensor] = []
        self._cache = cache
        self._backend = backend
        self._cutter = cutter if cutter is not None and subject.prompt_tokens > cutter.budget else None
        self._subject = subject

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        queries, keys, values = queries[0], keys[0], values[0]
        tokens, heads, _ = keys.shape
        if self._cutter is not None:
            self.finite.append(self._cutter.cut_prompt(self._subject, layer, queries, keys, values))
        else:
            positions = torch.arange(tokens, dtype=torch.int32, device=keys.device)
            self._cache.write(layer, self._subject.row, keys, values, positions[:, None].expand(tokens, heads))
        kept_queries = queries[-self._cache.shape.query_window :]
        self._cache.write_queries(layer, self._subject.row, kept_queries, tokens - kept_queries.shape[0])
        return self._backend.prefill(queries, keys, values, scale)[None]


class DecodeStep:
    """One token for every row, idle rows included: the shapes of a step never change."""

    def __init__(
        self, cache: StaticCache, backend: AttentionBackend, text_positions: Tensor, live: Sequence[int]
    ) -> None:
        """``text_positions`` (B,) int64 on the device; ``live`` as in :meth:`AttentionBackend.decode`."""
        self._cache = cache
        self._backend = backend
        self._text_positions = text_positions
        self._live = live
        cache.mark_positions(text_positions)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See :meth:`ForwardStep.attend`."""
        cache = self._cache
        cache.keep_queries(layer, queries[:, 0], self._text_positions)
        out = self._backend.decode(
            queries[:, 0],
            keys[:, 0],
            values[:, 0],
            cache.keys[layer],
            cache.values[layer],
            cache.lengths,
            self._live,
            scale,
        )
        return out[:, None]
