"""From the numbers of a calibration to its charts."""

import math
import statistics
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vase_cli.reports.axes import short_number
from vase_cli.reports.calibration_words import HEAVY_RATIO
from vase_cli.reports.charts import (
    Grid,
    LayerRange,
    PositionRange,
    Track,
    ValidatedRun,
    first_positions,
    heat_maps,
    heat_top,
    layer_ranges,
    thought,
    validation,
)
from vase_cli.reports.drawing import Drawing

CHARTS = ("tail-weight", "range-by-layer", "first-positions", "thought", "validation")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Calibration:
    """A calibration folder as plain numbers, with what the page derives from them.

    Attributes:
        facts: calibration.json.
        numbers: calibration.safetensors, every tensor as nested lists.
        validation: validation.json, or None.
    """

    facts: Record
    numbers: Mapping[str, Any]
    validation: Record | None = None

    def quantile(self, level: float, *, segment: str = "rest", metric: str = "range") -> list[list[float]]:
        """One quantile over layer and head."""
        index = [round(each, 6) for each in self.facts["levels"]].index(level)
        grid = self.numbers[f"quantiles.{segment}"][self.facts["metrics"].index(metric)]
        return [[head[index] for head in layer] for layer in grid]

    def largest(self, *, segment: str = "rest", metric: str = "range") -> list[list[float]]:
        """The maximum over layer and head."""
        grid: list[list[float]] = self.numbers[f"max.{segment}"][self.facts["metrics"].index(metric)]
        return grid

    def tail_weight(self, *, segment: str = "rest", metric: str = "range") -> tuple[Grid, Grid]:
        """p99/p50 and max/p50 over layer and head; None where there is no token or the median is 0."""
        p50 = self.quantile(0.5, segment=segment, metric=metric)
        return (
            _ratios(self.quantile(0.99, segment=segment, metric=metric), p50),
            _ratios(self.largest(segment=segment, metric=metric), p50),
        )

    def first_ratios(self, position: int) -> list[float]:
        """Of every head, its mean range at one of the first positions over its median in the rest."""
        means = [[head[position] for head in layer] for layer in self.numbers["first.mean_range"]]
        # A mean of 0 in every head is a position that no text reaches.
        return flat(_ratios(means, self.quantile(0.5))) if any(map(any, means)) else []

    def heat_top(self) -> float:
        """Where the heat colours of the maps and of the text end."""
        return heat_top(*self.tail_weight(), least=HEAVY_RATIO)


def drawings(calibration: Calibration) -> dict[str, Drawing]:
    """The charts that this calibration has the numbers for, by name."""
    each = {
        "tail-weight": _tail_weight(calibration),
        "range-by-layer": _range_by_layer(calibration),
        "first-positions": _first_positions(calibration),
        "thought": _thought(calibration),
        "validation": _validation(calibration),
    }
    return {name: drawing for name, drawing in each.items() if drawing is not None}


def visible(text: str) -> str:
    """Text in which a character that has no shape, or that moves others, shows as its code or symbol."""
    return "".join(map(visible_character, text))


def visible_character(character: str) -> str:
    """One character of :func:`visible` text."""
    code = ord(character)
    if code < 0x20:
        return {"\n": "↵", "\t": "⇥"}.get(character, chr(0x2400 + code))
    if code == 0x7F:
        return "␡"
    # Control, format, surrogate, unassigned, and separators of lines.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp"):
        return f"\\u{{{code:x}}}"
    return character


def _ratios(values: Sequence[Sequence[float]], medians: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [
        [ratio_of(value, p50) for value, p50 in zip(row, base, strict=True)]
        for row, base in zip(values, medians, strict=True)
    ]


def ratio_of(value: float, p50: float) -> float | None:
    """A value as a multiple of a median; None of a median of 0."""
    ratio = value / p50 if p50 > 0 else math.inf
    return ratio if math.isfinite(ratio) else None


def flat(grid: Iterable[Iterable[float | None]]) -> list[float]:
    """The values of a grid that exist."""
    return [value for row in grid for value in row if value is not None]


def median(values: Sequence[float]) -> float | None:
    """The median; None of no values."""
    return statistics.median(values) if values else None


def _tail_weight(calibration: Calibration) -> Drawing:
    upper, largest = calibration.tail_weight()
    return heat_maps({"p99 / p50": upper, "max / p50": largest}, calibration.heat_top())


def _range_by_layer(calibration: Calibration) -> Drawing | None:
    if not calibration.facts["counts"]["rest"]:
        return None
    parts = (calibration.quantile(0.01), calibration.quantile(0.5), calibration.quantile(0.99), calibration.largest())
    return layer_ranges(
        [LayerRange(min(low), p50, max(high), max(top)) for low, p50, high, top in zip(*parts, strict=True)]
    )


def _first_positions(calibration: Calibration) -> Drawing:
    positions = []
    for position in range(len(calibration.numbers["first.mean_range"][0][0])):
        found = calibration.first_ratios(position)
        positions.append(
            PositionRange(str(position), min(found, default=None), median(found), max(found, default=None))
        )
    medians = calibration.quantile(0.5)
    low, high = (flat(_ratios(calibration.quantile(level), medians)) for level in (0.01, 0.99))
    rest = PositionRange("rest", median(low), 1.0 if low else None, median(high))
    return first_positions([*positions, rest])


def _tracks(example: Record, ranges: Sequence[Sequence[float]]) -> list[Track]:
    tracks = []
    parts = zip(example["heads"], example["thresholds"], example["medians"], ranges, strict=True)
    for (layer, head), threshold, p50, values in parts:
        unit, measure = (p50, "range / median") if p50 > 0 else (1.0, "range (its median is 0)")
        notes = {
            position: f"position {position}, token {visible(example['tokens'][position])}: {short_number(value / unit)}"
            for position, value in enumerate(values)
            if value > threshold
        }
        scaled = [value / unit for value in values]
        tracks.append(Track(f"layer {layer}, KV head {head}: {measure}", p50 > 0, scaled, threshold / unit, notes))
    return tracks


def _thought(calibration: Calibration) -> Drawing | None:
    example = calibration.facts["example"]
    if example is None or not example["tokens"] or not example["heads"]:
        return None
    return thought(_tracks(example, calibration.numbers["example.range"]), example["prompt_tokens"])


def _validation(calibration: Calibration) -> Drawing | None:
    if calibration.validation is None or not calibration.validation["runs"]:
        return None
    keys = ("label", "accuracy", "standard_error", "difference", "difference_standard_error")
    return validation([ValidatedRun(*(run[key] for key in keys)) for run in calibration.validation["runs"]])
