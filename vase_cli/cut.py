"""Where an eviction method meets the cache: what a cut reads, and what it moves.

Letters: L layers, N work items (one layer of one sequence), T prompt tokens, S cached tokens a row can hold
(budget + W), W window, Hq query heads, H KV heads, D head dim.

A sequence is cut by itself, always in the same groups of layers: the shapes of the arithmetic, and so every
bit of the scores, are the same whoever its neighbours are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vase_cli.cache import StaticCache
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.randomness import SequenceNoise

_WORKING_BYTES = 256 * 2**20


@dataclass(frozen=True)
class CutSubject:
    """The sequence that is cut, at this moment of its text.

    Attributes:
        row: its row of the cache.
        noise_key: its "eviction" stream key, see :func:`vase_cli.randomness.stream_key`.
        prompt_tokens: length of its prompt.
        text_tokens: length of its text, the prompt included.
    """

    row: int
    noise_key: int
    prompt_tokens: int
    text_tokens: int


class Cutter:
    """Cuts rows of a cache back to the budget with one method."""

    def __init__(self, policy: EvictionPolicy, cache: StaticCache, budget: int, window: int) -> None:
        self.policy = policy
        self.budget = budget
        self.window = window
        self._cache = cache
        shape = cache.shape
        item_bytes = (
            4 * shape.tokens * (2 * shape.kv_heads * shape.head_dim + 3 * shape.query_window * shape.query_heads)
        )
        self._layers_at_once = max(1, min(shape.layers, _WORKING_BYTES // item_bytes))

    def cut(self, subject: CutSubject) -> Tensor:
        """Cut a full row (S tokens) back to the budget, in every layer.

        Returns:
            (L,) bool on the device, False where a layer's states were not finite; what that layer holds then
            means nothing.
        """
        cache = self._cache
        finite = []
        for first in range(0, cache.shape.layers, self._layers_at_once):
            layers = slice(first, min(first + self._layers_at_once, cache.shape.layers))
            slots, layer_finite = self._select(
                subject,
                layers,
                cache.keys[layers, subject.row],
                cache.values[layers, subject.row],
                cache.positions[layers, subject.row],
                None if cache.queries is None else cache.queries[layers, subject.row],
            )
            cache.compact(first, subject.row, slots)
            finite.append(layer_finite)
        return torch.cat(finite)

    def cut_prompt(self, subject: CutSubject, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write what stays of one layer of a prompt longer than the budget.

        Only this layer's dense states exist at a time: the prompt is cut while its prefill goes on.

        Args:
            subject: the sequence, with ``text_tokens`` equal to ``prompt_tokens``.
            layer: which layer.
            queries: (T, Hq, D), rotated.
            keys: (T, H, D), rotated.
            values: (T, H, D).

        Returns:
            (1,) bool on the device, False if the states were not finite.
        """
        tokens, heads, head_dim = keys.shape
        positions = torch.arange(tokens, dtype=torch.int32, device=keys.device)[:, None].expand(tokens, heads)
        slots, finite = self._select(
            subject,
            slice(layer, layer + 1),
            keys[None],
            values[None],
            positions[None],
            queries[None, -self.window :],
        )
        order = slots[0].T  # (budget, H)
        wide = order[..., None].expand(-1, -1, head_dim)
        self._cache.write(layer, subject.row, keys.gather(0, wide), values.gather(0, wide), positions.gather(0, order))
        return finite

    def _select(
        self,
        subject: CutSubject,
        layers: slice,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        queries: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        layer_numbers = torch.arange(layers.start, layers.stop, device=keys.device)
        view = CacheView(
            keys=keys,
            values=values,
            positions=positions,
            queries=queries,
            prompt_tokens=torch.full_like(layer_numbers, subject.prompt_tokens),
            text_tokens=torch.full_like(layer_numbers, subject.text_tokens),
            budget=self.budget,
            window=self.window,
            noise=SequenceNoise(torch.full_like(layer_numbers, subject.noise_key), layer_numbers),
        )
        return self.policy.select(view)
