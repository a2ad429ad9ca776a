"""The page of a calibration: its figures, its form as HTML, hostile text, missing values, and the files it writes."""

import copy
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.pictures import decode

from vase_cli.errors import VaseError
from vase_cli.reports import calibration_words as words
from vase_cli.reports.calibration_charts import CHARTS, Calibration, drawings, visible
from vase_cli.reports.calibration_page import PAGE_FILE, page, write_page
from vase_cli.reports.drawing import Dot, Drawing, Rectangle, heat_colour, hex_colour

LAYERS, HEADS, TOKENS = 3, 2, 12
LEVELS = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
SHAPE = [0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.1, 1.2, 1.3, 1.5, 1.6]
HOSTILE = [
    "<script>alert(1)</script>",
    "&amp;",
    "\n",
    '" onload="x',
    "\u202e",
    "\0",
    "\r\n",
    "漢字",
    "\ud800",
    "]]>",
    "\x85",
    "-->",
]
VOID = {"meta", "br", "hr", "img", "link", "input"}


def median_range(layer: int, head: int) -> float:
    return 1.0 + layer + 0.25 * head


def example() -> dict[str, Any]:
    return {
        "problem": "0",
        "prompt_tokens": 4,
        "text_tokens": 20,
        "shown_tokens": TOKENS,
        "tokens": [f" t{position}" for position in range(TOKENS)],
        "heads": [[2, 1], [0, 0]],
        "thresholds": [2 * median_range(2, 1), 2 * median_range(0, 0)],
        "medians": [median_range(2, 1), median_range(0, 0)],
    }


def outlier(ratio: float | None, token: str = "\n", before: str = "= 34", after: str = "5: 12") -> dict[str, Any]:
    place = {"layer": 2, "head": 1, "problem": "17", "position": 31, "text_tokens": 1611, "place": 0.02}
    said = {"segment": "completion", "token_id": 12, "token": token, "before": before, "after": after}
    return {"range": 9.1, "ratio": ratio, "share": 0.0613} | place | said


