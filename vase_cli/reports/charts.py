"""The charts of a calibration, as drawings: plain numbers in, shapes out.

A value that does not exist is None and is shown as "-".
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vase_cli.reports.axes import LinearAxis, LogAxis, place_in_row, short_number, tick_label, tick_value
from vase_cli.reports.drawing import HEAT_STEPS, Dot, Drawing, Label, Line, Rectangle, Shape, heat_colour, heat_ink
from vase_cli.reports.lettering import text_width

WIDTH = 880
_LEFT, _RIGHT = 62, 16
_SMALL = 11.0

Grid = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class LayerRange:
    """One layer's ranges over its heads.

    Attributes:
        low: the lowest p1 of a head.
        medians: the p50 of each head.
        high: the highest p99 of a head.
        largest: the largest value of any head.
    """

    low: float
    medians: Sequence[float]
    high: float
    largest: float


@dataclass(frozen=True)
class PositionRange:
    """The range at one position, as a multiple of the head's median, over heads; None where there is no value."""

    name: str
    lowest: float | None
    middle: float | None
    highest: float | None


@dataclass(frozen=True)
class Track:
    """One head's range along a text.

    Attributes:
        title: which head, and what the values are.
        comparable: whether the values are multiples of the head's median, so that such tracks share their axis.
        values: one for each token.
        threshold: in the same measure as the values.
        notes: the positions over the threshold, with what to say of each.
    """

    title: str
    comparable: bool
    values: Sequence[float]
    threshold: float
    notes: Mapping[int, str]


@dataclass(frozen=True)
class ValidatedRun:
    """One run of a validation; fractions of 1, a standard error None where there is none."""

    label: str
    accuracy: float | None
    standard_error: float | None
    difference: float | None
    difference_standard_error: float | None


def heat_top(*grids: Grid, least: float) -> float:
    """Where the heat colours end: at the largest ratio, or at ``least``, so that models without large ones compare."""
    return max([least, *(value for grid in grids for row in grid for value in row if value is not None)])


def heat_share(ratio: float, top: float) -> float:
    """Where a ratio stands between 1 and the top, on a log scale."""
    return math.log(max(1.0, ratio)) / math.log(top)


