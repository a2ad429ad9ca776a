"""Axes, shapes in SVG and PNG, and the charts of a calibration, read back place by place and pixel by pixel."""

import math
import re
from itertools import pairwise

import pytest
from helpers.pictures import decode

from vase_cli.reports import charts
from vase_cli.reports.axes import LinearAxis, LogAxis, place_in_row, short_number, tick_label, tick_value
from vase_cli.reports.charts import LayerRange, PositionRange, Track, ValidatedRun
from vase_cli.reports.drawing import (
    COLOURS,
    HEAT_STEPS,
    Dot,
    Drawing,
    Label,
    Line,
    Rectangle,
    heat_colour,
    heat_ink,
    hex_colour,
    png,
    style_rules,
    svg,
)
from vase_cli.reports.lettering import letters, text_width


def brightness(colour: str) -> float:
    red, green, blue = bytes.fromhex(colour[1:])
    return 0.299 * red + 0.587 * green + 0.114 * blue


def shapes(drawing: Drawing, kind: type, **wanted: object) -> list:
    return [
        one
        for one in drawing.shapes
        if isinstance(one, kind) and all(getattr(one, key) == value for key, value in wanted.items())
    ]


def inside(drawing: Drawing) -> bool:
    """Whether every shape lies on the sheet, text included."""
    for one in drawing.shapes:
        match one:
            case Rectangle(x, y, width, height):
                box = (x, y, x + width, y + height)
            case Dot(x, y, radius):
                box = (x - radius, y - radius, x + radius, y + radius)
            case Line(points):
                box = (*map(min, zip(*points, strict=True)), *map(max, zip(*points, strict=True)))
            case Label(x, y, text, _, size, anchor, turned):
                width = text_width(text, size)
                back = {"start": 0, "middle": width / 2, "end": width}[anchor]
                box = (x - size, y - width + back, x, y + back) if turned else (x - back, y - size, x - back + width, y)
        if box[0] < 0 or box[1] < 0 or box[2] > drawing.width or box[3] > drawing.height:
            return False
    return True


# Numbers and axes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (math.nan, "-"),
        (0, "0"),
        (0.4, "0.40"),
        (1.94, "1.9"),
        (12.3, "12"),
        (4321, "4,321"),
        (1e7, "1e7"),
        (2.5e-6, "2.5e-6"),
        (-0.25, "-0.25"),
    ],
)
def test_short_numbers(value: float | None, text: str):
    assert short_number(value) == text


def test_the_row_of_ticks_and_places_in_it():
    assert [tick_value(step) for step in range(-3, 5)] == [0.1, 0.2, 0.5, 1, 2, 5, 10, 20]
    assert [tick_label(tick_value(step)) for step in (-12, -9, -1, 0, 11, 15)] == [
        "1e-4",
        "0.001",
        "0.5",
        "1",
        "5,000",
        "1e5",
    ]
    for step in range(-60, 60):
        assert place_in_row(tick_value(step)) == pytest.approx(step, abs=1e-6)
    assert 0 < place_in_row(1.5) < 1 and 2 < place_in_row(9.99) < 3


@pytest.mark.parametrize(
    "values", [[0.3, 7.0], [1.0], [1e-30, 1e30], [3.0, 3.0], [1.0, 10.0], [5e-7, 6e-7], [99.99, 0.011]]
)
def test_a_log_axis_holds_its_values_and_equal_ratios_are_equal_distances(values: list[float]):
    axis = LogAxis(values, 300, 100)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 12
    for value in values:
        assert 100 <= axis.at(value) <= 300
    assert axis.at(tick_value(axis.first)) == 300 and axis.at(tick_value(axis.last)) == 100
    middle = math.sqrt(tick_value(axis.first)) * math.sqrt(tick_value(axis.last))
    assert axis.at(middle) == pytest.approx(200)
    assert [axis.at(value) for value, _ in ticks] == sorted((axis.at(value) for value, _ in ticks), reverse=True)


