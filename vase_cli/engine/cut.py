"""Where an eviction method meets the cache: what a cut reads, and what it changes.

Letters: L layers, N work items (one layer of one sequence), T prompt tokens, S cached tokens a row can hold
(budget + W), W window, C = S - W candidates, Hq query heads, H KV heads, D head dim.

The bits of a sequence's scores are the same whoever its neighbours are. Where kernels score, each item is worked on by
itself, and all sequences that are due are one batch. Elsewhere the shapes of the arithmetic must stay the same too: a
sequence is cut by itself, always in the same groups of layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.graphs import capture
from vase_cli.eviction.base import CacheView, EvictionPolicy, served_by_kernels
from vase_cli.randomness import SequenceNoise

_WORKING_BYTES = 256 * 2**20
_PROMPT_BYTES = 48 * 2**20
"""Keys and values of a prompt that wait for their cut."""
_MOST_REPLAYS = 4
"""Rows that are cut one by one through a graph; more of them are faster as one batch."""
_BYTES_PER_SCORE = 32
"""What a method makes of one score on its way, where kernels read the states."""

_BYTES_PER_HEAD_DIM = 32 * 64
"""What drawing a projection of 64 columns makes."""


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
    """Cuts rows of a cache back to the budget with one method.

    Args:
        policy, cache, budget, window: what cuts, and what is cut.
        thresholds: (L, H) float32 on the cache's device, for methods that read them; None for none.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        cache: StaticCache,
        budget: int,
        window: int,
        thresholds: Tensor | None = None,
    ) -> None:
        self.policy = policy
        self.budget = budget
        self.window = window
        self._cache = cache
        self._thresholds = thresholds
        self._batches = policy.batches and served_by_kernels(cache.keys)
        self._items_at_once = max(1, _WORKING_BYTES // _item_bytes(cache.shape, self._batches))
        self._layers = torch.arange(cache.shape.layers, device=cache.keys.device)
        self._first_rows = self._layers * cache.shape.slots
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> list[str]:
        """Capture the cut of one row as a CUDA graph, where kernels cut; call it while no row is in use.

        A cut is some dozen small launches, which take longer to launch than to run.

        Returns:
            What failed, and why; rows are then cut without a graph.
        """
        if not self._batches or self._layers.device.type != "cuda":
            return []
        self._numbers = torch.zeros((1, 4), dtype=torch.int64, device=self._layers.device)
        self._numbers[0, 3] = self._cache.shape.tokens

        def cut() -> None:
            self._bad_layer = self._cut(self._numbers)

        self._graph, reason = capture(cut, self._layers.device)
        return [f"cuts run without a CUDA graph, and so slower: {reason}"] if reason else []

    def cut(self, subjects: Sequence[CutSubject]) -> Tensor:
        """Cut full rows (S tokens) back to the budget, in every layer; the cache's ``lengths`` stay as they are.

        Args:
            subjects: one for each row that is due, in any order.

        Returns:
            One int32 for each subject, on the device: the first layer whose states were not finite, L if all were.
            What such a row holds then means nothing.
        """
        if not subjects:
            return torch.empty(0, dtype=torch.int32, device=self._layers.device)
        numbers = torch.tensor(
            [[subject.row, subject.noise_key, subject.prompt_tokens, subject.text_tokens] for subject in subjects]
        )
        if self._layers.is_cuda:
            numbers = numbers.pin_memory()
        if self._graph is None or len(subjects) > _MOST_REPLAYS:
            return self._cut(numbers.to(self._layers.device, non_blocking=True))
        bad_layers = []
        for index in range(len(subjects)):
            self._numbers.copy_(numbers[index : index + 1], non_blocking=True)
            self._graph.replay()
            bad_layers.append(self._bad_layer.clone())
        return bad_layers[0] if len(subjects) == 1 else torch.cat(bad_layers)

    def _cut(self, numbers: Tensor) -> Tensor:
        """See :meth:`cut`: (n, 4) int64, each subject's row, noise key, prompt tokens and text tokens."""
        shape, subjects = self._cache.shape, numbers.shape[0]
        # Items are numbered subject by subject, layer by layer.
        rows = (self._first_rows + numbers[:, :1]).flatten()
        layers = self._layers if subjects == 1 else self._layers.repeat(subjects)
        noise_keys, prompt_tokens, text_tokens = numbers.T[1:, :, None].repeat(1, 1, shape.layers).flatten(1)
        bad_layers = torch.full((subjects,), shape.layers, dtype=torch.int32, device=rows.device)
        for items in self._batches_of(subjects):
            view = CacheView(
                keys=self._cache.keys.flatten(0, 1),
                values=self._cache.values.flatten(0, 1),
                positions=self._cache.positions.flatten(0, 1),
                queries=None if self._cache.queries is None else self._cache.queries.flatten(0, 1),
                prompt_tokens=prompt_tokens[items],
                text_tokens=text_tokens[items],
                budget=self.budget,
                window=self.window,
                noise=SequenceNoise(noise_keys[items], layers[items]),
                slots=self._cache.slots.flatten(0, 1),
                rows=rows[items],
                log_sums=None if self._cache.log_sums is None else self._cache.log_sums.flatten(0, 1),
                ranges=None if self._cache.ranges is None else self._cache.ranges.flatten(0, 1),
                thresholds=None if self._thresholds is None else self._thresholds[layers[items]],
            )
            scores = self.policy.keep_scores(view)
            mask = self.policy.prompt_mask(view)
            self._cache.evict(scores, mask, rows[items], text_tokens[items], bad_layers, items.start)
        return bad_layers

    def prompt_layers_at_once(self, tokens: int) -> int:
        """How many layers' states of a prompt of so many tokens are kept and cut together."""
        shape = self._cache.shape
        layer_bytes = 2 * tokens * shape.kv_heads * shape.head_dim * shape.element_bytes
        return max(1, _PROMPT_BYTES // layer_bytes) if self._batches else 1

    def cut_prompt(
        self, subject: CutSubject, first_layer: int, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Write what stays of some layers of a prompt longer than the budget into a row that was reset.

        Only these layers' dense states exist at a time: the prompt is cut while its prefill goes on.

        Args:
            subject: the sequence, with ``text_tokens`` equal to ``prompt_tokens``.
            first_layer: the first of G consecutive layers.
            queries: (G, W, Hq, D), of the last W tokens, rotated.
            keys: (G, T, H, D), rotated.
            values: (G, T, H, D).

        Returns:
            (G,) bool on the device, False where the states were not finite.
        """
        tokens, heads, head_dim = keys.shape[1:]
        layers = self._layers[first_layer : first_layer + keys.shape[0]]
        positions = torch.arange(tokens, dtype=torch.int32, device=keys.device).repeat(keys.shape[0], heads, 1)
        view = CacheView(
            keys=keys,
            values=values,
            positions=positions,
            queries=queries,
            prompt_tokens=torch.full_like(layers, subject.prompt_tokens),
            text_tokens=torch.full_like(layers, subject.text_tokens),
            budget=self.budget,
            window=self.window,
            noise=SequenceNoise(torch.full_like(layers, subject.noise_key), layers),
            thresholds=None if self._thresholds is None else self._thresholds[layers],
        )
        kept, finite = self.policy.select(view)
        wide = kept.transpose(1, 2)[..., None].expand(-1, -1, -1, head_dim)
        among = slice(first_layer, first_layer + keys.shape[0])
        self._cache.write(among, subject.row, keys.gather(1, wide), values.gather(1, wide))
        self._cache.write_positions(among, subject.row, positions.gather(2, kept), tokens)
        return finite

    def _batches_of(self, subjects: int) -> Iterator[slice]:
        """Which items are worked on together."""
        layers = self._cache.shape.layers
        group = subjects * layers if self._batches else layers
        for start in range(0, subjects * layers, group):
            for first in range(start, start + group, self._items_at_once):
                yield slice(first, min(first + self._items_at_once, start + group))


def _item_bytes(shape: CacheShape, served_by_kernels: bool) -> int:
    """Working memory of the scores of one item."""
    if served_by_kernels:
        return _BYTES_PER_SCORE * shape.kv_heads * shape.tokens + _BYTES_PER_HEAD_DIM * shape.head_dim
    return 4 * shape.tokens * (3 * shape.kv_heads * shape.head_dim + 3 * shape.query_window * shape.query_heads)
