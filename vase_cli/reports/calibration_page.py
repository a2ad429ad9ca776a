"""The page of a calibration, and its pictures."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from vase_cli.reports import calibration_figures as figures
from vase_cli.reports.calibration_figures import HEAVY_RATIO, LIGHT_RATIO, Measured, present
from vase_cli.reports.numbers import number, percent, points, short
from vase_cli.reports.pages import page

PAGE_FILE = "calibration.html"
PICTURE_FILES = tuple(f"{name}.png" for name in figures.PICTURES)
_SEGMENTS = {
    "first": "first 8 positions", "prompt": "prompt", "completion": "completion", "rest": "prompt + completion",
}  # fmt: skip
_RULES = {
    "quantile": "a token is an outlier where its range is over this quantile ({}) of its head",
    "mad": "a token is an outlier where its range is over the median plus {} median absolute deviations",
    "share": "the tokens with the largest ranges, a share of {}, are outliers",
}
Record = Mapping[str, Any]


def calibration_page(facts: Record, numbers: Record, validation: Record | None) -> dict[str, bytes]:
    """The page and, of :data:`PICTURE_FILES`, those that there are numbers for: contents by file name.

    Of calibration.json, the tensors of calibration.safetensors as nested lists, and validation.json or None.
    """
    measured = Measured(facts, numbers)
    pictures = figures.calibration_pictures(measured, validation)
    rule, _, at = facts["rule"].partition(":")
    values = _tables(measured, validation) | {
        "facts": facts, "validation": validation, "summary": _summary(measured), "marks": _marks(measured),
        "sampling": ", ".join(f"{name} {value:g}" for name, value in facts["sampling"].items()),
        "rule": _RULES.get(rule, "the threshold of every head").format(at), "heat_step": measured.heat_step,
        "heavy": f"{HEAVY_RATIO:g}", "light": f"{LIGHT_RATIO:g}",
    }  # fmt: skip
    pngs = {f"{name}.png": picture.save("png") for name, picture in pictures.items()}
    return {PAGE_FILE: page("calibration.html", values, pictures)} | pngs


def _summary(measured: Measured) -> list[str]:
    """Sentences on the numbers as a whole, the verdict first; none where no head has a ratio."""
    upper, largest = present(measured.ratios(0.99)), present(measured.ratios(None))
    if not largest:
        return []
    heavy, between = (sum(ratio >= least for ratio in largest) for least in (HEAVY_RATIO, LIGHT_RATIO))
    verdict = f"Heads with a heavy tail: {heavy:,} of {len(largest):,}" if heavy else "No head has a heavy tail"
    if between and not heavy:
        verdict += f"; in between: {between:,} of {len(largest):,}"
    layer, head = (int(place[0]) for place in (measured.ratios(None) == max(largest)).nonzero())
    sentences = [
        verdict,
        f"(max/p50 of at least {HEAVY_RATIO:g} is heavy, under {LIGHT_RATIO:g} is not).",
        f"Over the heads, the median max/p50 is {short(median(largest))} and the median p99/p50 {short(median(upper))}"
        f"; the largest max/p50 is {short(max(largest))}, in layer {layer}, KV head {head}.",
    ]
    medians = [median(row) for row in measured.values(0.5).tolist()]
    if len(medians) > 1 and medians[0] > 0:
        growth = short(medians[-1] / medians[0])
        sentences.append(f"The median range of the last layer is {growth} times that of the first.")
    if first := measured.first_ratios()[0]:
        ratio = short(median(first))
        sentences.append(f"At position 0 the range is {ratio} times the median of the rest (median over heads).")
    return sentences


def _tables(measured: Measured, validation: Record | None) -> dict[str, Any]:
    """The rows of the page's tables; a cell is a text, or a record of a token and perhaps of its neighbors."""
    facts, segments = measured.facts, []
    for metric in facts["metrics"]:
        for segment, name in _SEGMENTS.items():
            grids = [measured.values(0.5, segment, metric)]
            grids += [measured.ratios(level, segment, metric) for level in (0.99, None)]
            heads = [present(grid) if facts["counts"][segment] else [] for grid in grids]
            cells = [*(median(values) if values else None for values in heads), max(heads[-1], default=None)]
            segments.append([metric, name, number(facts["counts"][segment]), *map(short, cells)])
    tokens = [
        [token, token["token_id"], number(token["entries"]),
         percent(token["share_of_outliers"]), percent(token["share_of_text"])]
        for token in facts["outlier_tokens"]
    ]  # fmt: skip
    outliers = [
        [outlier, outlier["segment"], outlier["problem"], f"{outlier['layer']}, {outlier['head']}",
         short(outlier["range"]), short(outlier["ratio"]), f"{outlier['position']:,} of {outlier['text_tokens']:,}",
         percent(outlier["share"])]
        for outlier in facts["outliers"]
    ]  # fmt: skip
    lengths = [
        [task, *(number(texts[key]) for key in ("texts", "mean", "sd", "min", "median", "max"))]
        for task, texts in facts["lengths"].items()
    ]
    runs = [
        [run["label"], number(run["samples"]), points(run["accuracy"], run["standard_error"]),
         points(run["difference"], run["difference_standard_error"], "+"), percent(run["loop_share"]),
         percent(run["truncated_share"]), number(run["mean_completion_tokens"]), number(run["mean_cached_tokens"])]
        for run in (validation["runs"] if validation else [])
    ]  # fmt: skip
    return {"segments": segments, "tokens": tokens, "outliers": outliers, "lengths": lengths, "runs": runs}


def _marks(measured: Measured) -> dict[int, list[tuple[int, int, float, float]]]:
    """The outlier tokens of the example by position: layer, head, range, and its multiple of the median (or 0)."""
    example, marks = measured.facts["example"], defaultdict(list)
    if example and example["tokens"]:
        keys, ranges = ("heads", "thresholds", "medians"), measured.numbers["example.range"].tolist()
        for (layer, head), threshold, p50, values in zip(*(example[key] for key in keys), ranges, strict=True):
            for position, value in enumerate(values):
                if value > threshold:
                    marks[position].append((layer, head, value, value / p50 if p50 > 0 else 0.0))
    return marks