def test_zeros_lie_at_the_start_of_a_log_axis_and_below_every_value():
    axis = LogAxis([0.0, 2.0, 50.0], 300, 100)
    assert axis.ticks()[0] == (0.0, "0") and axis.at(0.0) == 300
    assert axis.at(2.0) < 300 and axis.ticks()[1] == (2.0, "2")
    assert LogAxis([0.0, 0.0], 300, 100).at(0.0) == 300
    assert LogAxis([1.0, 2.0], 300, 100).ticks()[0][0] == 1.0


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0], [-0.31, 0.02], [0, 2047], [0.0, -1e-4]])
def test_a_linear_axis_holds_its_values_and_ends_on_ticks(values: list[float]):
    axis = LinearAxis(values, 10, 110)
    ticks = axis.ticks()
    assert axis.at(ticks[0]) == 10 and axis.at(ticks[-1]) == 110
    assert ticks[0] <= min(values) + 1e-9 and ticks[-1] >= max(values) - 1e-9
    assert 2 <= len(ticks) <= 7
    assert axis.at((ticks[0] + ticks[-1]) / 2) == pytest.approx(60)


# Drawings


def test_a_png_has_the_size_and_the_pixels_of_its_shapes():
    drawing = Drawing(40, 20, "test")
    drawing.add(Rectangle(10, 5, 8, 4, "blue"), Dot(30, 10, 4, "orange"), Line([(2, 17), (38, 17)], "ink", 2))
    for scale in (1, 2, 3):
        picture = decode(png(drawing, scale=scale))
        assert (picture.width, picture.height) == (40 * scale, 20 * scale)
        blue = {(x, y) for y in range(20 * scale) for x in range(40 * scale) if picture.at(x, y) == COLOURS["blue"][0]}
        assert blue == {(x, y) for x in range(10 * scale, 18 * scale) for y in range(5 * scale, 9 * scale)}
        assert picture.at(30 * scale, 10 * scale) == COLOURS["orange"][0]
        assert picture.at(30 * scale, 5 * scale - 1) == picture.at(0, 0) == "#ffffff"
        assert picture.at(20 * scale, 17 * scale) == COLOURS["ink"][0]


def test_a_slanted_line_covers_what_lies_on_it_and_nothing_far_from_it():
    ends = (3.0, 4.0), (55.0, 31.0)
    drawing = Drawing(60, 40, "test", [Line(ends, "ink", 2.0)])
    picture = decode(png(drawing, scale=1))
    run, rise = ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]
    for y in range(40):
        for x in range(60):
            along = ((x + 0.5 - 3) * run + (y + 0.5 - 4) * rise) / (run**2 + rise**2)
            along = min(1.0, max(0.0, along))
            away = math.hypot(x + 0.5 - 3 - along * run, y + 0.5 - 4 - along * rise)
            if away < 0.4:
                assert picture.at(x, y) == COLOURS["ink"][0], (x, y)
            elif away > 1.6:
                assert picture.at(x, y) == "#ffffff", (x, y)


def test_shapes_over_the_edge_are_cut():
    drawing = Drawing(10, 10, "test")
    drawing.add(Rectangle(-5, -5, 8, 8, "blue"), Dot(10, 10, 3, "orange"), Label(-8, 6, "long text", size=4))
    picture = decode(png(drawing, scale=1))
    assert picture.at(0, 0) == picture.at(2, 1) == COLOURS["blue"][0] and picture.at(9, 9) == COLOURS["orange"][0]


def inked(label: Label, size: int = 60) -> set[tuple[int, int]]:
    picture = decode(png(Drawing(size, size, "test", [label]), scale=1))
    return {(x, y) for y in range(size) for x in range(size) if brightness(picture.at(x, y)) < 200}


def test_letters_stand_on_the_baseline_and_keep_their_anchor():
    for anchor, low, high in (("start", 30, 42), ("middle", 24, 36), ("end", 18, 30)):
        pixels = inked(Label(30, 40, "H", size=17, anchor=anchor))
        assert min(x for x, _ in pixels) >= low - 1 and max(x for x, _ in pixels) <= high
        assert max(y for _, y in pixels) == pytest.approx(40, abs=1)
        assert min(y for _, y in pixels) == pytest.approx(40 - 0.7 * 17, abs=1.5)
    turned = inked(Label(30, 40, "H", size=17, turned=True))
    assert max(x for x, _ in turned) == pytest.approx(30, abs=1)
    assert max(y for _, y in turned) == pytest.approx(40, abs=1)
    assert max(y for _, y in inked(Label(30, 40, "g", size=17))) > 42