def heat_maps(panels: Mapping[str, Grid], top: float) -> Drawing:
    """Ratios over layer (across) and KV head (down): one panel for each title, one colour scale for all.

    Args:
        panels: for each title, a row for each layer of a value for each head.
        top: see :func:`heat_top`.
    """
    grids = list(panels.values())
    layers, heads = len(grids[0]), len(grids[0][0])
    beside = len(panels) > 1 and (WIDTH / 2 - _LEFT - _RIGHT) / layers >= 28
    room = (WIDTH / 2 if beside else WIDTH) - _LEFT - _RIGHT
    across, down = min(48, int(room / layers)), min(28, max(12, 360 // heads))
    panel_height = 30 + heads * down + 44
    rows = 1 if beside else len(panels)
    drawing = Drawing(WIDTH, rows * panel_height + 48, "Heat map: " + "; ".join(panels))
    for number, (title, grid) in enumerate(panels.items()):
        left = _LEFT + (number * WIDTH // 2 if beside else 0)
        _heat_panel(drawing, title, grid, left, (0 if beside else number * panel_height) + 30, (across, down), top)
    empty = any(value is None for grid in grids for row in grid for value in row)
    _heat_legend(drawing, rows * panel_height + 6, top, empty)
    return drawing


def _heat_panel(
    drawing: Drawing, title: str, grid: Grid, left: int, upper: int, cell: tuple[int, int], top: float
) -> None:
    across, down = cell
    heads, layers = len(grid[0]), len(grid)
    drawing.add(Label(left, upper - 12, title, size=13))
    for layer, row in enumerate(grid):
        for head, value in enumerate(row):
            x, y = left + layer * across, upper + head * down
            said = f"layer {layer}, KV head {head}: {short_number(value)}"
            colour = "grid" if value is None else heat_colour(heat_share(value, top))
            drawing.add(Rectangle(x, y, across - 1, down - 1, colour, said))
            text, size = short_number(value), 10.0
            if text_width(text, size) <= across - 3 and down >= 14:
                ink = "muted" if value is None else heat_ink(heat_share(value, top))
                drawing.add(Label(x + (across - 1) / 2, y + down / 2 + 3, text, ink, size, "middle"))
    for layer in range(0, layers, _label_step(layers, across, 24)):
        middle = left + layer * across + (across - 1) / 2
        drawing.add(Label(middle, upper + heads * down + 13, str(layer), "muted", _SMALL, "middle"))
    for head in range(0, heads, _label_step(heads, down, 12)):
        drawing.add(Label(left - 6, upper + head * down + down / 2 + 3.5, str(head), "muted", _SMALL, "end"))
    drawing.add(Label(left + layers * across / 2, upper + heads * down + 29, "layer", "muted", _SMALL, "middle"))
    drawing.add(Label(left - 28, upper + heads * down / 2, "KV head", "muted", _SMALL, "middle", turned=True))


def _heat_legend(drawing: Drawing, upper: float, top: float, empty: bool) -> None:
    left, step = float(_LEFT), 8
    for index in range(HEAT_STEPS):
        drawing.add(Rectangle(left + index * step, upper, step, 12, f"heat-{index}"))
    drawn = -math.inf
    between = (tick_value(step) for step in range(1, math.floor(place_in_row(top)) + 1))
    for value in [1.0, *(value for value in between if value < top), top]:
        x = left + heat_share(value, top) * HEAT_STEPS * step
        # The top closes the scale and keeps its place; what stands too near to it gives way.
        end = left + HEAT_STEPS * step
        if value != top and (x - drawn < 26 or end - x < 26):
            continue
        drawing.add(Line([(x, upper + 12), (x, upper + 16)], "axis"))
        drawing.add(
            Label(x, upper + 28, short_number(value) if value == top else tick_label(value), "muted", _SMALL, "middle")
        )
        drawn = x
    after = left + HEAT_STEPS * step + 24
    drawing.add(Label(after, upper + 10, "times the median of its head (log scale)", "muted", _SMALL))
    if empty:
        after += text_width("times the median of its head (log scale)", _SMALL) + 24
        drawing.add(Rectangle(after, upper, 12, 12, "grid"))
        drawing.add(Label(after + 18, upper + 10, "- no value: the median is 0", "muted", _SMALL))


def layer_ranges(layers: Sequence[LayerRange]) -> Drawing:
    """The distribution in every layer over its heads, on a log scale."""
    drawing = Drawing(WIDTH, 400, "Distribution of the value range in every layer, on a log scale")
    slot = min(80.0, (WIDTH - _LEFT - _RIGHT) / len(layers))
    right, upper, lower = _LEFT + slot * len(layers), 46, 350
    values = [value for one in layers for value in (one.low, one.high, one.largest, *one.medians)]
    axis = LogAxis(values, lower, upper)
    _legend(
        drawing,
        [
            ("bar", "blue-pale", "p1 to p99, widest of its heads"),
            ("bar", "blue-middle", "p50 of its heads, lowest to highest"),
            ("line", "ink", "their median"),
            ("dot", "orange", "largest value of any head"),
        ],
    )
    _value_lines(drawing, axis.ticks(), axis.at, right)
    bar = max(4.0, min(36.0, 0.66 * slot))
    for layer, one in enumerate(layers):
        x = _LEFT + (layer + 0.5) * slot
        middle = statistics.median(one.medians)
        said = (
            f"layer {layer}: p1 {short_number(one.low)}, p50 {short_number(min(one.medians))} to "
            f"{short_number(max(one.medians))}, p99 {short_number(one.high)}, largest {short_number(one.largest)}"
        )
        outer = axis.at(one.high), axis.at(one.low)
        inner = axis.at(max(one.medians)), axis.at(min(one.medians))
        drawing.add(Rectangle(x - bar / 2, outer[0], bar, outer[1] - outer[0], "blue-pale", said))
        drawing.add(Rectangle(x - bar / 2, inner[0], bar, max(1.0, inner[1] - inner[0]), "blue-middle", said))
        drawing.add(Line([(x - bar / 2, axis.at(middle)), (x + bar / 2, axis.at(middle))], "ink", 1.5))
        drawing.add(Dot(x, axis.at(one.largest), min(4.0, bar / 2), "orange", said))
        if layer % _label_step(len(layers), slot, 24) == 0:
            drawing.add(Label(x, lower + 16, str(layer), "muted", _SMALL, "middle"))
    drawing.add(Label((_LEFT + right) / 2, lower + 34, "layer", "muted", _SMALL, "middle"))
    _side_label(drawing, "value range (log scale)", upper, lower)
    return drawing


def first_positions(positions: Sequence[PositionRange]) -> Drawing:
    """The first positions of a text against the rest, as multiples of the head's median."""
    drawing = Drawing(WIDTH, 320, "Range at the first positions, as a multiple of the median of its head")
    slot, upper, lower = 64.0, 46, 270
    right = _LEFT + slot * len(positions)
    spread = [one for one in positions if one.middle is not None]
    values = [value for one in spread for value in (one.lowest, one.middle, one.highest) if value is not None]
    axis = LogAxis([*values, 1.0], lower, upper)
    _legend(
        drawing,
        [
            ("bar", "blue-pale", "lowest to highest head"),
            ("dot", "blue", "median over heads"),
            ("line", "orange", "median of the rest"),
        ],
    )
    _value_lines(drawing, axis.ticks(), axis.at, right)
    drawing.add(Line([(_LEFT, axis.at(1.0)), (right, axis.at(1.0))], "orange", 1.5))
    for number, one in enumerate(positions):
        x = _LEFT + (number + 0.5) * slot
        drawing.add(Label(x, lower + 16, one.name, "muted", _SMALL, "middle"))
        if one.lowest is None or one.middle is None or one.highest is None:
            drawing.add(Label(x, (upper + lower) / 2, "-", "muted", _SMALL, "middle"))
            continue
        said = (
            f"{one.name}: median over heads {short_number(one.middle)}, "
            f"from {short_number(one.lowest)} to {short_number(one.highest)}"
        )
        ends = axis.at(one.highest), axis.at(one.lowest)
        drawing.add(Rectangle(x - 10, ends[0], 20, max(1.0, ends[1] - ends[0]), "blue-pale", said))
        drawing.add(Dot(x, axis.at(one.middle), 4.5, "blue", said))
        y, text = axis.at(one.middle), short_number(one.middle)
        drawing.add(Rectangle(x + 12, y - 7, text_width(text, _SMALL) + 3, 14, "paper"))
        drawing.add(Label(x + 14, y + 4, text, "ink", _SMALL))
    drawing.add(Label((_LEFT + right) / 2, lower + 34, "position in the text", "muted", _SMALL, "middle"))
    _side_label(drawing, "range / median (log scale)", upper, lower)
    return drawing


def thought(tracks: Sequence[Track], prompt_tokens: int) -> Drawing:
    """The range along one text, one panel for each head, its outlier tokens marked.

    Args:
        prompt_tokens: where the completion starts.
    """
    tokens = len(tracks[0].values)
    height, gap = 120, 38
    drawing = Drawing(WIDTH, 46 + len(tracks) * (height + gap) + 30, "Range along one text")
    _legend(
        drawing,
        [
            ("line", "blue", "range of each token"),
            ("line", "ink", "threshold"),
            ("dot", "orange", "token over the threshold"),
        ],
    )
    right = WIDTH - _RIGHT

    def across(position: float) -> float:
        return _LEFT + 4 + (right - _LEFT - 8) * position / max(1, tokens - 1)

    for number, track in enumerate(tracks):
        upper = 64 + number * (height + gap)
        lower = upper + height
        shown = [one for one in tracks if one.comparable] if track.comparable else [track]
        axis = LogAxis([value for one in shown for value in (*one.values, one.threshold)], lower, upper)
        drawing.add(Label(_LEFT, upper - 8, track.title, size=12))
        _value_lines(drawing, axis.ticks(), axis.at, right)
        points = [(across(position), axis.at(value)) for position, value in enumerate(track.values)]
        drawing.add(Line(points, "blue", 1.0))
        drawing.add(Line([(_LEFT, axis.at(track.threshold)), (right, axis.at(track.threshold))], "ink", 1.0))
        if 0 < prompt_tokens < tokens:
            drawing.add(Line([(across(prompt_tokens - 0.5), upper), (across(prompt_tokens - 0.5), lower)], "axis"))
            if number == 0:
                drawing.add(Label(across(prompt_tokens - 0.5) + 4, upper + 10, "completion", "muted", _SMALL))
        for position, note in track.notes.items():
            drawing.add(Dot(across(position), axis.at(track.values[position]), 2.6, "orange", note))
    last = 64 + len(tracks) * (height + gap) - gap
    for tick in LinearAxis([0, max(1, tokens - 1)], 0, 1, most=10).ticks():
        if tick < tokens and tick == int(tick):
            drawing.add(Label(across(tick), last + 16, f"{tick:,.0f}", "muted", _SMALL, "middle"))
    drawing.add(Label((_LEFT + right) / 2, last + 34, "position in the text", "muted", _SMALL, "middle"))
    return drawing


def validation(runs: Sequence[ValidatedRun]) -> Drawing:
    """Accuracy of every run, and its paired difference from the full cache, each with its standard error."""
    row, upper = 34, 62
    lower = upper + row * len(runs)
    drawing = Drawing(WIDTH, lower + 52, "Accuracy of every run and its difference from the full cache")
    _legend(
        drawing,
        [
            ("dot", "blue", "accuracy ± standard error"),
            ("dot", "orange", "difference from full ± standard error"),
        ],
    )
    accuracy = LinearAxis([0.0, 1.0], 178, 420)
    ends = [
        one.difference + side * (one.difference_standard_error or 0.0)
        for one in runs
        if one.difference is not None
        for side in (-1, 1)
    ]
    difference = LinearAxis([0.0, *ends], 540, 770)
    _columns(drawing, accuracy, "", (upper, lower))
    _columns(drawing, difference, "+", (upper, lower))
    drawing.add(Line([(difference.at(0.0), upper - 6), (difference.at(0.0), lower)], "ink", 1.0))
    drawing.add(Label(299, lower + 36, "accuracy", "muted", _SMALL, "middle"))
    drawing.add(Label(655, lower + 36, "accuracy - that of full, same problems", "muted", _SMALL, "middle"))
    for number, one in enumerate(runs):
        y = upper + (number + 0.5) * row
        drawing.add(Label(166, y + 4, one.label, size=12, anchor="end"))
        _interval(drawing, accuracy, y, one.accuracy, one.standard_error, "blue", 432, "")
        reference = one.difference is None and number == 0
        if reference:
            drawing.add(Label(782, y + 4, "reference", "muted", _SMALL))
        else:
            _interval(drawing, difference, y, one.difference, one.difference_standard_error, "orange", 782, "+")
    return drawing


def percent_with_error(value: float | None, error: float | None, sign: str = "") -> str:
    """A fraction in per cent with its standard error: "92.0 ± 3.0"; "-" for none."""
    if value is None:
        return "-"
    return f"{100 * value:{sign}.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _interval(
    drawing: Drawing,
    axis: LinearAxis,
    y: float,
    value: float | None,
    error: float | None,
    colour: str,
    text_x: float,
    sign: str,
) -> None:
    text = percent_with_error(value, error, sign)
    drawing.add(Label(text_x, y + 4, text, "ink", _SMALL))
    if value is None:
        return
    if error is not None:
        ends = axis.at(value - error), axis.at(value + error)
        drawing.add(Line([(ends[0], y), (ends[1], y)], colour, 2.0))
        drawing.add(*(Line([(x, y - 5), (x, y + 5)], colour, 2.0) for x in ends))
    drawing.add(Dot(axis.at(value), y, 4.5, colour, text))


def _columns(drawing: Drawing, axis: LinearAxis, sign: str, between: tuple[float, float]) -> None:
    decimals = 0 if axis.step >= 0.01 else 1
    for tick in axis.ticks():
        text = f"{100 * tick:{sign if tick else ''}.{decimals}f}%"
        drawing.add(Line([(axis.at(tick), between[0]), (axis.at(tick), between[1])], "grid"))
        drawing.add(Label(axis.at(tick), between[1] + 16, text, "muted", _SMALL, "middle"))


def _value_lines(
    drawing: Drawing, ticks: Sequence[tuple[float, str]], at: Callable[[float], float], right: float
) -> None:
    for value, text in ticks:
        drawing.add(Line([(_LEFT, at(value)), (right, at(value))], "grid"))
        drawing.add(Label(_LEFT - 6, at(value) + 4, text, "muted", _SMALL, "end"))


def _side_label(drawing: Drawing, text: str, upper: float, lower: float) -> None:
    drawing.add(Label(14, (upper + lower) / 2, text, "muted", _SMALL, "middle", turned=True))


def _legend(drawing: Drawing, entries: Sequence[tuple[Literal["bar", "dot", "line"], str, str]]) -> None:
    x: float = _LEFT
    for kind, colour, text in entries:
        swatch: dict[str, Shape] = {
            "bar": Rectangle(x, 12, 12, 12, colour),
            "dot": Dot(x + 6, 18, 4, colour),
            "line": Line([(x, 18), (x + 12, 18)], colour, 1.5),
        }
        drawing.add(swatch[kind], Label(x + 18, 22, text, "muted", _SMALL))
        x += 18 + text_width(text, _SMALL) + 22


def _label_step(count: int, size: float, least: float) -> int:
    return next((step for step in (1, 2, 4, 5, 10, 20) if step * size >= least), max(1, count))
