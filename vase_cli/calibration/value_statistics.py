"""Value states of many texts, measured in constant memory: distributions, largest tokens, and one text in detail.

The outcome depends on the set of texts alone, never on the order in which they finished: distributions are
:class:`vase_cli.calibration.quantiles.TokenSample`, sums are whole numbers, and the largest tokens are a total order's.

Shapes: M metrics, L layers, H KV heads, D head dim, T tokens of a text, K tokens or positions that are kept.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.types import Device

from vase_cli.calibration.quantiles import NOT_ITS_STATE, SAMPLE_TOKENS, TokenSample
from vase_cli.errors import DataError, ModelError
from vase_cli.randomness import hashed

METRICS = ("range", "norm", "variance")
LEVELS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
SEGMENTS = ("first", "prompt", "completion")
FIRST_POSITIONS = 8
LARGEST = 8
EXAMPLE_TOKENS = 2048
_FIXED_POINT = 2.0**20


def statistics_of(values: Tensor) -> Tensor:
    """Range (maximum minus minimum), L2 norm and variance (divided by D) of value vectors, (L, T, H, D).

    Returns (M, L, T, H) float32, in the order of :data:`METRICS`.
    """
    values = values.float()
    value_range = values.amax(dim=-1) - values.amin(dim=-1)
    norm = torch.linalg.vector_norm(values, dim=-1)
    centered = values - values.mean(dim=-1, keepdim=True)
    variance = torch.linalg.vector_norm(centered, dim=-1).square() / values.shape[-1]
    return torch.stack((value_range, norm, variance))


def median_ranges(tensors: Mapping[str, Tensor]) -> Tensor:
    """Take the median range of each head, (L, H) float32, from a calibration's tensors."""
    return tensors["quantiles.rest"][0, :, :, LEVELS.index(0.5)]


def ratio_to_median(values: Tensor, medians: Tensor) -> Tensor:
    """Divide values by medians; 0 where the median is."""
    return (values / medians).where(medians > 0, 0.0)


