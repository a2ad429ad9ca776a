"""What an eviction method is: a frozen dataclass that scores the candidates of a cut.

Letters: N work items (one layer of one sequence), S cached tokens, W window (also the eviction interval),
C = S - W candidates, K = budget - W of them kept, Hq query heads, H KV heads, D head dim.

A cut keeps the last W tokens and the K best of the C candidates before them, separately for each KV head
(arXiv 2606.03928). A method only scores; this base selects, and the cache moves the memory.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.ranking import best


class Noise(Protocol):
    """Counter-based noise of each work item; equal counters give equal draws, on any device.

    Counters are integers or int64 tensors that broadcast with N as their first dimension.
    """

    def gumbel(self, *counters: Tensor | int) -> Tensor:
        """Standard Gumbel noise, float32, of the counters' broadcast shape."""
        ...

    def normal(self, *counters: Tensor | int) -> Tensor:
        """Standard normal noise, float32, of the counters' broadcast shape."""
        ...


@dataclass(frozen=True)
class CacheView:
    """What the cache holds at a cut, for N work items whose rows are equally long.

    Attributes:
        keys: (N, S, H, D), rotated with their original positions; any float dtype.
        values: (N, S, H, D).
        positions: (N, S, H) int32, the text position of each cached token, ascending along S.
        queries: (N, W, Hq, D), the last W queries after rotation, in any order; None unless the method
            needs "queries".
        prompt_tokens: (N,) int64, the length of the item's prompt.
        text_tokens: (N,) int64, the length of the item's text at this cut; tells one cut from another.
        budget: tokens kept in each head, the window included.
        window: W.
        noise: the item's source of randomness.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    queries: Tensor | None
    prompt_tokens: Tensor
    text_tokens: Tensor
    budget: int
    window: int
    noise: Noise

    @property
    def candidates(self) -> int:
        """C, the number of tokens a cut chooses from."""
        return self.keys.shape[1] - self.window

    @property
    def candidate_keys(self) -> Tensor:
        """(N, H, C, D) float32."""
        return self.keys[:, : self.candidates].transpose(1, 2).float()

    @property
    def candidate_values(self) -> Tensor:
        """(N, H, C, D) float32."""
        return self.values[:, : self.candidates].transpose(1, 2).float()

    @property
    def candidate_positions(self) -> Tensor:
        """(N, H, C) int64."""
        return self.positions[:, : self.candidates].transpose(1, 2).long()


@dataclass(frozen=True, kw_only=True)
class EvictionPolicy(ABC):
    """An eviction method; its fields are its parameters, so its ``repr`` is its record.

    Attributes:
        protect_prompt: keep the whole prompt. If it is longer than the kept places, only prompt tokens
            stay, the best-scored of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the engine must provide: "queries" (the last W queries of each layer)."""
    evicts: ClassVar[bool] = True
    """False only for the dense baseline, whose cache is as long as the text."""
    samples: ClassVar[bool] = False
    """Whether a cut draws random numbers."""

    protect_prompt: bool = False

    @abstractmethod
    def keep_scores(self, view: CacheView) -> Tensor:
        """Score the candidates.

        Returns:
            (N, H, C) float32. Higher is kept; ``inf`` is protected, ``-inf`` goes first; NaN says that
            the item's states are not finite, see :func:`vase_cli.eviction._scores.nan_unless_finite`.
        """

    def check(self, budget: int, window: int) -> None:  # noqa: B027 - most methods have nothing to refuse
        """Refuse parameters that cannot work with this budget.

        Raises:
            ConfigError: a parameter is out of range; says which, and the range.
        """

    def select(self, view: CacheView) -> tuple[Tensor, Tensor]:
        """Choose which slots stay.

        Returns:
            slots: (N, H, budget) int64, ascending, so that kept tokens stay in text order; the window's
                slots come last.
            finite: (N,) bool, False for an item with a NaN score, whose slots mean nothing.
        """
        scores = self.keep_scores(view)
        kept = view.budget - view.window
        slots = best(scores, kept, first=self._prompt_mask(view)).sort(dim=-1).values
        window_slots = torch.arange(view.candidates, view.keys.shape[1], device=slots.device)
        slots = torch.cat((slots, window_slots.expand(*slots.shape[:2], -1)), dim=-1)
        return slots, ~scores.isnan().flatten(1).any(dim=1)

    def _prompt_mask(self, view: CacheView) -> Tensor | None:
        if not self.protect_prompt:
            return None
        return view.candidate_positions < view.prompt_tokens[:, None, None]


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a parameter below its least value, with a ``ConfigError``."""
    if value < least:
        raise ConfigError(f"{name} is {value}: it must be at least {least}")


def check_share(name: str, value: float) -> None:
    """Refuse a parameter outside 0 to 1, with a ``ConfigError``."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value}: it must be between 0 and 1")
