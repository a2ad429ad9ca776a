"""The pictures of a calibration: what stands where, at every shape, and what they say when pointed at."""

import math
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from helpers.calibrations import PEAK_RATIO, Calibration, calibration, median_range
from matplotlib.text import Text

from vase_cli.reports.calibration_figures import PICTURES, Measured, calibration_pictures
from vase_cli.reports.figures import HEAT_STEPS, INK, Picture, palette

SHAPES = [(1, 1), (2, 1), (5, 4), (12, 12), (13, 2), (28, 4), (36, 8), (64, 40)]


def pictures(made: Calibration) -> dict[str, Picture]:
    return calibration_pictures(Measured(made.facts, made.numbers), made.validation)


def hints(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.inline("name"))
    return [title.text or "" for title in root.iter("title")]


def collections(picture: Picture, label: str, panel: int = 0):
    (found,) = [each for each in picture.figure.axes[panel].collections if each.get_label() == label]
    return found


def drawn(picture: Picture) -> list[Text]:
    """The texts of a picture; ticks out of their axis are not drawn."""
    picture.figure.draw_without_rendering()
    found = [text for legend in picture.figure.legends for text in legend.get_texts()]
    for axes in picture.figure.axes:
        found += [child for child in axes.get_children() if isinstance(child, Text)]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks(len(axis.get_majorticklocs()))
            found += [axis.label, *(tick.label1 for tick in ticks if low <= tick.get_loc() <= high)]
    return [text for text in found if text.get_text() and text.get_visible()]


def texts(picture: Picture) -> list[str]:
    return [text.get_text() for text in drawn(picture)]


def check_texts(picture: Picture) -> None:
    """No text is cut off, and none lies on another."""
    sheet = picture.figure.bbox
    boxes = [(text.get_window_extent(), text.get_text()) for text in drawn(picture)]
    for box, text in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= sheet.x1 and box.y1 <= sheet.y1, (text, box)
    for (box, text), (other, second) in combinations(boxes, 2):
        apart = box.x1 <= other.x0 + 1 or other.x1 <= box.x0 + 1 or box.y1 <= other.y0 + 1 or other.y1 <= box.y0 + 1
        assert apart, (text, second)


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
@pytest.mark.parametrize("tokens", [1, 40, 1500])
def test_no_text_is_cut_off_or_covered(layers: int, heads: int, tokens: int):
    for picture in pictures(calibration(layers, heads, tokens)).values():
        check_texts(picture)


@pytest.mark.parametrize(("layers", "heads"), SHAPES)
def test_the_heat_map_has_a_cell_for_every_head_at_its_place(layers: int, heads: int):
    picture = pictures(calibration(layers, heads))["tail-weight"]
    assert {axes.get_title(loc="left") for axes in picture.figure.axes[:2]} == {"p99 / p50", "max / p50"}
    said = hints(picture)
    assert len(said) == 2 * layers * heads
    places = [f"layer {layer}, KV head {head}" for head in range(heads) for layer in range(layers)]
    assert said[: len(places)] == [f"{place}: 1.5" for place in places]
    assert said[len(places) :] == [*(f"{place}: 1.9" for place in places[:-1]), f"{places[-1]}: 12"]
    root = ElementTree.fromstring(picture.inline("name"))
    fills = [
        re.search("heat-([0-9]+)", path.get("style", ""))[1]
        for path in root.iter("path")
        if (title := path.find("title")) is not None and title.text
    ]
    assert fills[-1] == "31" and fills.count("31") == 1
    cells = [path.get("d") for path in root.iter("path") if path.find("title") is not None]
    corner = [tuple(map(float, re.findall("-?[0-9.]+", cell)[:2])) for cell in cells[: len(places)]]
    for (x, y), place in zip(corner, places, strict=True):
        layer, head = map(int, re.findall("[0-9]+", place))
        assert (x, y) == (corner[layer][0], corner[head * layers][1])
    assert corner == sorted(corner, key=lambda place: (place[1], place[0]))


