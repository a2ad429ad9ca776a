"""Eviction methods: a frozen dataclass that scores the candidates of a cut.

Shapes: N work items (one layer of one sequence), R storage rows, S cached tokens, W window (also the eviction
interval), C = S - W candidates, K = budget - W of them kept, Hq query heads, H KV heads, D head dim.

A cut keeps the last W tokens and the K best of the C candidates before them, separately for each KV head
(arXiv 2606.03928). A method only scores; the cache selects and moves the memory.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from vase_cli.errors import ConfigError
from vase_cli.kernels.ops import Place, TorchOps
from vase_cli.kernels.ranking import best
from vase_cli.randomness import SequenceNoise


@dataclass(frozen=True)
class CacheView:
    """The cache's content at a cut, for N work items whose rows are equally long.

    A method's scores are in text order, as are ``candidate_keys`` and its like; storage is not.

    Attributes:
        keys, values: (R, S, H, D), any float dtype; keys are rotated with their original positions.
        positions: (R, H, S) int32, the text position of each cached token in text order, ascending along S.
        queries: (R, W, Hq, D), the last W queries after rotation, in any order; None unless the method needs them.
        prompt_lens, seq_lens: (N,) int64, the length of the item's prompt, and of its text at this cut.
        budget, window: tokens kept in each head, the window included; W.
        noise: the item's source of randomness.
        slot_mapping: (R, H, S) int32, in text order, each token's place along S of ``keys`` and ``values``; None if the
            same.
        rows: (N,) int64, the items' storage rows; None for all of them, N = R.
        ranges: (R, H, S) float32 by storage slot, the value ranges from earlier cuts, negative where there is none, out
            of date for the last W candidates; a kernel adds its own. None where they are not kept.
        lse: (R, W, Hq) float32, log2 of the sum of exp(q·k / sqrt(D)) over the candidates for each of the
            queries, in their order; None where a cut must compute them itself.
        thresholds: (N, H) float32, the value range above which a token is an outlier; None without calibration.
        ops: what computes the scores on this device.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    queries: Tensor | None
    prompt_lens: Tensor
    seq_lens: Tensor
    budget: int
    window: int
    noise: SequenceNoise
    slot_mapping: Tensor | None = None
    rows: Tensor | None = None
    lse: Tensor | None = None
    ranges: Tensor | None = None
    thresholds: Tensor | None = None
    ops: TorchOps = field(default_factory=TorchOps)

    @property
    def candidates(self) -> int:
        """C, the number of tokens a cut chooses from."""
        return self.keys.shape[1] - self.window

    @property
    def place(self) -> Place:
        """Where the candidates stand."""
        return Place(self.item_rows, self.slot_mapping, self.candidates)

    @property
    def candidate_keys(self) -> Tensor:
        """(N, H, C, D) float32."""
        return self.place.states(self.keys)

    @property
    def candidate_values(self) -> Tensor:
        """(N, H, C, D) float32."""
        return self.place.states(self.values)

    @property
    def candidate_positions(self) -> Tensor:
        """(N, H, C) int64."""
        return self.of_items(self.positions[..., : self.candidates]).long()

    def positions_below(self, bound: Tensor | int) -> Tensor:
        """(N, H, C) bool: candidates whose text position is below ``bound``, which broadcasts."""
        return self.of_items(self.positions[..., : self.candidates]) < bound

    @property
    def kept_queries(self) -> Tensor:
        """(R, W, Hq, D), ``queries``; a ``RuntimeError`` if the method's ``needs`` does not name them."""
        if self.queries is None:
            raise RuntimeError("this method reads queries: its `needs` must name them")
        return self.queries

    @property
    def item_queries(self) -> Tensor:
        """(N, W, Hq, D); see ``kept_queries``."""
        return self.of_items(self.kept_queries)

    @property
    def item_rows(self) -> Tensor:
        """(N,) int64, the storage row of each item."""
        return torch.arange(self.keys.shape[0], device=self.keys.device) if self.rows is None else self.rows

    def of_items(self, per_row: Tensor) -> Tensor:
        """The items' rows of (R, ...): (N, ...)."""
        return per_row if self.rows is None else per_row[self.rows]


@dataclass(frozen=True, kw_only=True)
class EvictionPolicy(ABC):
    """An eviction method; its fields are its parameters, so its ``repr`` is its record.

    Attributes:
        protect_prompt: keep the whole prompt. If it is longer than the kept places, only prompt tokens
            stay, the best-scored of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the engine must provide: "queries" (the last W of each layer); or may: "ranges" (from earlier cuts)."""
    evicts: ClassVar[bool] = True
    """False only for the dense baseline, whose cache is as long as the text."""
    batches: ClassVar[bool] = False
    """True if a cut may score many sequences at once where kernels score in place. It promises that the bits of an
    item's scores do not depend on N, and that ``keep_scores`` makes nothing as large as ``candidate_keys`` of all N."""

    protect_prompt: bool = False

    @property
    def reads_thresholds(self) -> bool:
        """True if a cut reads the view's ``thresholds``, which the option ``outliers`` of such a method says."""
        return bool(getattr(self, "outliers", None) == "threshold")

    @abstractmethod
    def keep_scores(self, view: CacheView) -> Tensor:
        """Score the candidates: (N, H, C) float32.

        Higher is kept; ``inf`` is protected, ``-inf`` goes first; NaN says that the item's states are not finite, see
        :func:`vase_cli.eviction._scores.nan_unless_finite`.
        """

    def check(self, budget: int, window: int) -> None:  # noqa: B027 - most methods have nothing to refuse
        """Refuse parameters that cannot work with this budget with a ``ConfigError`` that says which, and the range."""

    def select(self, view: CacheView, scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose which tokens stay, by ``keep_scores`` or by ``scores`` that it has given.

        Returns (N, H, budget) int64, numbers in text order, ascending, the window's last; and (N,) bool, False for an
        item with a NaN score, whose tokens mean nothing.
        """
        scores = self.keep_scores(view) if scores is None else scores
        places = view.budget - view.window
        kept = best(scores, places, must_keep=self.prompt_mask(view)).sort(dim=-1).values
        window = torch.arange(view.candidates, view.keys.shape[1], device=kept.device)
        finite = ~scores.isnan().flatten(1).any(dim=1)
        return torch.cat((kept, window.expand(*kept.shape[:2], -1)), dim=-1), finite

    def prompt_mask(self, view: CacheView) -> Tensor | None:
        """(N, H, C) bool, the tokens that stay whatever their score; None for none."""
        return view.positions_below(view.prompt_lens[:, None, None]) if self.protect_prompt else None


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a parameter below its least value with a ``ConfigError``."""
    if value < least:
        raise ConfigError(f"{name} is {value}: it must be at least {least}")
