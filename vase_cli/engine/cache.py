"""The static KV cache: a fixed number of tokens for each sequence, allocated once.

A row's keys and values stay where they were written. Evicted tokens leave holes, and the window's tokens move into
them; ``slot_mapping`` says in which storage slot the tokens of each head stand, in text order.

Shapes: L layers, B rows (sequences at a time), R = L * B storage rows, S cached tokens a row can hold (budget + W),
W window (also the eviction interval), C = S - W candidates of a cut, Hq query heads, H KV heads, D head dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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

    @property
    def candidates(self) -> int:
        """C, where queries are kept: the storage slots before the window's."""
        return self.tokens - self.query_window

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all rows."""
        return 2 * self.layers * self.max_num_seqs * self.tokens * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def bookkeeping_bytes(self) -> int:
        """Storage slots, positions and value ranges, lengths, the query ring and its log sums."""
        places = (2 + self.ranges) * 4 * self.layers * self.max_num_seqs * self.tokens * self.kv_heads
        kept = self.layers * self.max_num_seqs * self.query_window * self.query_heads
        return places + kept * (self.head_dim * self.element_bytes + 4 * self.lse) + 4 * self.max_num_seqs

    @property
    def bytes(self) -> int:
        """Everything the cache allocates; it never grows."""
        return self.kv_bytes + self.bookkeeping_bytes


class StaticCache:
    """Keys, values and their text positions; each row holds one sequence, in its first ``lengths`` storage slots.

    ``slot_mapping`` and ``positions`` are in text order and hold for tokens to come too: token ``lengths`` of the text
    order will stand in storage slot ``lengths``, at the position that is next in the text. Only a reset, a prompt and
    a cut change them.

    Attributes:
        keys, values: (L, B, S, H, D), the order FlashAttention reads. Keys stay rotated with their original position.
        slot_mapping: (L, B, H, S) int32, in which storage slot each cached token stands; every KV head keeps its own.
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
        states = (shape.layers, shape.max_num_seqs, shape.tokens, shape.kv_heads, shape.head_dim)
        ring = (shape.layers, shape.max_num_seqs, shape.query_window, shape.query_heads, shape.head_dim)
        # Zeros, not garbage: attention under a mask still multiplies what it does not attend to by 0.
        self.keys = torch.zeros(states, dtype=dtype, device=device)
        self.values = torch.zeros(states, dtype=dtype, device=device)
        text_order = torch.arange(shape.tokens, dtype=torch.int32, device=device)
        self.slot_mapping = text_order.repeat(shape.layers, shape.max_num_seqs, shape.kv_heads, 1)
        self.positions = self.slot_mapping.clone()
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

    def by_storage_row(self) -> dict[str, Tensor | None]:
        """Everything that a cut reads, by name, its layers and slots as one dimension: (R, ...)."""
        names = ("keys", "values", "slot_mapping", "positions", "queries", "lse", "ranges")
        stored: dict[str, Tensor | None] = {name: getattr(self, name) for name in names}
        return {name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in stored.items()}

    def reset(self, rows: Tensor) -> None:
        """Make rows, (n,) int64, ready for texts: token j of each head is at position j and stands in slot j."""
        text_order = torch.arange(self.shape.tokens, dtype=torch.int32, device=self.keys.device)
        self.slot_mapping[:, rows] = text_order
        self.positions[:, rows] = text_order
        if self.ranges is not None:
            self.ranges.index_fill_(1, rows, -1.0)

    def append(self, layer: int, keys: Tensor, values: Tensor, active: Tensor) -> None:
        """Write one token behind those of each row, (B, H, D) each, keys rotated; ``lengths`` stay as they are.

        ``active`` is (B,) int32, 0 for a row that keeps what it holds; the others hold fewer than S tokens.
        """
        place = (self.lengths * active).long()
        writes = active.bool()[:, None, None]
        for states, new in ((self.keys, keys), (self.values, values)):
            states[layer, self._rows, place] = torch.where(writes, new, states[layer, self._rows, place])

    def keep_queries(self, layer: int, queries: Tensor, text_positions: Tensor) -> None:
        """Put one query of each row, (B, Hq, D), into the ring, by (B,) int64 text positions; of idle rows too."""
        if self.queries is not None:
            self.queries[layer, self._rows, text_positions % self.shape.query_window] = queries

    def slots(self, row: int, tokens: int) -> range:
        """The storage slots of a row's first tokens, among those of all rows."""
        return range(row * self.shape.tokens, row * self.shape.tokens + tokens)

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
        self.keys[layers, row, :tokens] = keys
        self.values[layers, row, :tokens] = values

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
            for states in (self.keys, self.values):
                if not bool(states[layer, row, :tokens].isfinite().all()):
                    return layer
        return self.shape.layers

    def clear(self, row: int) -> None:
        """Zero a row, so that states that are not finite cannot reach the row's next sequence."""
        self.keys[:, row].zero_()
        self.values[:, row].zero_()
        if self.queries is not None:
            self.queries[:, row].zero_()
