"""What a model's forward asks of the cache: the running step travels through the model as a keyword argument.

Letters: L layers, B rows, T prompt tokens, W window, Hq query heads, H KV heads, D head dim, S cached tokens a row can
hold.
"""

from typing import Protocol

from torch import Tensor


class ForwardStep(Protocol):
    """The cache's side of one forward."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store a layer's new states and attend.

        Args:
            layer: which layer.
            queries: (1, T, Hq, D) in a prefill, (B, 1, Hq, D) in a decode step; rotated.
            keys: the same with H heads; rotated.
            values: the same with H heads.
            scale: factor on q·k.

        Returns:
            The shape of ``queries``.
        """
        ...


class CacheTensors(Protocol):
    """The tensors of a cache that a fused forward writes to.

    Attributes:
        keys, values: (L, B, S, H, D).
        queries: (L, B, W, Hq, D), or None where no method asks for them.
        lengths: (B,) int32.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor | None
    lengths: Tensor


class DecodeStep(ForwardStep, Protocol):
    """The cache's side of one decode step.

    Attributes:
        text_positions: (B,) int64, of the new tokens.
        active: (B,) int32, 0 for an idle row.
    """

    text_positions: Tensor
    active: Tensor

    @property
    def cache(self) -> CacheTensors:
        """Where the new tokens go."""
        ...

    def attend_to_cache(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """Attend once the new states are in the cache: queries (B, Hq, D) to (B, Hq, D)."""
        ...
