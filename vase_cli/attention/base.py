"""Attention backends: prefill of prompts, and one decode step over the static cache.

Shapes: T prompt tokens, P prompts, B rows, S cached tokens a row can hold, W window, Hq query heads, H KV heads,
D head dim.
"""

import itertools
from collections.abc import Iterator, Sequence
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


def upload(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Integers on a device, as int64; the host waits for nothing."""
    tensor = torch.tensor(numbers, dtype=torch.int64)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class PromptPack:
    """Prompts whose tokens lie one behind the other, each in a place of its own.

    Attributes:
        bounds: P + 1 numbers of tokens, where each prompt begins, and where the last one ends.
        device: of what follows.
        starts: the bounds, (P + 1,) int32.
        last: (P,) int64, the last token of each.
        positions: (T,) int64, where each token stands in its prompt.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        """Prompts of so many tokens, at least one each."""
        self.bounds = tuple(itertools.accumulate(lengths, initial=0))
        self.device = device
        self.starts = upload(self.bounds, device).int()
        self.last = upload([end - 1 for end in self.bounds[1:]], device)
        tokens = torch.arange(self.bounds[-1], device=device)
        self.positions = tokens - self.starts[torch.searchsorted(self.last, tokens)]
        self._blocks: dict[int, Tensor] = {}

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(end - start for start, end in itertools.pairwise(self.bounds))

    def spans(self) -> Iterator[slice]:
        """The tokens of each prompt."""
        return itertools.starmap(slice, itertools.pairwise(self.bounds))

    def blocks(self, size: int) -> Tensor:
        """The prompts in blocks of so many tokens from their own starts, (blocks, 3) int32 on the device.

        Of each: its first token, where its prompt begins and ends. Those with most tokens before them come first.
        """
        if size not in self._blocks:
            pairs = itertools.pairwise(self.bounds)
            blocks = [(first, start, end) for start, end in pairs for first in range(start, end, size)]
            blocks.sort(key=lambda block: block[1] - block[0])
            self._blocks[size] = upload(blocks, self.device).int()
        return self._blocks[size]


class AttentionBackend(Protocol):
    """The same functions with the same shapes for every backend."""

    name: str
    supports_lse: bool
    """True if ``decode`` takes ``lse_out``; the engine passes none to others."""
    supports_packs: bool
    """True if ``prefill`` takes ``pack``; the engine prefills prompts one by one with others."""
    supports_row_starts: bool
    """True if ``decode`` takes ``row_places``; the engine has rows of one length for others."""

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse a model that this backend cannot serve with a ``ConfigError`` that says why, and what to do."""

    def prefill(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, pack: PromptPack | None = None
    ) -> Tensor:
        """Causal attention of prompts: rotated queries (T, Hq, D) and keys (T, H, D), values (T, H, D).

        ``scale`` is the factor on q·k; ``pack`` says which tokens are of one prompt, None that all are. A prompt
        attends to itself alone, and no bit of it may depend on the others. Returns (T, Hq, D).
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