class ValueStatistics:
    """Statistics of the value states of the texts so far.

    ``samples`` are the distributions by segment: "first" (the first 8 positions of a text), "prompt" and "completion"
    (the other tokens), each of at most ``size`` tokens. At most ``chunk_elements`` numbers are measured at a time.
    """

    def __init__(
        self, layers: int, heads: int, device: Device = "cpu", *, size: int = SAMPLE_TOKENS, chunk_elements: int = 2**24
    ) -> None:
        self.samples = {segment: TokenSample(METRICS, layers, heads, device=device, size=size) for segment in SEGMENTS}
        self._device, self._chunk_elements = device, chunk_elements
        # The largest ranges of each head, falling, and for each the number of its text << 32 with its position; then
        # sums and counts of the ranges at the first positions.
        self._totals: dict[str, Tensor] = {
            "top_ranges": torch.empty((layers, heads, 0), device=device),
            "top_places": torch.empty((layers, heads, 0), dtype=torch.int64, device=device),
            "position_sums": torch.zeros((layers, heads, FIRST_POSITIONS), dtype=torch.int64, device=device),
            "position_counts": torch.zeros(FIRST_POSITIONS, dtype=torch.int64, device=device),
        }
        self._example: dict[str, Tensor] = {}  # its ranges, and whether it was cut short, with its number

    @property
    def most_bytes(self) -> int:
        """Upper limit of the memory held, however long texts are, with what one measurement needs on its way."""
        return sum(sample.most_bytes for sample in self.samples.values()) + 5 * 4 * self._chunk_elements

    @property
    def tokens(self) -> int:
        """Tokens measured."""
        return sum(sample.count for sample in self.samples.values())

    def add(self, number: int, key: int, prompt_tokens: int, values: Tensor, *, whole: bool) -> None:
        """Measure one text: values (L, T, H, D) in text order, on any device.

        ``number`` is the text's among all, and the first that is ``whole``, as it came to its end, becomes the example;
        ``key`` is its "calibration" stream key, see :func:`vase_cli.randomness.stream_key`. ModelError names layer and
        head where a value is not finite, and then none is taken, or where only its range or norm is not, and then some
        tokens of the text may count already.
        """
        layers, tokens, heads, head_dim = values.shape
        step = max(1, self._chunk_elements // (layers * heads * head_dim))
        most = max(1, self._chunk_elements // (4 * len(METRICS) * layers * heads))
        _require_finite(values, step)
        keys = hashed(torch.full((tokens,), key, dtype=torch.int64), torch.arange(tokens))
        rank = [int(not whole), number]
        example: list[Tensor] = []
        for segment, start, end in _spans(prompt_tokens, tokens, most):
            parts = torch.split(values[:, start:end], step, dim=1)
            statistics = torch.cat([statistics_of(part.to(self._device)) for part in parts], dim=2)
            self.samples[segment].update(keys[start:end], statistics)
            ranges = statistics[0].transpose(1, 2)
            self._take_largest(ranges, number, start)
            if segment == "first":
                self._totals["position_sums"][..., start:end] += (ranges.double() * _FIXED_POINT).round().long()
                self._totals["position_counts"][start:end] += 1
            if start < EXAMPLE_TOKENS and (not self._example or rank < self._example["example_rank"].tolist()):
                example.append(ranges[..., : EXAMPLE_TOKENS - start].cpu())
        if example:
            self._example = {"example": torch.cat(example, dim=-1), "example_rank": torch.tensor(rank)}

    def rest(self) -> TokenSample:
        """All tokens but the first 8 positions of each text."""
        return self.samples["prompt"].merged(self.samples["completion"])

    def largest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The largest ranges of each head, falling, with the number of their text and their position in it.

        Returns (L, H, K) float32, int32 and int32; -1 where there are fewer tokens.
        """
        largest = (self._totals[name].cpu() for name in ("top_ranges", "top_places"))
        ranges, places = (torch.nn.functional.pad(top, (0, LARGEST - top.shape[-1]), value=-1) for top in largest)
        texts = torch.where(places < 0, -1, places >> 32)
        positions = torch.where(places < 0, -1, places & 0xFFFFFFFF)
        return ranges, texts.int(), positions.int()

    def mean_first_ranges(self) -> Tensor:
        """(L, H, K) float32: the mean range at each of the first positions, 0.0 where no text reaches."""
        sums, counts = self._totals["position_sums"].cpu(), self._totals["position_counts"].cpu()
        return (sums.double() / _FIXED_POINT / counts.clamp_min(1).double()).float()

    def example(self) -> tuple[int, Tensor] | None:
        """The number of the example text, and its ranges, (L, H, at most 2048 tokens) float32."""
        return (int(self._example["example_rank"][1]), self._example["example"]) if self._example else None

    def state(self) -> dict[str, Tensor]:
        """All tensors, on the CPU; equal measurements have equal states."""
        state = {name: tensor.cpu().clone() for name, tensor in (self._totals | self._example).items()}
        for segment, sample in self.samples.items():
            state |= {f"{segment}.{name}": tensor for name, tensor in sample.state().items()}
        return state

    def restore(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Take over a state that was read from ``path``; DataError if it is not one of such a measurement."""
        for segment, sample in self.samples.items():
            prefix = f"{segment}."
            sample.restore(path, {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)})
        try:
            self._totals = {name: state[name].clone().to(self._device) for name in self._totals}
            self._example = {name: state[name] for name in ("example", "example_rank") if "example" in state}
        except KeyError as error:
            raise DataError(f"{path}: {NOT_ITS_STATE}") from error

    def _take_largest(self, ranges: Tensor, number: int, start: int) -> None:
        """Merge (L, H, T) new ranges, from position ``start`` on; equal ranges fall to the earlier place."""
        ranges, order = ranges.sort(dim=-1, descending=True, stable=True)
        places = order[..., :LARGEST] + ((number << 32) + start)
        ranges = torch.cat((self._totals["top_ranges"], ranges[..., :LARGEST]), dim=-1)
        places, by_place = torch.cat((self._totals["top_places"], places), dim=-1).sort(dim=-1)
        ranges, by_range = ranges.gather(-1, by_place).sort(dim=-1, descending=True, stable=True)
        self._totals["top_ranges"] = ranges[..., :LARGEST].contiguous()
        self._totals["top_places"] = places.gather(-1, by_range)[..., :LARGEST].contiguous()


def _require_finite(values: Tensor, step: int) -> None:
    """Look at ``step`` tokens at a time, and wait for the device once."""
    parts = torch.split(values, step, dim=1)
    finite = torch.stack([part.isfinite().all() for part in parts]).tolist()
    if not all(finite):
        number = finite.index(False)
        layer, token, head, _ = (int(place) for place in (~parts[number].isfinite()).nonzero()[0])
        raise ModelError(f"layer {layer}, KV head {head}: the value of token {number * step + token} is not finite")


def _spans(prompt_tokens: int, tokens: int, most: int) -> Iterator[tuple[str, int, int]]:
    """Split positions into spans of one segment each, not longer than ``most``."""
    first_tokens = min(FIRST_POSITIONS, tokens)
    bounds = (0, first_tokens, max(first_tokens, min(prompt_tokens, tokens)), tokens)
    for segment, first, last in zip(SEGMENTS, bounds, bounds[1:], strict=False):
        for start in range(first, last, most):
            yield segment, start, min(start + most, last)
