"""What an attention backend is: prefill of one prompt, and one decode step over the static cache.

Letters: T prompt tokens, B rows, S cached tokens a row can hold, Hq query heads, H KV heads, D head dim.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class AttentionBackend(Protocol):
    """The same functions with the same shapes for every backend."""

    name: str

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
        keys: Tensor,
        values: Tensor,
        cached_keys: Tensor,
        cached_values: Tensor,
        lengths: Tensor,
        live: Sequence[int],
        scale: float,
    ) -> Tensor:
        """Append one token to each row and attend to all the row holds, the new token included.

        Args:
            queries: (B, Hq, D), rotated.
            keys: (B, H, D), the new tokens' keys, rotated.
            values: (B, H, D).
            cached_keys: (B, S, H, D) of this layer; the new keys are written at ``lengths``.
            cached_values: (B, S, H, D).
            lengths: (B,) int32 on the device, tokens held before this one; 0 in an idle row.
            live: the same numbers on the host, -1 for an idle row, whose output nobody reads.
            scale: factor on q·k.

        Returns:
            (B, Hq, D); finite in idle rows.
        """
        ...
