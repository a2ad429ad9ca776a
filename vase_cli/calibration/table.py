"""A calibration's figures as a table: one row for each layer, then what they say."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vase_cli.calibration.value_statistics import LEVELS, median_ranges, ratio_to_median
from vase_cli.reports.numbers import percent
from vase_cli.reports.tables import Table

HEADINGS = ("layer", "median range", "p99/p50", "max/p50", "heaviest", "threshold", "over it", "position 0")


def calibration_table(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Table:
    """A row for each layer: medians over its KV heads, and the heaviest head's max/p50; notes on the whole model."""
    medians = median_ranges(tensors)
    p99 = ratio_to_median(tensors["quantiles.rest"][0, :, :, LEVELS.index(0.99)], medians)
    heaviest = ratio_to_median(tensors["max.rest"][0], medians)
    first = ratio_to_median(tensors["first.mean_range"][:, :, 0], medians)
    rows = [
        [
            str(layer),
            f"{medians[layer].median():.3g}",
            f"{p99[layer].median():.2f}",
            f"{heaviest[layer].median():.2f}",
            f"{heaviest[layer].max():.2f} (head {heaviest[layer].argmax()})",
            f"{tensors['thresholds'][layer].median():.3g}",
            percent(float(tensors["over"][layer].mean())),
            f"{first[layer].median():.2f}",
        ]
        for layer in range(medians.shape[0])
    ]
    return Table(HEADINGS, rows, facts["name"], _notes(facts, heaviest), left=0, whole=len(HEADINGS))


def _notes(facts: Mapping[str, Any], tails: Tensor) -> list[str]:
    length = facts["lengths"][facts["task"]]
    spread = "" if length["sd"] is None else f" (sd {length['sd']:,.0f})"
    counts = (("truncated", "at the limit"), ("failed", "failed"))
    ends = "".join(f", {facts[key]} {words}" for key, words in counts if facts[key])
    common = [f"{token['token']!r} {percent(token['share_of_outliers'], 0)}" for token in facts["outlier_tokens"][:4]]
    return [
        f"{facts['task']}: {facts['texts']} texts, {facts['tokens']:,} tokens{ends}; "
        f"full cache {length['mean']:,.1f} tokens{spread}",
        f"max/p50 over all heads: median {tails.median():.2f}, from {tails.min():.2f} to {tails.max():.2f}",
        *([f"most frequent among the largest tokens: {', '.join(common)}"] if common else []),
        f"Range: maximum minus minimum of a value vector, without the first 8 positions. Threshold by {facts['rule']}; "
        "position 0: mean range of the first token. Both ratios are to the median range of the head; a cell is the "
        "median over the layer's KV heads.",
    ]
