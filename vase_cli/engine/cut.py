"""Where an eviction method meets the cache: what a cut reads, and what it changes.

Shapes: L layers, N work items (one layer of one sequence), T prompt tokens, S cached tokens a row can hold
(budget + W), W window, C = S - W candidates, Hq query heads, H KV heads, D head dim.

The bits of a sequence's scores are the same whoever its neighbors are. Kernels work on each item by itself, so all
sequences that are due are one batch. Elsewhere the shapes of the arithmetic must stay the same too: a sequence is cut
by itself, always in the same groups of layers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.graphs import CaptureError, capture
from vase_cli.errors import ConfigError
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.kernels.ranking import best_mask
from vase_cli.randomness import SequenceNoise

_WORKING_BYTES = 256 * 2**20  # memory of the scores that are worked on together
_PROMPT_BYTES = 48 * 2**20  # keys and values of a prompt that wait for their cut
_MOST_REPLAYS = 4  # rows that are cut one by one through a graph; more of them are faster as one batch
_BYTES_PER_SCORE = 32  # memory that a method takes for one score on its way, where kernels read the states
_BYTES_PER_HEAD_DIM = 32 * 64  # memory for drawing a projection of 64 columns
KERNEL_PROMPT_BYTES = 3 * _PROMPT_BYTES
"""Of a prompt longer than a row: states that wait for their cut, side by side, and what stays of them."""


def working_bytes(shape: CacheShape, *, kernels: bool) -> int:
    """Most memory that the scores of a cut take."""
    if not shape.cut:
        return 0
    if kernels:
        return min(_WORKING_BYTES, _BYTES_PER_SCORE * shape.layers * shape.max_num_seqs * shape.kv_heads * shape.tokens)
    return min(3 * _WORKING_BYTES, 4 * shape.bytes // shape.max_num_seqs)


class CutSubject(NamedTuple):
    """The sequence that is cut, at this moment of its text."""

    row: int  # of the cache
    noise_key: int  # its "eviction" stream key, see :func:`vase_cli.randomness.stream_key`
    prompt_tokens: int
    text_tokens: int  # the prompt included


class EvictionBatch(NamedTuple):
    """What is cut together, n sequences or N items of them: int64 vectors on the cache's device."""

    rows: Tensor  # of the cache; for items the storage rows
    noise_keys: Tensor  # "eviction" stream keys
    prompt_lens: Tensor  # tokens of the prompt
    seq_lens: Tensor  # tokens of the text, the prompt included


class Cut(NamedTuple):
    """What a cut of one sequence has decided, on the CPU: the candidates of each head in text order."""

    text_tokens: int  # the prompt included
    positions: Tensor  # (L, H, C) int32, of the text
    scores: Tensor  # (L, H, C) float32, as the method gave them
    kept: Tensor  # (L, H, C) bool


class _CapturedCut(NamedTuple):
    """The cut of one row as a graph: it reads the (1, 4) int64 numbers of a subject and writes its first bad layer."""

    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    bad_layer: Tensor