def test_every_letter_is_there_and_no_two_are_alike():
    text = "".join(map(chr, range(33, 127))) + "±×–·≤≥…"
    drawn = {character: strokes for character, _, strokes in letters(text, 10)}
    assert len(drawn) == len(text)
    (unknown,) = (strokes for _, _, strokes in letters("漢", 10))
    assert unknown not in drawn.values() and all(drawn.values())
    seen = {str(strokes) for strokes in drawn.values()}
    assert len(seen) == len(text)
    assert text_width("ab", 20) == 2 * text_width("ab", 10) == text_width("a", 20) + text_width("b", 20)


def test_svg_refers_to_colours_by_class_and_escapes_its_text():
    drawing = Drawing(100, 50, 'a "title" <b>')
    drawing.add(Rectangle(1, 2, 3.14159, 4, "heat-7", "layer <0>"), Label(5, 6, "<&>", anchor="end", turned=True))
    drawing.add(Line([(0, 0), (1.005, 2)], "grid"), Dot(1, 1, 2, "orange"))
    text = svg(drawing)
    assert '<rect class="f-heat-7" x="1" y="2" width="3.14" height="4"><title>layer &lt;0&gt;</title></rect>' in text
    assert 'aria-label="a &quot;title&quot; &lt;b&gt;"' in text and ">&lt;&amp;&gt;</text>" in text
    assert 'text-anchor="end" transform="rotate(-90 5 6)"' in text
    assert '<polyline class="s-grid" stroke-width="1" points="0,0 1,2"/>' in text.replace("1.00,", "1,")
    for dark in (False, True):
        rules = style_rules(dark=dark)
        for name in re.findall(r'class="([a-z0-9-]+)"', text):
            assert f".{name}{{" in rules


@pytest.mark.parametrize("dark", [False, True])
def test_heat_colours_run_one_way(dark: bool):
    steps = [brightness(hex_colour(f"heat-{step}", dark=dark)) for step in range(HEAT_STEPS)]
    assert steps == sorted(steps, reverse=not dark) and len(set(steps)) == HEAT_STEPS
    assert (
        heat_colour(-1) == heat_colour(0) == "heat-0" and heat_colour(2) == heat_colour(1) == f"heat-{HEAT_STEPS - 1}"
    )


def test_text_has_contrast_on_its_ground():
    def luminance(colour: str) -> float:
        parts = [value / 255 for value in bytes.fromhex(colour[1:])]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str, dark: bool) -> float:
        low, high = sorted(luminance(hex_colour(name, dark=dark)) for name in (one, other))
        return (high + 0.05) / (low + 0.05)

    for dark in (False, True):
        assert contrast("ink", "paper", dark) > 12 and contrast("muted", "paper", dark) > 5
        assert contrast("blue", "paper", dark) > 3 and contrast("orange", "paper", dark) > 3
        for step in range(HEAT_STEPS):
            ink = heat_ink(step / (HEAT_STEPS - 1))
            assert contrast(ink, f"heat-{step}", dark) > 3.8, (step, dark)


# Charts

SIZES = [(2, 1), (5, 4), (24, 2), (28, 4), (36, 8), (64, 40), (12, 12), (32, 32)]


def grid_of(layers: int, heads: int, peak: tuple[int, int], value: float) -> list[list[float | None]]:
    grid: list[list[float | None]] = [
        [1.5 + 0.01 * ((3 * layer + head) % 7) for head in range(heads)] for layer in range(layers)
    ]
    grid[peak[0]][peak[1]] = value
    return grid


