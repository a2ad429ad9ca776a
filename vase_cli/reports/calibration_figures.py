"""The measurements of a calibration as ratios and as pictures.

A ratio that does not exist, as its median is 0, is NaN in an array; letters: L layers, H KV heads.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from vase_cli.reports.characters import visible
from vase_cli.reports.figures import HEAT_STEPS, INK, Picture, drawable, heat_colors, heat_ink, log_scale, style
from vase_cli.reports.numbers import points, short, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[Any]

PICTURES = ("tail-weight", "range-by-layer", "first-positions", "thought", "validation")
WIDTH = 820
# The largest range of a head over its median: from the first on its tail is heavy, under the second it is not.
HEAVY_RATIO = 10.0
LIGHT_RATIO = 3.0


class Measured:
    """Facts (calibration.json) and numbers (calibration.safetensors) as arrays, and the ratios that follow.

    ``heat_top`` is the ratio at which the heat colors end: the largest, or HEAVY_RATIO, so that models compare.
    """

    def __init__(self, facts: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        import numpy as np

        self.facts = facts
        self.numbers: dict[str, Array] = {name: np.nan_to_num(values, posinf=0.0) for name, values in numbers.items()}
        self.heat_top = max([HEAVY_RATIO, *present(self.ratios(0.99)), *present(self.ratios(None))])

    def values(self, level: float | None, segment: str = "rest", metric: str = "range") -> "Array":
        """(L, H): a quantile of every head, or its maximum where the level is None."""
        name = "max" if level is None else "quantiles"
        values: Array = self.numbers[f"{name}.{segment}"][self.facts["metrics"].index(metric)]
        return values if level is None else values[..., self.facts["levels"].index(level)]

    def ratios(self, level: float | None, segment: str = "rest", metric: str = "range") -> "Array":
        """(L, H): a quantile or the maximum over the median of its head."""
        return _over(self.values(level, segment, metric), self.values(0.5, segment, metric))

    def first_ratios(self) -> list[list[float]]:
        """By first position, the mean range of every head there over its median after; empty where all means are 0."""
        means = self.numbers["first.mean_range"]
        ratios = _over(means, self.values(0.5)[..., None])
        return [present(ratios[..., place]) if means[..., place].any() else [] for place in range(means.shape[-1])]

    def heat_step(self, ratio: float) -> int:
        """The heat color of a ratio: 0 at 1 or less, the last at the top, equal ratios equally far apart."""
        return min(HEAT_STEPS - 1, int(HEAT_STEPS * math.log(max(1.0, ratio)) / math.log(self.heat_top)))


def _over(values: "Array", medians: "Array") -> "Array":
    import numpy as np

    with np.errstate(all="ignore"):
        ratios = values / medians
    return np.where(np.isfinite(ratios) & (medians > 0), ratios, np.nan)


def present(values: "Array") -> list[float]:
    """The values that exist."""
    return [value for value in values.ravel().tolist() if value == value]


def calibration_pictures(measured: Measured, validation: Mapping[str, Any] | None) -> dict[str, Picture]:
    """Those of :data:`PICTURES` that there are numbers for."""
    example = measured.facts["example"]
    with style():
        pictures = {
            "tail-weight": _tail_weight(measured),
            "range-by-layer": _range_by_layer(measured) if measured.facts["counts"]["rest"] else None,
            "first-positions": _first_positions(measured),
            "thought": _thought(measured) if example and example["tokens"] and example["heads"] else None,
            "validation": _validation(validation["runs"]) if validation and validation["runs"] else None,
        }
    return {name: picture for name, picture in pictures.items() if picture is not None}


def _tail_weight(measured: Measured) -> Picture:
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    grids = {"p99 / p50": measured.ratios(0.99), "max / p50": measured.ratios(None)}
    layers, heads = grids["max / p50"].shape
    rows, columns = (1, 2) if layers <= 12 else (2, 1)
    across, down = min(48, (WIDTH / columns - 70) // layers), min(28, max(12, 360 // heads))
    width = max(500, columns * (70 + layers * across))
    picture = Picture(width, rows * (heads * down + 62) + 66, "Heat map: " + "; ".join(grids))
    panels = picture.figure.subplots(rows, columns, squeeze=False).flatten()
    edges, norm = [np.arange(count + 1) - 0.5 for count in (layers, heads)], LogNorm(1, measured.heat_top, clip=True)
    for axes, (title, grid) in zip(panels, grids.items(), strict=True):
        mesh = axes.pcolormesh(*edges, grid.T, cmap=heat_colors(), norm=norm, edgecolors=INK["paper"], linewidth=1)
        cells = [(layer, head, float(grid[layer, head])) for head in range(heads) for layer in range(layers)]
        picture.hint([f"layer {layer}, KV head {head}: {short(ratio)}" for layer, head, ratio in cells], mesh)
        for layer, head, ratio in cells:
            if 6.4 * len(short(ratio)) <= across - 4 and down >= 14:
                ink = INK["muted" if ratio != ratio else heat_ink(measured.heat_step(ratio))]
                axes.text(layer, head, short(ratio), color=ink, size=10, ha="center", va="center_baseline")
        axes.set(title=title, xlabel="layer", xticks=_labels(layers, across, 26))
        axes.set(ylabel="KV head", yticks=_labels(heads, down, 14), ylim=(heads - 0.5, -0.5))
        axes.grid(visible=False)
    inner = LogLocator(subs=[1, 2, 5] if measured.heat_top < 500 else [1]).tick_values(1, measured.heat_top)
    ticks = [value for value in inner if 1 <= value < measured.heat_top / 1.2] + [measured.heat_top]
    scale = picture.figure.colorbar(
        mesh, ax=[*panels], location="bottom", anchor=(0, 0), shrink=380 / width, aspect=30, ticks=ticks,
        format=lambda value, _: tick(value),
    )  # fmt: skip
    gaps = "; -: no value, the median is 0" if any(np.isnan(grid).any() for grid in grids.values()) else ""
    scale.set_label("times the median of its head (log scale)" + gaps, loc="left")
    scale.minorticks_off()
    scale.outline.set_visible(False)
    return picture


def _range_by_layer(measured: Measured) -> Picture:
    import numpy as np

    picture = Picture(WIDTH, 400, "Distribution of the value range in every layer, on a log scale")
    axes = picture.figure.subplots()
    p1, p50, p99, largest = (measured.values(level) for level in (0.01, 0.5, 0.99, None))
    spans = low, least, most, high, top = p1.min(1), p50.min(1), p50.max(1), p99.max(1), largest.max(1)
    x, slot = np.arange(len(p1)), (WIDTH - 80) / len(p1)
    width = max(4.0, min(40.0, 0.66 * slot))
    middle, half = np.median(p50, axis=1), width / slot / 2
    artists = (
        axes.vlines(x, low, high, INK["blue-pale"], linewidth=width, label="p1 to p99, widest of its heads"),
        axes.vlines(x, least, most, INK["blue-middle"], linewidth=width, label="p50 of its heads, lowest to highest"),
        axes.hlines(middle, x - half, x + half, INK["ink"], linewidth=1.5, label="their median"),
        axes.scatter(x, top, min(7, width) ** 2, INK["orange"], zorder=3, label="largest value of any head"),
    )
    hint = "layer {}: p1 {}, p50 {} to {}, p99 {}, largest {}"
    texts = [hint.format(layer, *map(short, span)) for layer, span in enumerate(zip(*spans, strict=True))]
    picture.hint(texts, *artists)
    log_scale(axes, np.concatenate(spans), 300)
    axes.set(xlim=(-0.5, len(x) - 0.5), xticks=_labels(len(x), slot, 26))
    axes.set(xlabel="layer", ylabel="value range (log scale)")
    picture.legend(axes)
    return picture


def _first_positions(measured: Measured) -> Picture:
    picture = Picture(680, 330, "Range at the first positions, as a multiple of the median of its head")
    axes = picture.figure.subplots()
    positions = measured.first_ratios()
    spans = {str(at): (min(ratios), median(ratios), max(ratios)) for at, ratios in enumerate(positions) if ratios}
    if low := present(measured.ratios(0.01)):
        spans["rest"] = median(low), 1.0, median(present(measured.ratios(0.99)))
    names = [*map(str, range(len(positions))), "rest"]
    x = [names.index(name) for name in spans]
    least, middle, most = zip(*spans.values(), strict=True) if spans else ((), (), ())
    axes.hlines(1.0, -0.5, len(positions), INK["orange"], linewidth=1.5, zorder=1, label="median of the rest")
    bars = axes.vlines(x, least, most, INK["blue-pale"], linewidth=20, label="lowest to highest head")
    dots = axes.scatter(x, middle, 64, INK["blue"], zorder=3, label="median over heads")
    hint = "{0}: median over heads {2}, from {1} to {3}"
    picture.hint([hint.format(name, *map(short, span)) for name, span in spans.items()], bars, dots)
    for at, value in zip(x, middle, strict=True):
        _note(axes, (at, value), short(value), "ink", away=12)
    for at in set(range(len(names))) - set(x):
        axes.text(at, 0.5, "-", transform=axes.get_xaxis_transform(), color=INK["muted"], ha="center")
    log_scale(axes, [1.0, *least, *middle, *most], 240)
    axes.set_xticks(range(len(names)), names)
    axes.set(xlim=(-0.5, len(positions) + 0.5), xlabel="position in the text", ylabel="range / median (log scale)")
    picture.legend(axes)
    return picture


def _thought(measured: Measured) -> Picture:
    import numpy as np

    example, ranges = measured.facts["example"], measured.numbers["example.range"]
    tokens, prompt, medians = example["tokens"], example["prompt_tokens"], np.array(example["medians"])
    # A head whose median is 0 keeps its own measure, and then each its own axis.
    units, together = np.where(medians > 0, medians, 1.0), bool((medians > 0).all())
    heights, limits = ranges / units[:, None], np.array(example["thresholds"]) / units
    picture = Picture(WIDTH, 80 + 160 * len(ranges), "Range along one text")
    panels = picture.figure.subplots(len(ranges), sharex=True, sharey=together, squeeze=False).flatten()
    for axes, (layer, head), p50, values, limit in zip(panels, example["heads"], medians, heights, limits, strict=True):
        axes.set_title(f"layer {layer}, KV head {head}: {'range / median' if p50 > 0 else 'range (its median is 0)'}")
        axes.plot(values, color=INK["blue"], label="range of each token")
        axes.axhline(limit, color=INK["ink"], label="threshold")
        _note(axes, (1, limit), f"threshold\n{short(limit)}", "ink", within=axes.get_yaxis_transform())
        over = np.flatnonzero(values > limit)
        dots = axes.scatter(over, values[over], 20, INK["orange"], zorder=3, label="token over the threshold")
        picture.hint([f"position {at}, token {visible(tokens[at])}: {short(values[at])}" for at in over], dots)
        peak = int(values.argmax())
        if p50 > 0 and len(over) and values[peak] >= HEAVY_RATIO:
            away = 7 if peak < 0.8 * len(tokens) else -7
            label = f"“{drawable(tokens[peak])[:20]}” {short(values[peak])}"
            _note(axes, (peak, values[peak]), label, "orange", away=away)
        if 0 < prompt < len(tokens):
            axes.axvline(prompt - 0.5, color=INK["axis"], linewidth=1.5, label="start of the completion")
        log_scale(axes, np.append(heights, limits) if together else np.append(values, limit), 110)
    edge = max(0.5, 0.01 * len(tokens))
    axes.set(xlim=(-edge, len(tokens) - 1 + edge), xlabel="position in the text")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    picture.legend(panels[0])
    return picture


def _validation(runs: Sequence[Mapping[str, Any]]) -> Picture:
    from matplotlib.ticker import MaxNLocator

    picture = Picture(WIDTH, 34 * len(runs) + 90, "Accuracy of every run and its difference from the full cache")
    left, right = picture.figure.subplots(1, 2, sharey=True)
    for axes, key, error_key, title, color, sign in (
        (left, "accuracy", "standard_error", "accuracy ± standard error", "blue", ""),
        (right, "difference", "difference_standard_error", "difference from full ± standard error", "orange", "+"),
    ):
        for row, run in enumerate(runs):
            value, error = run[key], run[error_key]
            axes.errorbar(
                [] if value is None else [value], [] if value is None else [row], xerr=error or 0.0, color=INK[color],
                fmt="o", markersize=8, capsize=5, capthick=2, elinewidth=2,
            )  # fmt: skip
            reference = value is None and row == 0 and axes is right
            text, ink = ("reference", "muted") if reference else (points(value, error, sign), "ink")
            _note(axes, (1, row), text, ink, within=axes.get_yaxis_transform())
        axes.set_title(title, color=INK[color])
        axes.grid(axis="both")
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        signs = {True: sign, False: ""}
        axes.xaxis.set_major_formatter(lambda share, _, signs=signs: f"{100 * share:{signs[abs(share) > 1e-9]}.3g}%")
    left.set(xlim=(-0.03, 1.03), ylim=(len(runs) - 0.5, -0.5), xlabel="accuracy")
    left.set_yticks(range(len(runs)), [drawable(run["label"]) for run in runs], color=INK["ink"])
    right.axvline(0.0, color=INK["ink"])
    right.set_xlabel("accuracy - that of full, same problems")
    return picture


def _note(axes: "Axes", place: tuple[float, float], text: str, color: str, within: Any = "data", away: int = 7) -> None:
    """Write a text beside a place of an axes, over what is drawn there."""
    axes.annotate(
        text, place, (away, 0), xycoords=within, textcoords="offset points", color=INK[color], size=11,
        ha="left" if away > 0 else "right", va="center",
        bbox={"facecolor": INK["paper"], "edgecolor": "none", "pad": 1.5},
    )  # fmt: skip


def _labels(count: int, size: float, least: float) -> range:
    """The labels of ``count`` places of one size: as many as fit where a label needs ``least``."""
    return range(0, count, next((step for step in (1, 2, 4, 5, 10, 20) if step * size >= least), count))
