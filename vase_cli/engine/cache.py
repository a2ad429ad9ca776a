"""The static KV cache: a fixed number of tokens for each sequence, allocated once.

A row's keys and values stay where they were written. Evicted tokens leave holes, and the window's tokens move into
them; ``slot_mapping`` says in which storage slot the tokens of each head stand, in text order.

Rows that are never cut may be of different lengths. They stand one behind the other then, as N slots in each layer.

Shapes: L layers, B rows (sequences at a time), R = L * B storage rows, S cached tokens a row can hold (budget + W; of
the longest row, where they differ), W window (also the eviction interval), C = S - W candidates of a cut, Hq query
heads, H KV heads, D head dim.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.kernels.ops import TorchOps


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a :class:`StaticCache`, known before anything is allocated."""

    layers: int
    max_num_seqs: int
    tokens: int
    kv_heads: int
    head_dim: int
    query_heads: int
    query_window: int  # W if the last W queries are kept for the eviction method, else 0
    element_bytes: int  # of one key or value element
    lse: bool = False  # whether the softmax's log sums of the kept queries are kept too
    ranges: bool = False  # whether the value ranges that a cut finds are kept for the next one
    cut: bool = True  # whether rows are ever cut; in others each token stands at its own position
    row_tokens: tuple[int, ...] | None = None  # slots of each row where they differ, the longest first

    @property
    def candidates(self) -> int:
        """C, where queries are kept: the storage slots before the window's."""
        return self.tokens - self.query_window

    @property
    def storage_slots(self) -> int:
        """Storage slots of all rows, in each layer and head."""
        return self.max_num_seqs * self.tokens if self.row_tokens is None else sum(self.row_tokens)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all rows."""
        return self.storage_slots * self.token_bytes

    @property
    def bookkeeping_bytes(self) -> int:
        """Storage slots, positions and value ranges, lengths and starts, the query ring and its log sums."""
        places = 4 * self.tokens  # the same for all
        if self.cut:
            places = (2 + self.ranges) * 4 * self.layers * self.max_num_seqs * self.tokens * self.kv_heads
        kept = self.layers * self.max_num_seqs * self.query_window * self.query_heads
        starts = 0 if self.row_tokens is None else 8 * (self.max_num_seqs + 1)
        return places + kept * (self.head_dim * self.element_bytes + 4 * self.lse) + 4 * self.max_num_seqs + starts

    @property
    def bytes(self) -> int:
        """Everything the cache allocates; it never grows."""
        return self.kv_bytes + self.bookkeeping_bytes

    def holds(self, row: int, tokens: int) -> bool:
        """Whether a row can hold so many tokens."""
        return tokens <= (self.tokens if self.row_tokens is None else self.row_tokens[row])

    def check(self, tokens: int) -> None:
        """Refuse a text that may come to more tokens than any row can hold with a ``ConfigError``."""
        if tokens > self.tokens:
            problem = f"the text may come to {tokens:,} tokens, and the longest row holds {self.tokens:,}"
            raise ConfigError(f"{problem}; lower its limit on new tokens")


class StaticCache:
    """Keys, values and their text positions; each row holds one sequence, in its first ``lengths`` storage slots.

    ``slot_mapping`` and ``positions`` are in text order and hold for tokens to come too: token ``lengths`` of the text
    order will stand in storage slot ``lengths``, at the position that is next in the text. Only a reset, a prompt and
    a cut change them.

    Attributes:
        keys, values: (L, B, S, H, D), the order FlashAttention reads, or (L, N, H, D) with rows of different lengths.
            Keys stay rotated with their original position.
        row_starts: (B + 1,) int64, the slot of the N where each row begins, and N; None for rows of one length.
        slot_mapping: (L, B, H, S) int32, in which storage slot each cached token stands; every KV head keeps its own.
            Where no row is ever cut, it and ``positions`` are one (S,) for all.
        positions: (L, B, H, S) int32, the text position of each cached token, ascending along S.
        lengths: (B,) int32 on the device, tokens that each row holds.
        queries: (L, B, W, Hq, D), the queries of the last W text positions, at position modulo W; None if not kept.
        lse: (L, B, W, Hq) float32, log2 of the sum of exp(q·k / sqrt(D)) over the C candidates for each of those
            queries, left by the decode steps; None if not kept.
        ranges: (L, B, H, S) float32 by storage slot, the value ranges that cuts have found; negative where none has,
            and out of date where a cut has moved a token since; None if not kept.
        ops: what computes on this device.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device, ops: TorchOps) -> None:
        self.shape = shape
        self.ops = ops
        rows = (shape.max_num_seqs, shape.tokens) if shape.row_tokens is None else (shape.storage_slots,)
        states = (shape.layers, *rows, shape.kv_heads, shape.head_dim)
        ring = (shape.layers, shape.max_num_seqs, shape.query_window, shape.query_heads, shape.head_dim)
        # Zeros, not garbage: attention under a mask still multiplies what it does not attend to by 0.
        self.keys = torch.zeros(states, dtype=dtype, device=device)
        self.values = torch.zeros(states, dtype=dtype, device=device)
        text_order = torch.arange(shape.tokens, dtype=torch.int32, device=device)
        heads = (shape.layers, shape.max_num_seqs, shape.kv_heads)
        if shape.cut:
            self.slot_mapping, self.positions = text_order.repeat(*heads, 1), text_order.repeat(*heads, 1)
        else:
            self.slot_mapping = self.positions = text_order.expand(*heads, -1)
        self.lengths = torch.zeros(shape.max_num_seqs, dtype=torch.int32, device=device)
        self.queries: Tensor | None = None
        self.lse: Tensor | None = None
        self.ranges: Tensor | None = None
        if shape.query_window:
            self.queries = torch.zeros(ring, dtype=dtype, device=device)
            if shape.lse:
                self.lse = torch.zeros(ring[:-1], dtype=torch.float32, device=device)
        if shape.ranges:
            self.ranges = torch.full(self.slot_mapping.shape, -1.0, dtype=torch.float32, device=device)
        self._rows = torch.arange(shape.max_num_seqs, device=device)
        self.row_starts: Tensor | None = None
        if shape.row_tokens is not None:
            self._bounds = tuple(itertools.accumulate(shape.row_tokens, initial=0))
            self.row_starts = torch.tensor(self._bounds, device=device)

    def by_storage_row(self) -> dict[str, Tensor | None]:
        """Everything that a cut reads, by name, its layers and slots as one dimension: (R, ...)."""
        names = ("keys", "values", "slot_mapping", "positions", "queries", "lse", "ranges")
        stored: dict[str, Tensor | None] = {name: getattr(self, name) for name in names}
        return {name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in stored.items()}

    def reset(self, rows: Tensor) -> None:
        """Make rows, (n,) int64, ready for texts: token j of each head is at position j and stands in slot j."""
        if not self.shape.cut:
            return
        text_order = torch.arange(self.shape.tokens, dtype=torch.int32, device=self.keys.device)
        self.slot_mapping[:, rows] = text_order
        self.positions[:, rows] = text_order
        if self.ranges is not None:
            self.ranges.index_fill_(1, rows, -1.0)

    def states(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one row, (L, S, H, D) each, S its own: views."""
        if self.row_starts is None:
            return self.keys[:, row], self.values[:, row]
        slots = slice(*self._bounds[row : row + 2])
        return self.keys[:, slots], self.values[:, slots]

    def append(self, layer: int, keys: Tensor, values: Tensor, active: Tensor) -> None:
        """Write one token behind those of each row, (B, H, D) each, keys rotated; ``lengths`` stay as they are.

        ``active`` is (B,) int32, 0 for a row that keeps what it holds; the others are not full.
        """
        starts = self._rows * self.shape.tokens if self.row_starts is None else self.row_starts[:-1]
        place = starts + self.lengths * active
        writes = active.bool()[:, None, None]
        for states, new in ((self.keys, keys), (self.values, values)):
            slots = states[layer].view(-1, *new.shape[1:])
            slots[place] = torch.where(writes, new, slots[place])

    def keep_queries(self, layer: int, queries: Tensor, text_positions: Tensor) -> None:
        """Put one query of each row, (B, Hq, D), into the ring, by (B,) int64 text positions; of idle rows too."""
        if self.queries is not None:
            self.queries[layer, self._rows, text_positions % self.shape.query_window] = queries

    def slots(self, row: int, tokens: int) -> range:
        """The storage slots of a row's first tokens, among those of all rows."""
        start = row * self.shape.tokens if self.row_starts is None else self._bounds[row]
        return range(start, start + tokens)

    def ring_place(self, row: int, text_position: int) -> int:
        """Where the ring holds a query, among the places of all rows."""
        return row * self.shape.query_window + text_position % self.shape.query_window

    def write_slots(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Fill some slots of a layer, (T,) int64, see :meth:`slots`: keys and values (T, H, D), in any rows."""
        for states, new in ((self.keys, keys), (self.values, values)):
            states[layer].view(-1, *new.shape[1:]).index_copy_(0, slots, new)

    def write(self, layers: slice, row: int, keys: Tensor, values: Tensor) -> None:
        """Fill some layers of a row from slot 0: keys and values (G, T, H, D) for G layers."""
        tokens = keys.shape[1]
        for states, new in zip(self.states(row), (keys, values), strict=True):
            states[layers, :tokens] = new

    def write_positions(self, layers: slice, row: int, positions: Tensor, next_position: int) -> None:
        """Note the text positions of a row's first tokens, (G, H, T) int32, and of those to come after them."""
        tokens = positions.shape[-1]
        end = next_position + self.shape.tokens - tokens
        coming = torch.arange(next_position, end, dtype=torch.int32, device=positions.device)
        self.positions[layers, row, :, :tokens] = positions
        self.positions[layers, row, :, tokens:] = coming

    def write_queries(self, layer: int, places: Tensor, queries: Tensor) -> None:
        """Put queries (T, Hq, D) into the ring, at (T,) int64 places, see :meth:`ring_place`."""
        if self.queries is not None:
            self.queries[layer].view(-1, *queries.shape[1:]).index_copy_(0, places, queries)

    def evict(self, scores: Tensor, must_keep: Tensor | None, rows: Tensor, seq_lens: Tensor) -> Tensor:
        """Cut full rows, layer * B + row, back to C tokens in each head; ``lengths`` stay as they are.

        See :meth:`TorchOps.evict`; returns (N,) bool, False for an item with a NaN score.
        """
        slot_mapping, positions, keys, values = (
            tensor.flatten(0, 1) for tensor in (self.slot_mapping, self.positions, self.keys, self.values)
        )
        return self.ops.evict(scores, must_keep, slot_mapping, positions, keys, values, rows, seq_lens)

    def first_bad_layer(self, row: int, tokens: int) -> int:
        """The first layer with a state that is not finite among a row's first tokens, L if there is none."""
        for layer in range(self.shape.layers):
            for states in self.states(row):
                if not bool(states[layer, :tokens].isfinite().all()):
                    return layer
        return self.shape.layers

    def clear(self, row: int) -> None:
        """Zero a row, so that states that are not finite cannot reach the row's next sequence."""
        for states in self.states(row):
            states.zero_()
        if self.queries is not None:
            self.queries[:, row].zero_()
