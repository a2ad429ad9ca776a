"""What an attention backend is: prefill of one prompt, and one decode step over the static cache.

Letters: T prompt tokens, B rows, S cached tokens a row can hold, Hq query heads, H KV heads, D head dim.
"""

from typing import Protocol

import torch
from torch import Tensor


class AttentionBackend(Protocol):
    """The same functions with the same shapes for every backend."""

    name: str
    leaves_log_sums: bool
    """Whether it is a :class:`LoggingBackend`."""

    def refusal(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
        """Why this backend cannot serve such a model, and what to do; None if it can."""
        ...

    def prefill(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Causal attention of one prompt.

        Args:
            queries: (T, Hq, D), rotated.
            keys: (T, H, D), rotated.
            values: (T, H, D).
            scale: factor on q·k.

        Returns:
            (T, Hq, D).
        """
        ...

    def decode(
        self,
        queries: Tensor,
        cached_keys: Tensor,
        cached_values: Tensor,
        held: Tensor,
        longest: int | None,
        scale: float,
    ) -> Tensor:
        """Attend with one query of each row to all the row holds, the new token included.

        Args:
            queries: (B, Hq, D), rotated.
            cached_keys: (B, S, H, D) of this layer; the new token's key is there already.
            cached_values: (B, S, H, D).
            held: (B,) int32 on the device, tokens that each row attends to, from slot 0 on; 0 in an idle row.
            longest: the largest of them, on the host; None where the host does not know it.
            scale: factor on q·k.

        Returns:
            (B, Hq, D); zeros in idle rows.
        """
        ...


class LoggingBackend(AttentionBackend, Protocol):
    """A backend whose decode step leaves what a later cut would otherwise compute again."""

    def decode_and_log(
        self,
        queries: Tensor,
        cached_keys: Tensor,
        cached_values: Tensor,
        held: Tensor,
        scale: float,
        log_sums: Tensor,
        candidates: int,
        text_positions: Tensor,
    ) -> Tensor:
        """As :meth:`AttentionBackend.decode`, and note the log sum of each query's softmax over some storage slots.

        Args:
            queries, cached_keys, cached_values, held, scale: as there.
            log_sums: (B, W, Hq) float32; log2 of the sum of exp(score) goes to text position modulo W.
            candidates: C, the first storage slots, which the sum is over.
            text_positions: (B,) int64, of the queries.

        Returns:
            (B, Hq, D); zeros in idle rows.
        """
        ...
