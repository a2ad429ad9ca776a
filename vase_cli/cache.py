"""The static KV cache: a fixed number of tokens for each sequence, allocated once.

Letters: L layers, B slots (sequences at a time), S cached tokens a row can hold (budget + W), W window (also
the eviction interval), Hq query heads, H KV heads, D head dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a :class:`StaticCache`; ``bytes`` is known before anything is allocated.

    Attributes:
        layers, slots, tokens, kv_heads, head_dim: L, B, S, H, D.
        query_heads: Hq.
        query_window: W if the last W queries are kept for the eviction method, else 0.
        element_bytes: bytes of one key or value element.
    """

    layers: int
    slots: int
    tokens: int
    kv_heads: int
    head_dim: int
    query_heads: int
    query_window: int
    element_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all rows."""
        return 2 * self.layers * self.slots * self.tokens * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def bookkeeping_bytes(self) -> int:
        """Positions, lengths and the query ring."""
        positions = 4 * self.layers * self.slots * self.tokens * self.kv_heads
        queries = self.layers * self.slots * self.query_window * self.query_heads * self.head_dim * self.element_bytes
        return positions + queries + 4 * self.slots

    @property
    def bytes(self) -> int:
        """Everything the cache allocates; it never grows."""
        return self.kv_bytes + self.bookkeeping_bytes


class StaticCache:
    """Keys, values and their text positions; each row holds one sequence, packed from slot 0.

    Attributes:
        keys, values: (L, B, S, H, D), the order FlashAttention reads. Keys are rotated with their original
            position and stay so.
        positions: (L, B, S, H) int32, the text position of what each slot holds; every KV head keeps its own.
        lengths: (B,) int32 on the device, tokens that each row holds.
        queries: (L, B, W, Hq, D), the queries of the last W text positions, at position modulo W; None if
            not kept.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        states = (shape.layers, shape.slots, shape.tokens, shape.kv_heads, shape.head_dim)
        # Zeros, not garbage: attention under a mask still multiplies what it does not attend to by 0.
        self.keys = torch.zeros(states, dtype=dtype, device=device)
        self.values = torch.zeros(states, dtype=dtype, device=device)
        self.positions = torch.zeros(states[:-1], dtype=torch.int32, device=device)
        self.lengths = torch.zeros(shape.slots, dtype=torch.int32, device=device)
        self.queries: Tensor | None = None
        if shape.query_window:
            ring = (shape.layers, shape.slots, shape.query_window, shape.query_heads, shape.head_dim)
            self.queries = torch.zeros(ring, dtype=dtype, device=device)
        self._rows = torch.arange(shape.slots, device=device)

    def mark_positions(self, text_positions: Tensor) -> None:
        """Note the text position of the token that each row appends next: (B,) int64."""
        self.positions[:, self._rows, self.lengths.long()] = text_positions.to(torch.int32)[None, :, None]

    def keep_queries(self, layer: int, queries: Tensor, text_positions: Tensor) -> None:
        """Put one query of each row, (B, Hq, D), into the ring; (B,) int64 text positions."""
        if self.queries is not None:
            self.queries[layer, self._rows, text_positions % self.shape.query_window] = queries

    def write(self, layer: int, row: int, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Fill a row's layer from slot 0: keys and values (T, H, D), positions (T, H) int32."""
        tokens = keys.shape[0]
        self.keys[layer, row, :tokens] = keys
        self.values[layer, row, :tokens] = values
        self.positions[layer, row, :tokens] = positions

    def write_queries(self, layer: int, row: int, queries: Tensor, first_position: int) -> None:
        """Put the queries of consecutive text positions, (T, Hq, D) with T <= W, into a row's ring."""
        if self.queries is not None:
            places = torch.arange(first_position, first_position + queries.shape[0], device=queries.device)
            self.queries[layer, row, places % self.shape.query_window] = queries

    def compact(self, first_layer: int, row: int, slots: Tensor) -> None:
        """Move what stays to the front of a row, for N consecutive layers.

        Args:
            first_layer: the first of the layers.
            row: which row.
            slots: (N, H, T) int64, the slots that stay, ascending.
        """
        layers = slice(first_layer, first_layer + slots.shape[0])
        order = slots.transpose(1, 2)  # (N, T, H)
        tokens = order.shape[1]
        wide = order[..., None].expand(-1, -1, -1, self.shape.head_dim)
        for states in (self.keys, self.values):
            states[layers, row, :tokens] = states[layers, row].gather(1, wide)
        self.positions[layers, row, :tokens] = self.positions[layers, row].gather(1, order)

    def clear(self, row: int) -> None:
        """Zero a row, so that states that are not finite cannot reach the row's next sequence."""
        self.keys[:, row].zero_()
        self.values[:, row].zero_()
        if self.queries is not None:
            self.queries[:, row].zero_()
