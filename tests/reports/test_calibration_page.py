"""The page of a calibration: its figures in words, its form as HTML, hostile text, and missing values."""

import html
import re
from html.parser import HTMLParser

import pytest
from helpers.calibrations import Calibration, calibration, median_range, outlier

from vase_cli.reports.calibration_figures import PICTURES
from vase_cli.reports.calibration_page import PAGE_FILE, PICTURE_FILES, calibration_page
from vase_cli.reports.characters import visible
from vase_cli.reports.figures import palette

HOSTILE = ["<script>alert(1)</script>", "&amp;", "\n", '" onload="x', "\u202e", "\0", "\r\n", "漢字", "\ud800", "]]>",
           "\x85", "-->", "{{ facts }}", "$x_1$"]  # fmt: skip
VOID = {"meta", "br", "hr", "img", "link", "input"}
HEADINGS = [
    "Tail weight of every head",
    "Distribution in every layer",
    "The first 8 positions",
    "Prompt and completion",
    "Along one text",
    "The largest outlier tokens",
    "Length with the full cache",
    "Does the model need its outliers?",
]


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


def made(measured: Calibration) -> str:
    return calibration_page(*measured)[PAGE_FILE].decode()


def words_of(text: str) -> str:
    """What a page says, whatever its line breaks."""
    return " ".join(parsed(text).text.split())


