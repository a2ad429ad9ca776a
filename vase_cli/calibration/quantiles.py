"""Distributions of token statistics in constant memory: a uniform sample of the tokens, and exact maxima.

Every token has a key, a hash of its text and position, and the sample is the tokens of the smallest keys (bottom-k
sampling, Cohen and Kaplan, PODC 2007). It depends on the set of tokens alone, never on the order in which they came,
so parts that were measured apart merge into exactly the sample of the whole. All layers, heads and metrics
share the keys. With n sampled tokens a quantile's rank is off by sqrt(q (1 - q) / n): at most 0.28% at one standard
deviation for the usual 32,768, and by nothing as long as every token still fits.

Shapes: M metrics, L layers, H KV heads, T new tokens, n sampled tokens, Q levels.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.types import Device

from vase_cli.errors import DataError, ModelError

SAMPLE_TOKENS = 32_768
NOT_ITS_STATE = "not the state of this calibration; delete it to measure from the start"
_FIRST_ROOM = 1024


class TokenSample:
    """A sample of the ``count`` tokens of one kind that were seen, at most ``size`` of them.

    ``metrics`` names the M statistics; ``maxima``, (M, L, H) float32 on the device, are exact; ``-inf`` if empty.
    """

    def __init__(
        self, metrics: Sequence[str], layers: int, heads: int, *, device: Device = "cpu", size: int = SAMPLE_TOKENS
    ) -> None:
        self.metrics, self.size, self.count = tuple(metrics), size, 0
        self.maxima = torch.full((len(self.metrics), layers, heads), -math.inf, device=device)
        # Keys stay on the host: which tokens are taken is known without asking the device.
        self._keys = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty((0, *self.maxima.shape), device=device)

    def __len__(self) -> int:
        """n, the tokens in the sample."""
        return self._keys.shape[0]

    @property
    def most_bytes(self) -> int:
        """Upper limit of memory, with the copy that the growth needs."""
        return 2 * 4 * self.size * self.maxima.numel()

    def update(self, keys: Tensor, statistics: Tensor) -> None:
        """Take new tokens in: (M, L, T, H) float32 statistics on the device.

        Their keys, (T,) int64 on the CPU, come only once in a sample's life. ModelError names metric, layer and head of
        a statistic that is not finite; then nothing was taken.
        """
        highest = statistics.amax(dim=2)
        # NaN and infinity survive a maximum; a statistic may not be negative infinity either.
        if not bool((highest.isfinite() & statistics.amin(dim=2).isfinite()).all()):
            metric, layer, token, head = (int(number) for number in (~statistics.isfinite()).nonzero()[0])
            value = float(statistics[metric, layer, token, head])
            raise ModelError(f"layer {layer}, KV head {head}: the {self.metrics[metric]} of a value is {value}")
        self._take(keys, statistics.movedim(2, 0), highest, keys.shape[0])

    def merged(self, other: "TokenSample") -> "TokenSample":
        """The sample of both sets of tokens, which have no token in common; exactly that of the whole."""
        if (self.metrics, self.size, self.maxima.shape) != (other.metrics, other.size, other.maxima.shape):
            raise ValueError("samples of different kinds do not merge")
        whole = TokenSample(self.metrics, *self.maxima.shape[1:], device=self.maxima.device, size=self.size)
        for part in (self, other):
            whole._take(part._keys, part._values[: len(part)], part.maxima, part.count)
        return whole

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """The smallest sampled value that at least the share ``level`` of the sample does not exceed.

        Returns (M, L, H, Q) float32 on the CPU; 0.0 without tokens.
        """
        if not len(self):
            return torch.zeros((*self.maxima.shape, len(levels)))
        # Metric by metric, as sorting needs a copy.
        by_metric = [quantiles(self.values(metric), levels) for metric in self.metrics]
        return torch.stack(by_metric).movedim(1, -1).contiguous().cpu()

    def values(self, metric: str) -> Tensor:
        """(n, L, H) float32 on the device: one metric of the sampled tokens, in no order."""
        return self._values[: len(self), self.metrics.index(metric)]

    def largest(self) -> Tensor:
        """(M, L, H) float32 on the CPU: the exact maxima; 0.0 without tokens."""
        return self.maxima.cpu() if self.count else torch.zeros(self.maxima.shape)

    def state(self) -> dict[str, Tensor]:
        """All tensors, on the CPU and in the order of the keys: equal samples have equal states."""
        keys, order = self._keys.sort()
        values = self._values[order.to(self._values.device)].cpu()
        return {"keys": keys, "values": values, "maxima": self.maxima.cpu(), "count": torch.tensor(self.count)}

    def restore(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Take over a state that was read from ``path``; DataError if it is not one of such a sample."""
        shape, device = self.maxima.shape, self.maxima.device
        fits = state.keys() == {"keys", "values", "maxima", "count"} and state["maxima"].shape == shape
        tokens = min(int(state["count"]), self.size) if fits else 0
        if not fits or (state["keys"].numel(), state["values"].shape) != (tokens, (tokens, *shape)):
            raise DataError(f"{path}: {NOT_ITS_STATE}")
        self._keys, self.count = state["keys"].clone(), int(state["count"])
        self._values = state["values"].to(device, torch.float32).clone()
        self.maxima = state["maxima"].to(device, torch.float32)

    def _take(self, keys: Tensor, values: Tensor, maxima: Tensor, count: int) -> None:
        """Keep the smallest keys of those held and these, with their values, (T, M, L, H)."""
        self.maxima = torch.maximum(self.maxima, maxima.to(self.maxima.device))
        self.count += count
        held = len(self)
        kept = torch.cat((self._keys, keys)).argsort(stable=True)[: self.size]
        new = kept[kept >= held] - held
        free = torch.ones(held, dtype=torch.bool)
        free[kept[kept < held]] = False
        places = torch.cat((free.nonzero().flatten(), torch.arange(held, len(kept))))
        room = self._values.shape[0]
        if len(kept) > room:  # it doubles until it is the sample's size, and stays then
            larger = min(self.size, max(len(kept), 2 * room, _FIRST_ROOM))
            self._values = torch.cat((self._values, self._values.new_empty((larger - room, *self.maxima.shape))))
        self._keys = torch.cat((self._keys, keys.new_empty(len(kept) - held)))
        self._keys[places] = keys[new]
        device = self._values.device
        self._values[places.to(device)] = values[new.to(values.device)].to(device)


def quantiles(values: Tensor, levels: Sequence[float]) -> Tensor:
    """(Q, ...): along the first dimension of (n, ...), the smallest value that the share of a level does not exceed."""
    count = values.shape[0]
    ranks = [min(count, max(1, math.ceil(level * count - 1e-9))) - 1 for level in levels]
    return values.sort(dim=0).values[torch.tensor(ranks, device=values.device)]