def calibration(*, validation: bool = True, **facts: Any) -> Calibration:
    base = [[median_range(layer, head) for head in range(HEADS)] for layer in range(LAYERS)]
    quantiles = [[[[step * value for step in SHAPE] for value in row] for row in base] for _ in range(3)]
    largest = [
        [
            [(12.0 if (layer, head) == (2, 1) else 1.9) * base[layer][head] for head in range(HEADS)]
            for layer in range(LAYERS)
        ]
    ]
    ranges = [[row * (0.4 if position == 0 else 1.0) for position in range(TOKENS)] for row in (base[2][1], base[0][0])]
    ranges[0][7] = 12.0 * base[2][1]
    ranges[1][9] = 2.5 * base[0][0]
    segments = ("first", "prompt", "completion", "rest")
    numbers: dict[str, Any] = {f"quantiles.{segment}": copy.deepcopy(quantiles) for segment in segments}
    numbers |= {f"max.{segment}": copy.deepcopy(largest * 3) for segment in segments}
    first = [[[0.4 * value, *[value] * 6, 0.0] for value in row] for row in base]
    numbers |= {"first.mean_range": first, "example.range": ranges}
    run = {"loop_share": 0.02, "truncated_share": 0.125, "mean_completion_tokens": 560.4, "mean_cached_tokens": 1610.0}
    run |= {"samples": 48, "method": "x", "outliers": None}
    none = {"difference": None, "difference_standard_error": None}
    runs = [
        run | none | {"label": "full", "accuracy": 0.92, "standard_error": 0.03},
        run
        | {
            "label": "random",
            "accuracy": 0.5,
            "standard_error": None,
            "difference": -0.42,
            "difference_standard_error": 0.05,
        },
    ]
    asked = {
        "task": "recurrence",
        "problems": 48,
        "budget": 512,
        "n_large": 128,
        "seed": 0,
        "complete": False,
        "runs": runs,
    }
    known = {
        "model": "tiny-reasoner",
        "hub_id": None,
        "revision": None,
        "weights": "0123456789abcdef",
        "shape": {"layers": LAYERS, "heads": 8, "kv_heads": HEADS, "head_dim": 64},
        "dtype": "float32",
        "device": "cpu",
        "task": "recurrence",
        "problems": 64,
        "texts": 63,
        "truncated": 2,
        "failed": 1,
        "tokens": 38912,
        "sampling": {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        "seed": 7,
        "date": "2026-11-30T12:40:00+00:00",
        "vase_version": "0.3.0",
        "rule": "quantile:0.95",
        "metrics": ["range", "norm", "variance"],
        "levels": LEVELS,
        "counts": {"first": 512, "prompt": 3000, "completion": 35400, "rest": 38400},
        "sample_tokens": 32768,
        "lengths": {"recurrence": {"texts": 63, "mean": 608.1, "sd": None, "min": 520, "median": 607.0, "max": 1702}},
        "outliers": [outlier(4.2), outlier(None, " the")],
        "outlier_tokens": [
            {"token_id": 12, "token": "\n", "entries": 40, "share_of_outliers": 0.25, "share_of_text": 0.061}
        ],
        "example": example(),
    }
    return Calibration({"format": 1} | known | facts, numbers, {"format": 1} | asked if validation else None)


class Balance(HTMLParser):
    """Checks that every element is closed in its order, and keeps the text and the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def parsed(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.open == []
    return balance


def made(one: Calibration) -> str:
    return page(one, drawings(one))


def test_the_page_is_well_formed_and_needs_nothing_else():
    text = made(calibration())
    balance = parsed(text)
    assert text.startswith("<!DOCTYPE html>\n")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|\bsrc=|\bhref=|<script|<link|<iframe", text)
    assert not [key for _, attributes in balance.elements for key in attributes if key.startswith("on")]
    names = [attributes["id"] for _, attributes in balance.elements if "id" in attributes]
    assert names == list(CHARTS)
    used = {name for _, attributes in balance.elements for name in (attributes.get("class") or "").split()}
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None and style[1].count("{") == style[1].count("}")
    for name in used - {"on-low"}:
        assert f".{name}" in style[1], name


def test_it_is_readable_light_and_dark_and_on_paper():
    text = made(calibration())
    dark = text.partition("@media screen and (prefers-color-scheme:dark)")[2]
    for name in ("paper", "ink", "muted"):
        assert f"--{name}:{hex_colour(name, dark=True)}" in dark and f"--{name}:{hex_colour(name)}" in text
    assert "@media print" in text and "print-color-adjust:exact" in text and 'name="viewport"' in text


def test_the_same_numbers_give_the_same_page():
    assert made(calibration()) == made(calibration())


def test_the_facts_are_there():
    text = parsed(made(calibration(hub_id="some/model", revision="abc123"))).text
    for fact in (
        "tiny-reasoner (some/model)", "abc123", "3 layers, 8 heads, 2 KV heads, head dim 64", "63 texts of 64 problems",
        "2 cut at the limit", "1 failed", "38,912: 512 at the first 8", "3,000 of prompts and 35,400 of completions",
        "temperature 0.6, top_k 0, top_p 1, min_p 0", "quantile:0.95", "2026-11-30T12:40:00+00:00", "vase 0.3.0",
    ):  # fmt: skip
        assert fact in text, fact
    assert "weights 0123456789abcdef" in parsed(made(calibration())).text


def test_the_summary_says_what_the_numbers_say():
    summary = re.search('<p class="summary">(.*?)</p>', made(calibration()))
    assert summary is not None
    said = re.sub("<[^>]*>", "", summary[1])
    # Ratios 1.9 but one of 12; medians of layers 1.125 and 3.125; position 0 at 0.4 of its head.
    assert said.startswith("Heads with a heavy tail: 1 of 6 (")
    assert "median max/p50 is 1.9 and the median p99/p50 1.5; the largest max/p50 is 12, in layer 2, KV head 1." in said
    assert "last layer is 2.8 times that of the first" in said and "At position 0 the range is 0.40 times" in said


@pytest.mark.parametrize(
    ("peak", "said"), [(2.1, "No head has a heavy tail ("), (5.0, "No head has a heavy tail; in between: 1 of 6")]
)
def test_the_summary_without_a_heavy_tail(peak: float, said: str):
    one = calibration()
    one.numbers["max.rest"][0][2][1] = peak * median_range(2, 1)
    assert said in parsed(made(one)).text


def test_every_chart_has_words_that_say_how_to_read_it():
    text = " ".join(parsed(made(calibration())).text.split())
    for name in (
        "TAIL",
        "LAYERS",
        "FIRST",
        "SEGMENTS",
        "THOUGHT",
        "OUTLIERS",
        "OUTLIER_TOKENS",
        "LENGTHS",
        "VALIDATION",
    ):
        assert " ".join(getattr(words, name).split()) in text
    for name in ("TAIL", "LAYERS", "THOUGHT", "OUTLIERS"):
        assert "heavy tail" in getattr(words, name)


def cells(drawing: Drawing) -> list[Rectangle]:
    return [one for one in drawing.shapes if isinstance(one, Rectangle) and one.title]


def test_the_heat_map_holds_both_ratios():
    titles = [one.title for one in cells(drawings(calibration())["tail-weight"])]
    assert titles[:6] == [f"layer {layer}, KV head {head}: 1.5" for layer in range(3) for head in range(2)]
    assert titles[6:11] == [f"layer {layer}, KV head {head}: 1.9" for layer in range(3) for head in range(2)][:5]
    assert titles[11] == "layer 2, KV head 1: 12"


def test_the_layers_hold_the_widest_of_their_heads():
    titles = {one.title for one in cells(drawings(calibration())["range-by-layer"])}
    assert "layer 1: p1 1.0, p50 2.0 to 2.2, p99 3.4, largest 4.3" in titles and len(titles) == 3


def test_a_position_that_no_text_reaches_is_missing():
    dots = [
        one.title for one in drawings(calibration())["first-positions"].shapes if isinstance(one, Dot) and one.title
    ]
    assert dots[0].startswith("0: median over heads 0.40") and dots[1].startswith("1: median over heads 1.0")
    assert len(dots) == 8 and dots[-1] == "rest: median over heads 1.0, from 0.50 to 1.5"


def test_outlier_tokens_are_marked_in_the_chart_and_in_the_text():
    one = calibration()
    marks = [dot for dot in drawings(one)["thought"].shapes if isinstance(dot, Dot) and dot.title]
    assert [mark.title for mark in marks] == ["position 7, token  t7: 12", "position 9, token  t9: 2.5"]
    found = re.findall(r'<mark class="([^"]*)" title="([^"]*)">([^<]*)</mark>', made(one))
    assert [(title, shown) for _, title, shown in found] == [
        ("position 7&#10;layer 2, KV head 1: 39 (12 times the median)", " t7"),
        ("position 9&#10;layer 0, KV head 0: 2.5 (2.5 times the median)", " t9"),
    ]
    assert [kind for kind, _, _ in found] == ["f-heat-31 on-high", f"f-{heat_colour(0.369)} on-low"]
    body = made(one).partition('<div class="text"')[2].partition("</div>")[0]
    assert re.sub("<[^>]*>", "", body.partition(">")[2]).replace("completion", "") == "".join(example()["tokens"])
    assert body.index(" t3") < body.index(">completion<") < body.index(" t4")
    assert "its first 12 of 20 tokens" in made(one)


def test_hostile_text_stays_text():
    hostile = example() | {"tokens": HOSTILE, "problem": "<0>"}
    outliers = [outlier(2.0, token, before=token, after=token) for token in HOSTILE]
    tokens = [
        {"token_id": 1, "token": token, "entries": 1, "share_of_outliers": 0.1, "share_of_text": 0.1}
        for token in HOSTILE
    ]
    lengths = {"<task>&": {"texts": 1, "mean": 1.0, "sd": 0.0, "min": 1, "median": 1, "max": 1}}
    one = calibration(
        model="<b>\0", task="a&b", example=hostile, outliers=outliers, outlier_tokens=tokens, lengths=lengths
    )
    # Every token is marked once.
    one.facts["example"]["thresholds"][0] = -1.0
    for shown in (True, False):
        text = made(one)
        balance = parsed(text)
        assert (
            "<script" not in text
            and "<b>" not in text
            and "onload" not in {key for _, each in balance.elements for key in each}
        )
        assert not set(text) & {*map(chr, range(9)), *map(chr, range(11, 32)), "\x7f", "\x85", "\u202e", "\ud800"}
        text.encode()
        body = html.unescape(re.sub("<[^>]*>", "", text.partition('<div class="text"')[2].partition("</div>")[0]))
        for token in HOSTILE:
            assert visible(token).replace("↵", "\n" if not shown else "↵") in body
        one.facts["example"]["thresholds"][0] = 1e9


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("\n\t\r\0\x1b\x7f", "↵⇥␍␀␛␡"),
        ("\u202e\u200b\ud800\x85\u2028", "\\u{202e}\\u{200b}\\u{d800}\\u{85}\\u{2028}"),
        ("é漢🤷", "é漢🤷"),
    ],
)
def test_characters_without_a_shape_show_as_symbols_or_codes(text: str, shown: str):
    assert visible(text) == shown


def table_rows(text: str, heading: str) -> list[list[str]]:
    section = text.partition(f"<h2>{heading}</h2>")[2].partition("</section>")[0]
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", section)[1:]
    ]


def test_the_tables_hold_the_figures():
    text = made(calibration())
    assert table_rows(text, "The largest outlier tokens")[0] == ["↵", "12", "40", "25.0%", "6.1%"]
    assert table_rows(text, "The largest outlier tokens")[2:] == [
        ["= 34↵5: 12", "completion", "17", "2, 1", "9.1", "4.2", "31 of 1,611", "6.1%"],
        ["= 34·the5: 12", "completion", "17", "2, 1", "9.1", "-", "31 of 1,611", "6.1%"],
    ]
    assert table_rows(text, "Length with the full cache") == [["recurrence", "63", "608", "-", "520", "607", "1,702"]]
    assert table_rows(text, "Does the model need its outliers?") == [
        ["full", "48", "92.0 ± 3.0", "-", "2.0%", "12.5%", "560", "1,610"],
        ["random", "48", "50.0", "-42.0 ± 5.0", "2.0%", "12.5%", "560", "1,610"],
    ]
    rows = table_rows(text, "Prompt and completion")
    assert len(rows) == 12 and rows[1] == ["range", "prompt", "3,000", "2.1", "1.5", "1.9", "12"]
    assert "Not complete" in text and "48 problems of recurrence, budget 512 tokens" in text


def test_without_a_validation_it_says_how_to_get_one():
    one = calibration(validation=False)
    assert list(drawings(one)) == list(CHARTS[:-1])
    text = made(one)
    parsed(text)
    assert "<code>vase calibrate --validate</code>" in text and 'id="validation"' not in text


def test_medians_of_zero_give_a_dash_and_no_infinity():
    one = calibration()
    for segment in ("first", "prompt", "completion", "rest"):
        one.numbers[f"quantiles.{segment}"][0][0][0] = [0.0] * 11
    one.facts["example"]["medians"][1] = 0.0
    text = made(one)
    parsed(text)
    assert "layer 0, KV head 0: -" in text and not re.search(r"\b(inf|nan)\b", text)
    assert "layer 0, KV head 0: range (its median is 0)" in text
    assert 'title="position 9&#10;layer 0, KV head 0: 2.5"' in text


def test_nothing_measured_is_said_and_drawn_as_nothing():
    one = calibration(
        counts={"first": 0, "prompt": 0, "completion": 0, "rest": 0},
        outliers=[], outlier_tokens=[], example=None, lengths={}, texts=0, tokens=0, validation=False,
    )  # fmt: skip
    for segment in ("first", "prompt", "completion", "rest"):
        one.numbers[f"quantiles.{segment}"][:] = [[[[0.0] * 11] * HEADS] * LAYERS] * 3
        one.numbers[f"max.{segment}"][:] = [[[0.0] * HEADS] * LAYERS] * 3
    one.numbers["first.mean_range"][:] = [[[0.0] * 8] * HEADS] * LAYERS
    assert set(drawings(one)) == {"tail-weight", "first-positions"}
    text = parsed(made(one)).text
    assert "nothing to compare with" in text and text.count("No data.") == 2 and "No text was measured" in text


def test_equal_ranges_everywhere_are_drawn():
    one = calibration()
    one.numbers["quantiles.rest"][0][:] = [[[2.0] * 11] * HEADS] * LAYERS
    one.numbers["max.rest"][0][:] = [[2.0] * HEADS] * LAYERS
    one.numbers["example.range"][:] = [[2.0] * TOKENS] * 2
    one.facts["example"].update(thresholds=[2.0, 2.0], medians=[2.0, 2.0])
    text = made(one)
    parsed(text)
    assert "No head has a heavy tail" in text and "<mark" not in text


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import torch

    from vase_cli.tensor_files import tensor_bytes

    one = calibration()
    (tmp_path / "calibration.json").write_text(json.dumps(one.facts))
    (tmp_path / "validation.json").write_text(json.dumps(one.validation))
    tensors = {name: torch.tensor(values) for name, values in one.numbers.items()}
    (tmp_path / "calibration.safetensors").write_bytes(tensor_bytes(tensors))
    return tmp_path


def test_the_files_are_written_the_page_first_and_again_the_same(folder: Path):
    paths = write_page(folder)
    assert [path.name for path in paths] == [PAGE_FILE, *(f"{name}.png" for name in CHARTS)]
    before = [path.read_bytes() for path in paths]
    assert before == [path.read_bytes() for path in write_page(folder)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(path.name for path in paths), "calibration.json", "calibration.safetensors", "validation.json"]
    )
    parsed(before[0].decode())
    one = drawings(calibration())
    for name, content in zip(CHARTS, before[1:], strict=True):
        picture = decode(content)
        assert (picture.width, picture.height) == (2 * one[name].width, 2 * one[name].height)
    cell = cells(one["tail-weight"])[11]
    assert decode(before[1]).at(int(2 * cell.x) + 1, int(2 * cell.y) + 1) == hex_colour("heat-31")


def test_a_picture_without_data_is_removed(folder: Path):
    write_page(folder)
    (folder / "validation.json").unlink()
    names = [path.name for path in write_page(folder)]
    assert "validation.png" not in names and not (folder / "validation.png").exists()


def test_a_folder_without_its_files_or_that_cannot_be_written_is_one_line(folder: Path):
    blocked = folder / "thought.png"
    blocked.mkdir()
    (blocked / "file").touch()
    with pytest.raises(VaseError, match="cannot write") as caught:
        write_page(folder)
    assert "\n" not in str(caught.value)
    (folder / "calibration.safetensors").unlink()
    with pytest.raises(VaseError):
        write_page(folder)
