"""VaSE with stochastic leverage (VaSE-DKV, arXiv 2606.03928)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vase_cli.eviction._scores import gaussian_projection
from vase_cli.eviction.base import CacheView
from vase_cli.eviction.curdkv import CurDKV


@dataclass(frozen=True, kw_only=True)
class VaseDKV(CurDKV):
    """Keeps the candidates of largest key and value leverage, under a projection drawn anew at every cut."""

    samples: ClassVar[bool] = True

    def projection(self, view: CacheView) -> Tensor:
        """P, (N, D, rank) float32: another one at each cut."""
        return gaussian_projection(view, self.rank, view.text_tokens[:, None, None])


METHOD = VaseDKV