def test_the_page_is_well_formed_and_needs_nothing_else():
    text = made(calibration())
    balance = parsed(text)
    assert text.startswith("<!DOCTYPE html>\n")
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import|\bsrc=|\bhref=\"(?!#)|<script|<link|<iframe", text)
    assert not [key for _, attributes in balance.elements for key in attributes if key.startswith("on")]
    (policy,) = (each["content"] for tag, each in balance.elements if each.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    names = [attributes["id"] for _, attributes in balance.elements if "id" in attributes]
    assert len(set(names)) == len(names) and [name for name in names if name in PICTURES] == list(PICTURES)
    references = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert references and set(references) <= set(names)
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None and style[1].count("{") == style[1].count("}")
    for name in {name for _, attributes in balance.elements for name in (attributes.get("class") or "").split()}:
        assert f".{name}" in style[1], name
    for name in re.findall(r"var\(--([a-z0-9-]+)\)", text):
        assert style[1].count(f"--{name}:") == 2, name


def test_it_is_readable_light_and_dark_and_on_paper():
    text = made(calibration())
    light, _, dark = text.partition("@media screen and (prefers-color-scheme:dark)")
    for name, (on_light, on_dark) in palette().items():
        assert f"--{name}:{on_light};" in light and f"--{name}:{on_dark};" in dark
    assert "@media print" in text and "print-color-adjust:exact" in text and 'name="viewport"' in text


def test_the_same_numbers_give_the_same_files():
    assert calibration_page(*calibration()) == calibration_page(*calibration())


def test_the_files_are_the_page_and_then_the_pictures():
    contents = calibration_page(*calibration())
    assert list(contents) == [PAGE_FILE, *PICTURE_FILES]
    assert tuple(f"{name}.png" for name in PICTURES) == PICTURE_FILES
    assert all(contents[name].startswith(b"\x89PNG") for name in PICTURE_FILES)


def test_the_facts_are_there():
    text = words_of(made(calibration(hub_id="some/model", revision="abc123")))
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
    light = calibration()
    light.numbers["max.rest"][0][2][1] = peak * median_range(2, 1)
    assert said in parsed(made(light)).text


def body_of(text: str) -> str:
    """The example's text as HTML."""
    return text.partition('<div class="text"')[2].partition("</div>")[0].partition(">")[2]


def test_outlier_tokens_are_marked_in_the_text():
    text = made(calibration())
    found = re.findall(r'<mark style="([^"]*)" title="([^"]*)">([^<]*)</mark>', text)
    assert [(html.unescape(title), shown) for _, title, shown in found] == [
        ("position 7\nlayer 2, KV head 1: 39 (12 times the median)", " t7"),
        ("position 9\nlayer 0, KV head 0: 2.5 (2.5 times the median)", " t9"),
    ]
    assert [style for style, _, _ in found] == [
        "background:var(--heat-31);color:var(--on-high)",
        "background:var(--heat-11);color:var(--on-low)",
    ]
    body = body_of(text)
    assert re.sub("<[^>]*>", "", body).replace("completion", "") == "".join(f" t{at}" for at in range(12))
    assert body.index(" t3") < body.index(">completion<") < body.index(" t4")
    assert "Problem 0, its first 12 of 20 tokens." in " ".join(text.split())


def test_every_section_is_there_and_says_how_to_read_it():
    text = made(calibration())
    sections = re.findall("<h2>(.*?)</h2>(.*?)(?=<h2>|<footer>)", text, re.DOTALL)
    assert [heading for heading, _ in sections] == HEADINGS
    for heading, body in sections:
        assert '<p class="words">' in body, heading
    said = words_of(text)
    for words in (
        "A heavy tail is a head whose largest range is 10 or more times its median",
        "Under 3 there is none",
        "Each bar is one layer.",
        "Position 0 is often an attention sink",
        "thresholds fitted on one do not fit the other",
        "a few single peaks at 10 or more",
        "with the text around the token (spaces as ·)",
        "equal shares are chance",
        "A budget of a quarter is a quarter of the mean",
        "two of them to either side hold the true value 95 times in 100",
    ):
        assert words in said, words


@pytest.mark.parametrize("marked", [True, False])
def test_hostile_text_stays_text(marked: bool):
    tokens = [
        {"token_id": 1, "token": token, "entries": 1, "share_of_outliers": 0.1, "share_of_text": 0.1}
        for token in HOSTILE
    ]
    hostile = calibration(
        tokens=len(HOSTILE), model="<b>\0", task="a&b", outlier_tokens=tokens,
        outliers=[outlier(2.0, token, before=token, after=token) for token in HOSTILE],
        lengths={"<task>&": {"texts": 1, "mean": 1.0, "sd": 0.0, "min": 1, "median": 1, "max": 1}},
    )  # fmt: skip
    # In one head, every token is over the threshold or none is.
    hostile.facts["example"] |= {"tokens": HOSTILE, "problem": "<0>", "thresholds": [-1.0 if marked else 1e9, 1e9]}
    hostile.validation["runs"][1]["label"] = "<i>$x^2$\u202e"
    text = made(hostile)
    balance = parsed(text)
    assert "<script" not in text and "<b>" not in text and "<i>" not in text
    assert not {key for _, attributes in balance.elements for key in attributes} & {"onload"}
    assert not set(text) & {*map(chr, range(9)), *map(chr, range(11, 32)), "\x7f", "\x85", "\u202e", "\ud800"}
    text.encode()
    body = html.unescape(re.sub("<[^>]*>", "", body_of(text)))
    for token in HOSTILE:
        assert visible(token).replace("↵", "↵" if marked else "\n") in body
    assert body_of(text).count("<mark") == (len(HOSTILE) if marked else 0)
    assert "{{ facts }}" in body


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
    section = text.partition(f"<h2>{heading}</h2>")[2].partition("<h2>")[0]
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
    assert "Not complete" in text and "48 problems of recurrence, budget 512 tokens" in words_of(text)


def test_without_a_validation_it_says_how_to_get_one():
    contents = calibration_page(*calibration()._replace(validation=None))
    assert list(contents) == [PAGE_FILE, *PICTURE_FILES[:-1]]
    text = contents[PAGE_FILE].decode()
    parsed(text)
    assert "<code>vase calibrate --validate</code>" in text and 'id="validation"' not in text


def test_medians_of_zero_give_a_dash_and_no_infinity():
    zero = calibration()
    for segment in ("first", "prompt", "completion", "rest"):
        zero.numbers[f"quantiles.{segment}"][0][0][0] = [0.0] * 11
    zero.facts["example"]["medians"][1] = 0.0
    text = made(zero)
    parsed(text)
    assert "layer 0, KV head 0: -" in text and not re.search(r"\b(inf|nan)\b", parsed(text).text)
    assert "layer 0, KV head 0: range (its median is 0)" in text
    assert 'title="position 9\nlayer 0, KV head 0: 2.5"' in html.unescape(text)


def test_nothing_measured_is_said_and_drawn_as_nothing():
    nothing = calibration(
        counts={"first": 0, "prompt": 0, "completion": 0, "rest": 0},
        outliers=[], outlier_tokens=[], example=None, lengths={}, texts=0,
    )._replace(validation=None)  # fmt: skip
    nothing.facts["tokens"] = 0
    for segment in ("first", "prompt", "completion", "rest"):
        nothing.numbers[f"quantiles.{segment}"] = [[[[0.0] * 11] * 2] * 3] * 3
        nothing.numbers[f"max.{segment}"] = [[[0.0] * 2] * 3] * 3
    nothing.numbers["first.mean_range"] = [[[0.0] * 8] * 2] * 3
    del nothing.numbers["example.range"]
    contents = calibration_page(*nothing)
    assert list(contents) == [PAGE_FILE, "tail-weight.png", "first-positions.png"]
    text = parsed(contents[PAGE_FILE].decode()).text
    assert "nothing to compare with" in text and text.count("No data.") == 2
    assert "No text was measured" in text and "No token was measured" in text


def test_equal_ranges_everywhere_are_drawn():
    equal = calibration()
    equal.numbers["quantiles.rest"][0][:] = [[[2.0] * 11] * 2] * 3
    equal.numbers["max.rest"][0][:] = [[2.0] * 2] * 3
    equal.numbers["example.range"][:] = [[2.0] * 12] * 2
    equal.facts["example"].update(thresholds=[2.0, 2.0], medians=[2.0, 2.0])
    text = made(equal)
    parsed(text)
    assert "No head has a heavy tail" in text and "<mark" not in text