class Cutter:
    """Cuts rows of a cache back to the budget with one method.

    ``thresholds`` are (L, H) float32 on the cache's device, for methods that read them. ``on_cut`` is called with the
    row and the :class:`Cut` of each sequence that is cut, of a prompt once for all layers, where C is T - W; the host
    then waits for the device, and no graph is captured. Scores of ``scores_bytes`` are worked on together.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        cache: StaticCache,
        budget: int,
        window: int,
        thresholds: Tensor | None = None,
        on_cut: Callable[[int, Cut], None] | None = None,
        scores_bytes: int = _WORKING_BYTES,
    ) -> None:
        self.policy = policy
        self.budget = budget
        self.window = window
        self._cache = cache
        self._thresholds = thresholds
        self._on_cut = on_cut
        self._seen: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # of the prompt's layers cut so far, by row
        self._batches = policy.batches and cache.ops.scores_in_place(cache.shape.head_dim)
        self._items_at_once = max(1, scores_bytes // _item_bytes(cache.shape, self._batches))
        self._layers = torch.arange(cache.shape.layers, device=cache.keys.device)
        self._first_rows = self._layers * cache.shape.max_num_seqs
        self._captured: _CapturedCut | None = None

    def prepare(self) -> list[str]:
        """Capture the cut of one row as a CUDA graph, where kernels cut; call it while no row is in use.

        A cut is some dozen small launches, which take longer to launch than to run. Where the capture fails rows are
        cut without it, and one line that says why is returned.
        """
        if not self._batches or self._layers.device.type != "cuda" or self._on_cut is not None:
            return []
        numbers = torch.tensor([CutSubject(0, 0, 0, self._cache.shape.tokens)], device=self._layers.device)
        bad_layers: list[Tensor] = []  # the capture's is the last
        try:
            batch = EvictionBatch(*numbers.unbind(1))
            graph = capture(lambda: bad_layers.append(self._cut(batch)), self._layers.device)
        except CaptureError as error:
            return [f"cuts run without a CUDA graph, and so slower: {error}"]
        self._captured = _CapturedCut(graph, numbers, bad_layers[-1])
        return []

    def cut(self, subjects: Sequence[CutSubject]) -> Tensor:
        """Cut full rows (S tokens) back to the budget, in every layer; the cache's ``lengths`` stay as they are.

        Returns one int64 for each subject, on the device: the first layer whose states were not finite, L if all were.
        Such a row's content then means nothing.
        """
        if not subjects:
            return self._layers[:0]
        numbers = torch.tensor(subjects)
        if self._layers.is_cuda:
            numbers = numbers.pin_memory()
        if self._captured is None or len(subjects) > _MOST_REPLAYS:
            numbers = numbers.to(self._layers.device, non_blocking=self._layers.is_cuda)
            return self._cut(EvictionBatch(*numbers.unbind(1)))
        bad_layers = []
        for index in range(len(subjects)):
            self._captured.numbers.copy_(numbers[index : index + 1], non_blocking=True)
            self._captured.graph.replay()
            bad_layers.append(self._captured.bad_layer.clone())
        return bad_layers[0] if len(subjects) == 1 else torch.cat(bad_layers)

    def _cut(self, batch: EvictionBatch) -> Tensor:
        """See :meth:`cut`."""
        sequences, count = batch.rows.shape[0], self._cache.shape.layers
        # Items are numbered sequence by sequence, layer by layer.
        layers = self._layers if sequences == 1 else self._layers.repeat(sequences)
        rows = (batch.rows[:, None] + self._first_rows).flatten()
        items = EvictionBatch(rows, *torch.stack(batch[1:])[..., None].repeat(1, 1, count).flatten(1))
        stored = self._cache.by_storage_row()
        finite, seen = [], []
        for together in self._batches_of(sequences):
            part = EvictionBatch(*(numbers[together] for numbers in items))
            view = self._view(part, layers[together], **stored)
            scores = self._scores(view)
            seen += self._look(view, scores)
            finite.append(self._cache.evict(scores, self.policy.prompt_mask(view), part.rows, part.seq_lens))
        self._report(batch.rows, batch.seq_lens, seen)
        of_items = finite[0] if len(finite) == 1 else torch.cat(finite)
        return self.first_bad_layer(of_items.view(sequences, count))

    def first_bad_layer(self, finite: Tensor) -> Tensor:
        """The first layer that is not finite, L if all are: (n, L) bool of n sequences to (n,) int64."""
        count = self._cache.shape.layers
        return torch.add(self._layers, finite, alpha=count).amin(dim=1)  # a finite one counts as L or more

    def _view(self, items: EvictionBatch, layers: Tensor, **stored: Any) -> CacheView:
        """The method's view of N items of (N,) layers; ``stored`` are the tensors of the cache, or of a prompt."""
        return CacheView(
            rows=items.rows,
            prompt_lens=items.prompt_lens,
            seq_lens=items.seq_lens,
            budget=self.budget,
            window=self.window,
            noise=SequenceNoise(items.noise_keys, layers),
            thresholds=None if self._thresholds is None else self._thresholds[layers],
            ops=self._cache.ops,
            **stored,
        )

    def _scores(self, view: CacheView) -> Tensor:
        scores = self.policy.keep_scores(view)
        expected = (len(view.seq_lens), self._cache.shape.kv_heads, view.candidates)
        if scores.shape != expected or scores.dtype != torch.float32:
            found = f"its scores are {tuple(scores.shape)} {scores.dtype}"
            raise ConfigError(f"method {type(self.policy).__name__}: {found}, and must be {expected} torch.float32")
        return scores

    def _look(self, view: CacheView, scores: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Positions, scores and what stays of N items, see :class:`Cut`; nothing where nobody wants to know."""
        if self._on_cut is None:
            return []
        kept = best_mask(scores, self.budget - self.window, must_keep=self.policy.prompt_mask(view))
        return [(view.candidate_positions.int().cpu(), scores.cpu(), kept.cpu())]

    def _report(self, rows: Tensor, seq_lens: Tensor, seen: list[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Hand on what was seen of all layers of n sequences, whose rows and lengths are (n,) int64."""
        if self._on_cut is not None:
            noted = (torch.cat(parts).unflatten(0, (len(rows), -1)) for parts in zip(*seen, strict=True))
            for row, *decided in zip(rows.tolist(), seq_lens.tolist(), *noted, strict=True):
                self._on_cut(row, Cut(*decided))

    def prompt_layers_at_once(self, tokens: int) -> int:
        """Number of layers whose states, of prompts of so many tokens together, are kept and then cut."""
        shape = self._cache.shape
        layer_bytes = 2 * tokens * shape.kv_heads * shape.head_dim * shape.element_bytes
        return max(1, _PROMPT_BYTES // layer_bytes) if self._batches else 1

    def cut_prompt(
        self, subject: CutSubject, first_layer: int, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Cut G consecutive layers of a prompt longer than the budget, and write what stays into a row that was reset.

        Only these layers' dense states exist at a time: the prompt is cut while its prefill goes on. They are queries
        (G, W, Hq, D) of the last W tokens, and keys and values (G, T, H, D). Returns (G,) bool on the device, False
        where the states were not finite.
        """
        count, tokens, heads, head_dim = keys.shape
        among = slice(first_layer, first_layer + count)
        rows = self._layers[:count]  # of these states, not of the cache
        items = EvictionBatch(rows, *(torch.full_like(rows, number) for number in subject[1:]))
        positions = torch.arange(tokens, dtype=torch.int32, device=keys.device).repeat(count, heads, 1)
        states = {"keys": keys, "values": values, "positions": positions, "queries": queries}
        view = self._view(items, self._layers[among], **states)
        scores = self._scores(view)
        kept, finite = self.policy.select(view, scores)
        wide = kept.transpose(1, 2)[..., None].expand(-1, -1, -1, head_dim)
        self._cache.write(among, subject.row, keys.gather(1, wide), values.gather(1, wide))
        self._cache.write_positions(among, subject.row, positions.gather(2, kept), tokens)
        if first_layer == 0:
            self._seen[subject.row] = []
        self._seen[subject.row] += self._look(view, scores)
        if among.stop == self._cache.shape.layers:
            self._report(torch.tensor([subject.row]), items.seq_lens[:1], self._seen.pop(subject.row))
        return finite

    def _batches_of(self, sequences: int) -> Iterator[slice]:
        """The items that are worked on together."""
        layers = self._cache.shape.layers
        group = sequences * layers if self._batches else layers
        for start in range(0, sequences * layers, group):
            for first in range(start, start + group, self._items_at_once):
                yield slice(first, min(first + self._items_at_once, start + group))


def _item_bytes(shape: CacheShape, in_place: bool) -> int:
    """Working memory of the scores of one item."""
    if in_place:
        return _BYTES_PER_SCORE * shape.kv_heads * shape.tokens + _BYTES_PER_HEAD_DIM * shape.head_dim
    return 4 * shape.tokens * (3 * shape.kv_heads * shape.head_dim + 3 * shape.query_window * shape.query_heads)
