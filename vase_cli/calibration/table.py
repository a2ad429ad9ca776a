"""A calibration's figures as a table: one row for each layer, then what they say."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vase_cli.calibration.value_statistics import LEVELS
from vase_cli.reports.tables import Table

HEADINGS = ("layer", "median range", "p99/p50", "max/p50", "heaviest", "threshold", "over it", "position 0")


def calibration_table(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Table:
    """A row for each layer; the notes say what holds for the whole model, and how to read the table."""
    return Table(HEADINGS, _rows(tensors), facts["name"], _notes(facts, tensors), left=0, whole=len(HEADINGS))


def _rows(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Cells under :data:`HEADINGS` for each layer: medians over its KV heads, and the heaviest head's max/p50."""
    medians = tensors["quantiles.rest"][0, :, :, LEVELS.index(0.5)]
    p99 = _ratio(tensors["quantiles.rest"][0, :, :, LEVELS.index(0.99)], medians)
    heaviest = _ratio(tensors["max.rest"][0], medians)
    first = _ratio(tensors["first.mean_range"][:, :, 0], medians)
    cells = []
    for layer in range(medians.shape[0]):
        head = int(heaviest[layer].argmax())
        cells.append(
            [
                str(layer),
                f"{_median(medians[layer]):.3g}",
                f"{_median(p99[layer]):.2f}",
                f"{_median(heaviest[layer]):.2f}",
                f"{float(heaviest[layer, head]):.2f} (head {head})",
                f"{_median(tensors['thresholds'][layer]):.3g}",
                f"{100 * float(tensors['over'][layer].mean()):.1f}%",
                f"{_median(first[layer]):.2f}",
            ]
        )
    return cells


def _notes(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """What holds for the whole model, and how to read the table."""
    medians = tensors["quantiles.rest"][0, :, :, LEVELS.index(0.5)]
    tails = _ratio(tensors["max.rest"][0], medians)
    length = facts["lengths"][facts["task"]]
    spread = "" if length["sd"] is None else f" (sd {length['sd']:,.0f})"
    ends = [f"{facts[key]} {said}" for key, said in (("truncated", "at the limit"), ("failed", "failed")) if facts[key]]
    lines = [
        f"{facts['task']}: {facts['texts']} texts, {facts['tokens']:,} tokens{''.join(f', {end}' for end in ends)}; "
        f"full cache {length['mean']:,.1f} tokens{spread}",
        f"max/p50 over all heads: median {_median(tails):.2f}, from {float(tails.min()):.2f} to "
        f"{float(tails.max()):.2f}",
    ]
    common = facts["outlier_tokens"][:4]
    if common:
        told = ", ".join(f"{one['token']!r} {100 * one['share_of_outliers']:.0f}%" for one in common)
        lines.append(f"most frequent among the largest tokens: {told}")
    return [
        *lines,
        f"Range: maximum minus minimum of a value vector, without the first 8 positions. Threshold by {facts['rule']}; "
        "position 0: mean range of the first token. Both ratios are to the median range of the head; a cell is the "
        "median over the layer's KV heads.",
    ]


def _ratio(values: Tensor, medians: Tensor) -> Tensor:
    """``values / medians``, 0 where the median is."""
    return (values / medians).where(medians > 0, 0.0)


def _median(values: Tensor) -> float:
    return float(values.flatten().median())