def test_a_cell_without_a_value_says_so():
    made = calibration()
    made.numbers["quantiles.rest"][0][0][0] = [0.0] * 11
    picture = pictures(made)["tail-weight"]
    assert "layer 0, KV head 0: -" in hints(picture) and "-" in texts(picture)
    assert "times the median of its head (log scale); -: no value, the median is 0" in texts(picture)
    root = ElementTree.fromstring(picture.inline("name"))
    (cell, _) = (each for each in root.iter("path") if "KV head 0: -" in each.findtext("title", ""))
    assert "fill: var(--grid)" in cell.get("style", "")


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (2.4, ["1", "2", "5", "10"]),
        (42.0, ["1", "2", "5", "10", "20", "42"]),
        (5e6, ["1", "10", "100", "1,000", "10,000", "1e5", "1e6", "5e6"]),
    ],
)
def test_the_scale_of_colors_names_its_ends_and_what_lies_between(top: float, ticks: list[str]):
    made = calibration()
    made.numbers["max.rest"][0][-1][-1] = top * median_range(2, 1)
    picture = pictures(made)["tail-weight"]
    check_texts(picture)
    labels = picture.figure.axes[-1].get_xticklabels()
    assert [label.get_text() for label in labels] == ticks
    measured = Measured(made.facts, made.numbers)
    assert measured.heat_top == pytest.approx(max(10, top))
    steps = [measured.heat_step(ratio) for ratio in (0.5, 1.0, measured.heat_top**0.5, measured.heat_top, 1e9)]
    assert steps == [0, 0, HEAT_STEPS // 2, HEAT_STEPS - 1, HEAT_STEPS - 1]


def test_a_cell_and_a_mark_of_one_ratio_have_one_color():
    made = calibration(12, 1)
    for layer in range(12):
        made.numbers["max.rest"][0][layer][0] = (1.1 + 0.8 * layer) * median_range(layer, 0)
    root = ElementTree.fromstring(pictures(made)["tail-weight"].inline("name"))
    measured = Measured(made.facts, made.numbers)
    cells = [path.get("style") for path in root.iter("path") if path.find("title") is not None][12:]
    for layer, drawn in enumerate(cells):
        assert f"var(--heat-{measured.heat_step(1.1 + 0.8 * layer)})" in drawn


@pytest.mark.parametrize("layers", [1, 2, 24, 64])
def test_layers_stand_in_order_with_their_values_at_their_heights(layers: int):
    picture = pictures(calibration(layers, 2))["range-by-layer"]
    said = [f"layer {layer}: " for layer in range(layers)]
    assert [re.match("layer [0-9]+: ", text)[0] for text in hints(picture)] == 4 * said
    pale = collections(picture, "p1 to p99, widest of its heads").get_segments()
    dark = collections(picture, "p50 of its heads, lowest to highest").get_segments()
    line = collections(picture, "their median").get_segments()
    dots = collections(picture, "largest value of any head").get_offsets()
    for layer in range(layers):
        low, high = median_range(layer, 0), median_range(layer, 1)
        assert pale[layer].ravel().tolist() == pytest.approx([layer, 0.5 * low, layer, 1.5 * high])
        assert dark[layer].ravel().tolist() == pytest.approx([layer, low, layer, high])
        assert line[layer][:, 1].tolist() == pytest.approx([(low + high) / 2] * 2)
        top = PEAK_RATIO if layer == layers - 1 else 1.9
        assert dots[layer].tolist() == pytest.approx([layer, top * high])
    assert picture.figure.axes[0].get_yscale() == "log"


def test_the_layers_hold_the_widest_of_their_heads():
    assert "layer 1: p1 1.0, p50 2.0 to 2.2, p99 3.4, largest 4.3" in hints(pictures(calibration())["range-by-layer"])


def test_first_positions_stand_at_their_multiples_and_one_that_no_text_reaches_is_missing():
    picture = pictures(calibration())["first-positions"]
    dots = collections(picture, "median over heads").get_offsets().tolist()
    assert dots[0] == pytest.approx([0, 0.4]) and dots[1:7] == [[place, pytest.approx(1.0)] for place in range(1, 7)]
    assert dots[7:] == [[8, 1.0]]
    assert hints(picture)[-1] == "rest: median over heads 1.0, from 0.50 to 1.5" and "-" in texts(picture)
    assert hints(picture)[0].startswith("0: median over heads 0.40")


@pytest.mark.parametrize("tokens", [12, 40, 2048])
def test_a_mark_stands_at_its_token(tokens: int):
    picture = pictures(calibration(tokens=tokens))["thought"]
    first, second = (collections(picture, "token over the threshold", panel).get_offsets().tolist() for panel in (0, 1))
    assert first == [[tokens * 7 // 12, PEAK_RATIO]] and second == [[tokens * 9 // 12, 2.5]]
    assert hints(picture) == [
        f"position {at}, token  t{at}: {ratio}" for at, ratio in ((tokens * 7 // 12, "12"), (tokens * 9 // 12, "2.5"))
    ]
    panels = picture.figure.axes
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_yscale() == "log"
    assert "start of the completion" in texts(picture)


def test_only_a_token_of_a_heavy_tail_is_named_and_its_text_is_no_formula():
    made = calibration()
    made.facts["example"]["tokens"][7] = "$x^2$漢"
    said = texts(pictures(made)["thought"])
    assert [text for text in said if "“" in text] == ["“$x^2$\\u{6f22}” 12"]
    made.numbers["example.range"][0][7] = 9.9 * median_range(2, 1)
    assert not [text for text in texts(pictures(made)["thought"]) if "“" in text]


def test_a_head_whose_median_is_0_keeps_its_own_measure_and_axis():
    made = calibration()
    made.facts["example"]["medians"][1] = 0.0
    made.numbers["example.range"][1][3] = 0.0
    picture = pictures(made)["thought"]
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == ["layer 2, KV head 1: range / median", "layer 0, KV head 0: range (its median is 0)"]
    assert [axes.get_yscale() for axes in picture.figure.axes] == ["log", "symlog"]
    assert picture.figure.axes[1].get_ylim()[0] == 0.0
    check_texts(picture)


RUNS = [
    {"label": "full", "accuracy": 0.92, "standard_error": 0.03, "difference": None, "difference_standard_error": None},
    {"label": "evict-large", "accuracy": 0.52, "standard_error": 0.07, "difference": -0.4,
     "difference_standard_error": 0.07},
    {"label": "random", "accuracy": 1.0, "standard_error": None, "difference": 0.08, "difference_standard_error": None},
    {"label": "$a$ 漢", "accuracy": None, "standard_error": None, "difference": None,
     "difference_standard_error": None},
]  # fmt: skip


def test_validation_stands_at_its_values_with_whiskers_of_one_standard_error():
    made = calibration()
    made.validation["runs"] = RUNS
    picture = pictures(made)["validation"]
    check_texts(picture)
    found = [
        [
            (bars.lines[0].get_xydata().tolist(), bars.lines[2][0].get_segments()[0][:, 0].tolist())
            for bars in axes.containers
            if len(bars.lines[0].get_xydata())
        ]
        for axes in picture.figure.axes
    ]
    assert found == [
        [([[0.92, 0]], pytest.approx([0.89, 0.95])), ([[0.52, 1]], pytest.approx([0.45, 0.59])), ([[1, 2]], [1, 1])],
        [([[-0.4, 1]], pytest.approx([-0.47, -0.33])), ([[0.08, 2]], [0.08, 0.08])],
    ]
    said = texts(picture)
    for text in ("92.0 ± 3.0", "-40.0 ± 7.0", "100.0", "+8.0", "reference", "0%", "100%", "-40%", "$a$ \\u{6f22}"):
        assert text in said, text
    assert said.count("-") == 2


@pytest.mark.parametrize("number", [1, 2])
def test_validation_without_differences_is_drawn(number: int):
    made = calibration()
    none = {"standard_error": None, "difference_standard_error": None}
    made.validation["runs"] = [
        {"label": "full", "accuracy": 1.0, "difference": None} | none,
        {"label": "random", "accuracy": 1.0, "difference": 0.0} | none,
    ][:number]
    check_texts(pictures(made)["validation"])


@pytest.mark.parametrize("value", [0.0, 3.0, math.nan, math.inf])
def test_equal_and_missing_numbers_are_drawn(value: float):
    made = calibration()
    made.numbers["quantiles.rest"][0][:] = [[[value] * 11] * 2] * 3
    made.numbers["max.rest"][0][:] = [[value] * 2] * 3
    made.numbers["example.range"][:] = [[value] * 12] * 2
    made.numbers["first.mean_range"][:] = [[[value] * 8] * 2] * 3
    drawn = pictures(made)
    assert list(drawn) == list(PICTURES)
    for picture in drawn.values():
        picture.save("png")
        check_texts(picture)


def test_only_colors_of_the_palette_are_drawn():
    known = {light for light, _ in palette().values()}
    for picture in pictures(calibration()).values():
        assert set(re.findall("#[0-9a-f]{6}", picture.save("svg").decode())) <= known
    assert INK["paper"] in known