@pytest.mark.parametrize(("layers", "heads"), SIZES)
@pytest.mark.parametrize("peak_value", [2.4, 30.0])
def test_the_darkest_cell_is_the_largest_ratio_at_its_layer_and_head(layers: int, heads: int, peak_value: float):
    peak = (layers - 1, heads // 2)
    grids = {"p99 / p50": grid_of(layers, heads, peak, 1.6), "max / p50": grid_of(layers, heads, peak, peak_value)}
    top = charts.heat_top(*grids.values(), least=10.0)
    assert top == max(10.0, peak_value)
    drawing = charts.heat_maps(grids, top)
    assert inside(drawing)
    cells = [one for one in shapes(drawing, Rectangle) if one.title]
    assert len(cells) == 2 * layers * heads
    panel = cells[layers * heads :]
    assert panel[0].title.startswith("layer 0, KV head 0: ")
    by_place = {(layer, head): panel[layer * heads + head] for layer in range(layers) for head in range(heads)}
    across = by_place[1, 0].x - by_place[0, 0].x
    for (layer, head), cell in by_place.items():
        assert cell.x == by_place[0, 0].x + layer * across
        assert cell.y == by_place[0, 0].y + head * (cell.height + 1)
    picture = decode(png(drawing))
    # A corner, as the middle holds the number.
    seen = {place: picture.at(int(2 * cell.x) + 1, int(2 * cell.y) + 1) for place, cell in by_place.items()}
    assert min(seen, key=lambda place: brightness(seen[place])) == peak
    assert seen[peak] == hex_colour(heat_colour(math.log(peak_value) / math.log(top)))
    assert sum(colour == seen[peak] for colour in seen.values()) == 1
    text = svg(drawing)
    cell = by_place[peak]
    named = (
        f'<rect class="f-{cell.colour}" x="{cell.x:g}" y="{cell.y:g}" width="{cell.width:g}" height="{cell.height:g}">'
    )
    assert f"{named}<title>layer {peak[0]}, KV head {peak[1]}: {short_number(peak_value)}</title>" in text


@pytest.mark.parametrize(("layers", "heads"), SIZES)
def test_heat_map_labels_stand_at_their_cells_and_do_not_overlap(layers: int, heads: int):
    drawing = charts.heat_maps(
        {"one": grid_of(layers, heads, (0, 0), 3.0), "two": grid_of(layers, heads, (0, 0), 4.0)}, 10.0
    )
    cells = [one for one in shapes(drawing, Rectangle) if one.title]
    lower = max(cell.y + cell.height for cell in cells[: layers * heads])
    marks = [one for one in shapes(drawing, Label, anchor="middle", size=11.0) if one.text.isdigit()]
    row = [one for one in marks if one.y == lower + 14 and one.x < cells[layers * heads - 1].x + 60]
    assert row and row[0].text == "0"
    for one in row:
        cell = cells[int(one.text) * heads]
        assert one.x == pytest.approx(cell.x + cell.width / 2)
    for one, other in pairwise(row):
        assert one.x + text_width(one.text, 11) / 2 < other.x - text_width(other.text, 11) / 2
    side = shapes(drawing, Label, anchor="end", x=56.0)[:heads]
    for one in side:
        if one.y < lower:
            cell = cells[int(one.text)]
            assert cell.y < one.y < cell.y + cell.height + 1.5


def test_a_cell_without_a_value_says_so():
    drawing = charts.heat_maps({"one": [[None, 1.2], [1.3, 2.0]]}, 10.0)
    cell = next(one for one in shapes(drawing, Rectangle) if one.title)
    assert (cell.colour, cell.title) == ("grid", "layer 0, KV head 0: -")
    texts = [one.text for one in shapes(drawing, Label)]
    assert "-" in texts and "- no value: the median is 0" in texts
    assert charts.heat_top([[None]], least=10.0) == 10.0
    assert inside(charts.heat_maps({"one": [[None]]}, 10.0))


def test_the_legend_names_its_ends_and_what_lies_between():
    for top, wanted in (
        (10.0, ["1", "2", "5", "10"]),
        (42.0, ["1", "2", "5", "10", "20", "42"]),
        (5e6, ["1", "5", "50", "500", "5,000", "50,000", "5e5", "5e6"]),
    ):
        drawing = charts.heat_maps({"one": [[1.5]]}, top)
        bar = [one for one in shapes(drawing, Rectangle) if one.colour.startswith("heat-") and not one.title]
        assert [one.colour for one in bar] == [f"heat-{step}" for step in range(HEAT_STEPS)]
        y = bar[0].y + 28
        marks = [one for one in shapes(drawing, Label) if one.y == y]
        found = [one.text for one in marks]
        assert found == wanted
        end = bar[-1].x + bar[-1].width
        for one in marks[:-1]:
            share = math.log(float(one.text.replace(",", ""))) / math.log(top)
            assert one.x == pytest.approx(bar[0].x + share * (end - bar[0].x))
        assert marks[-1].x == end


@pytest.mark.parametrize("layers", [1, 2, 24, 64])
def test_layers_stand_in_order_with_their_values_at_their_heights(layers: int):
    ranges = [LayerRange(0.5 + layer, [1.0 + layer, 1.2 + layer], 2.0 + layer, 3.0 + layer) for layer in range(layers)]
    drawing = charts.layer_ranges(ranges)
    assert inside(drawing)
    axis = LogAxis([value for one in ranges for value in (one.low, one.largest)], 350, 46)
    dots = shapes(drawing, Dot, colour="orange")[1:]
    outer = [one for one in shapes(drawing, Rectangle, colour="blue-pale") if one.title]
    assert len(dots) == len(outer) == layers
    assert [dot.x for dot in dots] == sorted({dot.x for dot in dots})
    for one, dot, bar in zip(ranges, dots, outer, strict=True):
        assert dot.y == pytest.approx(axis.at(one.largest))
        assert bar.x + bar.width / 2 == pytest.approx(dot.x)
        assert (bar.y, bar.y + bar.height) == pytest.approx((axis.at(one.high), axis.at(one.low)))
        assert dot.y < bar.y
    middles = [one for one in shapes(drawing, Line, colour="ink") if one.points[0][1] > 30]
    assert [one.points[0][1] for one in middles] == pytest.approx([axis.at(1.1 + layer) for layer in range(layers)])
    picture = decode(png(drawing))
    assert picture.at(round(2 * dots[-1].x), round(2 * dots[-1].y)) == COLOURS["orange"][0]


def test_layers_of_zeros_and_of_one_value_are_drawn():
    for value in (0.0, 3.0):
        drawing = charts.layer_ranges([LayerRange(value, [value], value, value)])
        assert inside(drawing)
        decode(png(drawing, scale=1))


def test_first_positions_stand_at_their_multiples_and_missing_ones_say_so():
    positions = [
        PositionRange("0", 0.3, 0.4, 0.5),
        PositionRange("1", None, None, None),
        PositionRange("rest", 0.6, 1.0, 1.8),
    ]
    drawing = charts.first_positions(positions)
    assert inside(drawing)
    axis = LogAxis([0.3, 1.8], 270, 46)
    dots = [one for one in shapes(drawing, Dot, colour="blue") if one.title]
    assert [one.y for one in dots] == pytest.approx([axis.at(0.4), axis.at(1.0)])
    (reference,) = [one for one in shapes(drawing, Line, colour="orange") if one.points[0][1] > 30]
    assert reference.points[0][1] == pytest.approx(axis.at(1.0))
    names = {one.text: one.x for one in shapes(drawing, Label) if one.y == 286}
    assert [names["0"], names["rest"]] == [one.x for one in dots]
    assert [one.x for one in shapes(drawing, Label, text="-")] == [names["1"]]


@pytest.mark.parametrize("tokens", [1, 2, 40, 2048])
def test_a_mark_stands_at_its_tokens_position(tokens: int):
    values = [1.0 + 0.1 * (position % 3) for position in range(tokens)]
    peak = tokens * 2 // 3
    values[peak] = 9.0
    flat = [0.0] * tokens
    tracks = [Track("one", True, values, 2.0, {peak: "the peak"}), Track("two", False, flat, 0.0, {})]
    drawing = charts.thought(tracks, tokens // 4)
    assert inside(drawing)
    (mark,) = [one for one in shapes(drawing, Dot, colour="orange") if one.title]
    assert mark.title == "the peak"
    lines = [one for one in shapes(drawing, Line, colour="blue") if len(one.points) == tokens and one.points[0][1] > 30]
    assert len(lines) == 2
    assert (mark.x, mark.y) == pytest.approx(lines[0].points[peak])
    assert mark.y == min(y for _, y in lines[0].points)
    thresholds = [one.points[0][1] for one in shapes(drawing, Line, colour="ink") if one.points[0][1] > 30]
    assert mark.y < thresholds[0] < lines[0].points[0][1] or peak == 0
    labels = {one.text: one.x for one in shapes(drawing, Label, anchor="middle") if one.text.replace(",", "").isdigit()}
    for text, x in labels.items():
        assert x == pytest.approx(lines[0].points[int(text.replace(",", ""))][0]) or tokens == 1
    picture = decode(png(drawing))
    assert picture.at(round(2 * mark.x), round(2 * mark.y)) == COLOURS["orange"][0]
    assert any(one.text == "completion" for one in shapes(drawing, Label)) == (tokens >= 4)


def test_tracks_in_medians_share_their_axis():
    tracks = [Track("one", True, [1.0, 50.0], 2.0, {}), Track("two", True, [1.0, 3.0], 2.0, {})]
    drawing = charts.thought(tracks, 0)
    first, second = [one for one in shapes(drawing, Line, colour="blue") if one.points[0][1] > 30]
    assert second.points[0][1] - first.points[0][1] == 158
    assert second.points[1][1] - 158 > first.points[1][1] + 50


RUNS = [
    ValidatedRun("full", 0.92, 0.03, None, None),
    ValidatedRun("evict-large", 0.52, 0.07, -0.4, 0.07),
    ValidatedRun("random", 0.9, None, -0.02, None),
    ValidatedRun("vase-attnv count", None, None, None, None),
]


def test_validation_stands_at_its_values_with_whiskers_of_one_standard_error():
    drawing = charts.validation(RUNS)
    assert inside(drawing)
    accuracy = LinearAxis([0, 1], 178, 420)
    dots = [one for one in shapes(drawing, Dot, colour="blue") if one.title]
    assert [one.x for one in dots] == pytest.approx([accuracy.at(value) for value in (0.92, 0.52, 0.9)])
    names = {one.text: one.y - 4 for one in shapes(drawing, Label, anchor="end")}
    assert [one.y for one in dots] == [names["full"], names["evict-large"], names["random"]]
    whiskers = [one.points for one in shapes(drawing, Line, colour="blue") if one.points[0][1] == one.points[1][1]]
    assert [points[0][0] for points in whiskers] == pytest.approx([accuracy.at(0.89), accuracy.at(0.45)])
    assert [points[1][0] for points in whiskers] == pytest.approx([accuracy.at(0.95), accuracy.at(0.59)])
    texts = [one.text for one in shapes(drawing, Label)]
    for text in ("92.0 ± 3.0", "-40.0 ± 7.0", "90.0", "-2.0", "reference", "0%", "100%"):
        assert text in texts
    assert texts.count("-") == 2
    differences = [one for one in shapes(drawing, Dot, colour="orange") if one.title]
    (zero,) = [one.points[0][0] for one in shapes(drawing, Line, colour="ink")]
    assert [one.x < zero for one in differences] == [True, True]
    assert (zero - differences[0].x) / (zero - differences[1].x) == pytest.approx(20)


@pytest.mark.parametrize("number", [1, 2])
def test_validation_without_differences_is_drawn(number: int):
    runs = [ValidatedRun("full", 1.0, None, None, None), ValidatedRun("random", 1.0, None, 0.0, 0.0)]
    assert inside(charts.validation(runs[:number]))


def test_the_same_numbers_give_the_same_bytes():
    first, second = (charts.validation(RUNS) for _ in range(2))
    assert svg(first) == svg(second) and png(first) == png(second)
