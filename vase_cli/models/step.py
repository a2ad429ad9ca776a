"""The cache as a model's forward sees it: the running step travels through the model as a keyword argument.

Shapes: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim, S cached tokens
a row can hold.
"""

from typing import Protocol

from torch import Tensor


class ForwardStep(Protocol):
    """The cache's side of one forward."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store a layer's new states and attend.

        Queries are (1, T, Hq, D) in a prefill and (B, 1, Hq, D) in a decode step, as is what is returned; keys and
        values have H heads. Queries and keys are rotated; ``scale`` is the factor on q·k.
        """
        ...


class CacheTensors(Protocol):
    """The tensors of a cache that a fused forward writes to: states (L, B, S, H, D), queries (L, B, W, Hq, D).

    With ``row_starts``, (B + 1,) int64, states are (L, N, H, D), the N slots of all rows.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor | None
    lengths: Tensor
    row_starts: Tensor | None


class DecodeStep(ForwardStep, Protocol):
    """The cache's side of one decode step: (B,) int64 positions of the new tokens, (B,) int32, 0 for an idle row."""

    text_positions: Tensor
    active: Tensor

    @property
    def cache(self) -> CacheTensors:
        """Where the new tokens go."""
        ...

    def attend_to_cache(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Attend once the new states are in the cache: queries (B, Hq, D) to (B, Hq, D)."""
        ...
