"""Distributions of token statistics in constant memory: a uniform sample of the tokens, and exact maxima.

Every token has a key, a hash of its text and position, and the sample is the tokens of the smallest keys (bottom-k
sampling, Cohen and Kaplan, PODC 2007). It depends on the set of tokens alone, never on the order in which they came,
so parts that were measured apart merge into exactly what the whole would have given. All layers, heads and metrics
share the keys. With n sampled tokens a quantile's rank is off by sqrt(q (1 - q) / n): at most 0.28% at one standard
deviation for the usual 32,768, and by nothing as long as every token still fits.

Letters: M metrics, L layers, H KV heads, T new tokens, n sampled tokens, Q levels.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vase_cli.errors import DataError, ModelError

SAMPLE_TOKENS = 32_768
_FIRST_ROOM = 1024


class TokenSample:
    """What was seen of the tokens of one kind.

    Attributes:
        metrics: what the M statistics are called.
        size: most tokens in the sample.
        count: tokens seen.
        maxima: (M, L, H) float32 on the device, the exact maxima; ``-inf`` before the first token.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        layers: int,
        heads: int,
        *,
        device: torch.device | str = "cpu",
        size: int = SAMPLE_TOKENS,
    ) -> None:
        self.metrics = tuple(metrics)
        self.size = size
        self.count = 0
        shape = (len(self.metrics), layers, heads)
        self.maxima = torch.full(shape, -math.inf, device=device)
        # Keys stay on the host: which tokens are taken is known without asking the device.
        self._keys = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty((0, *shape), device=device)

    def __len__(self) -> int:
        """n, the tokens in the sample."""
        return self._keys.shape[0]

    @property
    def bytes(self) -> int:
        """Memory of the sample, allocated room included."""
        return self._values.nbytes + self._keys.nbytes + self.maxima.nbytes

    @property
    def most_bytes(self) -> int:
        """What :attr:`bytes` may grow to, and the copy that the growth needs."""
        return 2 * 4 * self.size * self.maxima.numel()

    def update(self, keys: Tensor, statistics: Tensor) -> None:
        """Take new tokens in.

        Args:
            keys: (T,) int64 on the CPU, one for each token, each only once in a sample's life.
            statistics: (M, L, T, H) float32 on the device.

        Raises:
            ModelError: a statistic is not finite; names metric, layer and head. Nothing was taken.
        """
        if not keys.numel():
            return
        highest = statistics.amax(dim=2)
        # NaN and infinity survive a maximum; a statistic may not be negative infinity either.
        if not bool((highest.isfinite() & statistics.amin(dim=2).isfinite()).all()):
            self._refuse(statistics)
        self.maxima = torch.maximum(self.maxima, highest)
        self.count += keys.shape[0]
        self._take(keys, statistics.movedim(2, 0))

    def merged(self, other: "TokenSample") -> "TokenSample":
        """The sample of both sets of tokens, which have no token in common; exactly that of the whole."""
        if (self.metrics, self.size, self.maxima.shape) != (other.metrics, other.size, other.maxima.shape):
            raise ValueError("samples of different kinds do not merge")
        whole = TokenSample(self.metrics, *self.maxima.shape[1:], device=self.maxima.device, size=self.size)
        for part in (self, other):
            whole._take(part._keys, part._values[: len(part)])
            whole.count += part.count
            whole.maxima = torch.maximum(whole.maxima, part.maxima.to(whole.maxima.device))
        return whole

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """The smallest sampled value that at least the share ``level`` of the sample does not exceed.

        Returns:
            (M, L, H, Q) float32 on the CPU; 0.0 without tokens.
        """
        count = len(self)
        if not count:
            return torch.zeros((*self.maxima.shape, len(levels)))
        ranks = torch.tensor([rank_of(level, count) for level in levels])
        by_metric = [self.values(metric).sort(dim=0).values[ranks.to(self._values.device)] for metric in self.metrics]
        return torch.stack(by_metric).movedim(1, -1).contiguous().cpu()

    def values(self, metric: str) -> Tensor:
        """(n, L, H) float32 on the device: one metric of the sampled tokens, in no order."""
        return self._values[: len(self), self.metrics.index(metric)]

    def largest(self) -> Tensor:
        """(M, L, H) float32 on the CPU: the exact maxima; 0.0 without tokens."""
        return self.maxima.cpu() if self.count else torch.zeros(self.maxima.shape)

    def state(self) -> dict[str, Tensor]:
        """All there is to know, on the CPU and in the order of the keys: equal samples have equal states."""
        keys, order = self._keys.sort()
        values = self._values[order.to(self._values.device)].cpu()
        return {"keys": keys, "values": values, "maxima": self.maxima.cpu(), "count": torch.tensor(self.count)}

    def restore(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Become what ``state`` says; ``path`` is where it was read.

        Raises:
            DataError: it is not the state of such a sample.
        """
        keys, values = state.get("keys"), state.get("values")
        maxima, count = state.get("maxima"), state.get("count")
        shape = tuple(self.maxima.shape)
        if (
            keys is None
            or values is None
            or maxima is None
            or count is None
            or tuple(maxima.shape) != shape
            or tuple(values.shape) != (keys.numel(), *shape)
            or keys.numel() != min(int(count), self.size)
        ):
            raise DataError(f"{path}: not the state of this calibration; delete it to measure from the start")
        device = self.maxima.device
        self._keys, self._values = keys.clone(), values.to(device, torch.float32).clone()
        self.maxima, self.count = maxima.to(device, torch.float32), int(count)

    def _take(self, keys: Tensor, values: Tensor) -> None:
        """Keep the smallest keys of those held and these, with their values, (T, M, L, H)."""
        held = len(self)
        total = held + keys.shape[0]
        if total <= self.size:
            self._reserve(total)
            self._keys = torch.cat((self._keys, keys))
            self._values[held:total] = values
            return
        if held == self.size:
            below = (keys < self._keys.max()).nonzero().flatten()
            if not below.numel():
                return
            keys, values = keys[below], values[below.to(values.device)]
        chosen = torch.cat((self._keys, keys)).argsort(stable=True)[: self.size]
        new = chosen[chosen >= held] - held
        kept = torch.zeros(held, dtype=torch.bool)
        kept[chosen[chosen < held]] = True
        total = chosen.shape[0]
        places = torch.cat(((~kept).nonzero().flatten(), torch.arange(held, total)))
        self._reserve(total)
        if total > held:
            self._keys = torch.cat((self._keys, torch.empty(total - held, dtype=torch.int64)))
        self._keys[places] = keys[new]
        device = self._values.device
        self._values[places.to(device)] = values[new.to(values.device)].to(device)

    def _reserve(self, tokens: int) -> None:
        """Room for so many tokens; it doubles until it is the sample's size, and stays then."""
        room = self._values.shape[0]
        if tokens <= room:
            return
        larger = min(self.size, max(tokens, 2 * room, _FIRST_ROOM))
        values = self._values.new_empty((larger, *self._values.shape[1:]))
        values[:room] = self._values
        self._values = values

    def _refuse(self, statistics: Tensor) -> None:
        metric, layer, token, head = (int(number) for number in (~statistics.isfinite()).nonzero()[0])
        value = float(statistics[metric, layer, token, head])
        raise ModelError(f"layer {layer}, KV head {head}: the {self.metrics[metric]} of a value is {value}")


def rank_of(level: float, count: int) -> int:
    """The index, in rising order, of the smallest of ``count`` values that the share ``level`` does not exceed."""
    return min(count, max(1, math.ceil(level * count - 1e-9))) - 1
