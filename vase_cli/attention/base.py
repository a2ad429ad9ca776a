"""Attention backends: prefill of one prompt, and one decode step over the static cache.

Shapes: T prompt tokens, B rows, S cached tokens a row can hold, W window, Hq query heads, H KV heads, D head dim.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class LSEOut(NamedTuple):
    """Place for the log sum of each query's softmax, which a cut after the decode step would else compute again."""

    out: Tensor  # (B, W, Hq) float32; log2 of the sum of exp(score) goes to text position modulo W
    candidates: int  # C, the first storage slots, which the sum is over
    text_positions: Tensor  # (B,) int64, of the queries


class RowPlaces(NamedTuple):
    """Where rows of different lengths stand, one behind the other."""

    starts: Tensor  # (B + 1,) int64, the slot where each row begins, and where the last one ends
    longest: int  # S; slots of the longest row


class AttentionBackend(Protocol):
    """The same functions with the same shapes for every backend."""

    name: str
    supports_lse: bool
    """True if ``decode`` takes ``lse_out``; the engine passes none to others."""
    supports_row_starts: bool
    """True if ``decode`` takes ``row_places``; the engine has rows of one length for others."""

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse a model that this backend cannot serve with a ``ConfigError`` that says why, and what to do."""

    def prefill(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Causal attention of one prompt: rotated queries (T, Hq, D) and keys (T, H, D), values (T, H, D).

        ``scale`` is the factor on q·k. Returns (T, Hq, D).
        """

    def decode(
        self, queries: Tensor, cached_keys: Tensor, cached_values: Tensor, seq_lens: Tensor, longest: int | None,
        scale: float, lse_out: LSEOut | None = None, row_places: RowPlaces | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend with one query of each row to all the row holds, the new token included.

        Args:
            queries: (B, Hq, D), rotated.
            cached_keys, cached_values: (B, S, H, D) of this layer; the new token is there already. With ``row_places``
                they are (N, H, D), the N slots of all rows.
            seq_lens: (B,) int32 on the device, tokens that each row attends to, from slot 0 on; 0 in an idle row.
            longest: the largest of them, on the host; None where the host does not know it.
            scale: factor on q·k.
            lse_out: where to leave the log sums of the queries; None leaves none.
            row_places: where each row stands; no bit of a row may depend on its own length. None for rows of S slots.

        Returns (B, Hq, D); zeros in idle rows.
        """
