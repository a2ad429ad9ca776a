"""Figures in general: their look, their files, and their form inside a page."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from vase_cli.reports.figures import (
    COLORS,
    HEAT_STEPS,
    Picture,
    drawable,
    heat_colors,
    heat_ink,
    log_scale,
    palette,
    style,
)

HOSTILE = "<b>&\"'$x^2$ 漢\u202e\0"


@pytest.fixture
def picture() -> Iterator[Picture]:
    with style():
        made = Picture(300, 200, 'what "it" shows <b>')
        axes = made.figure.subplots()
        axes.set_title(drawable(HOSTILE))
        axes.plot([1, 2, 3], color=COLORS["blue"][0], label="line")
        dots = axes.scatter([0, 1, 2], [3, 2, 1], color=COLORS["orange"][0], label="dots")
        made.hint(list("abcd"), axes.pcolormesh([[0.5, 1.5], [2.5, 3.5]], cmap=heat_colors(), edgecolors="none"))
        made.hint(["first", "second <&>", "third"], dots)
        made.legend(axes)
        yield made


def luminance(color: str) -> float:
    parts = [value / 255 for value in bytes.fromhex(color[1:])]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_have_contrast_on_their_ground(dark: bool):
    shades = {name: luminance(pair[dark]) for name, pair in palette().items()}

    def contrast(name: str, other: str) -> float:
        low, high = sorted((shades[name], shades[other]))
        return (high + 0.05) / (low + 0.05)

    assert contrast("ink", "paper") > 12 and contrast("muted", "paper") > 5
    assert contrast("blue", "paper") > 3 and contrast("orange", "paper") > 3
    steps = [shades[f"heat-{step}"] for step in range(HEAT_STEPS)]
    assert steps == sorted(steps, reverse=not dark) and len(set(steps)) == HEAT_STEPS
    for step in range(HEAT_STEPS):
        assert contrast(heat_ink(step), f"heat-{step}") > 3.8, step


def test_a_color_can_be_told_by_its_light_form():
    light = [pair[0] for pair in palette().values()]
    assert len(set(light)) == len(light) == len(COLORS) + HEAT_STEPS


def test_the_forms_of_a_file(picture: Picture):
    png, svg, pdf = (picture.save(kind) for kind in ("png", "svg", "pdf"))
    assert png.startswith(b"\x89PNG") and pdf.startswith(b"%PDF") and b"CreationDate" not in pdf
    assert int.from_bytes(png[16:20]) == 600 and int.from_bytes(png[20:24]) == 400
    ElementTree.fromstring(svg)
    assert b"date" not in svg


DRAW = """
import hashlib, sys
from vase_cli.reports.figures import Picture, style
with style():
    picture = Picture(300, 200, "")
    axes = picture.figure.subplots()
    axes.plot([1, 5, 2], label="line ± é")
    picture.hint(["a", "b"], axes.scatter([0, 1], [1, 2]))
    picture.legend(axes)
forms = [*map(picture.save, ("png", "svg", "pdf")), picture.inline("x").encode()]
assert "matplotlib.pyplot" not in sys.modules
print([hashlib.sha256(form).hexdigest() for form in forms])
"""


def test_the_same_drawing_gives_the_same_bytes_in_every_process(tmp_path: Path):
    found = {
        subprocess.run(
            [sys.executable, "-c", DRAW],
            env={"PYTHONHASHSEED": seed, "HOME": str(tmp_path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def settings() -> dict[str, object]:
    # To ask for the backend would choose one.
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}


def test_settings_of_the_user_neither_count_nor_change(picture: Picture):
    before = settings()
    plain = picture.save("svg")
    with matplotlib.rc_context({"svg.fonttype": "path", "text.usetex": True, "font.size": 40}):
        assert picture.save("svg") == plain
    assert settings() == before


def test_in_a_page_every_id_is_its_own_and_every_reference_is_met(picture: Picture):
    root = ElementTree.fromstring(picture.inline("one"))
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(names)) == len(names) and all(name.startswith("one-") for name in names)
    values = [value for element in root.iter() for value in element.attrib.values()]
    used = {
        found for value in values for found in re.findall(r"^#(.+)$|^url\(#(.+)\)$", value) for found in found if found
    }
    assert used and used <= set(names)
    assert not [element.tag for element in root.iter() if element.tag in ("style", "metadata", "image")]


def test_in_a_page_every_color_is_a_variable(picture: Picture):
    text = picture.inline("one")
    styles = re.findall('style="([^"]*)"', text)
    assert not [each for each in styles if re.search("#[0-9a-f]{3}|rgb|font-family", each)]
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", text))
    assert {"paper", "ink", "muted", "grid", "blue", "orange", "heat-0", "heat-31"} <= used <= set(palette())


def test_hints_stand_at_their_elements_in_order(picture: Picture):
    root = ElementTree.fromstring(picture.inline("one"))
    hints = {title.text: element for element in root.iter() for title in element.findall("title")}
    assert list(hints) == ["first", "second <&>", "third", "a", "b", "c", "d"]
    assert "heat-0)" in hints["a"].get("style", "") and "heat-31)" in hints["d"].get("style", "")
    places = [float(hints[text].get("x", "")) for text in ("first", "second <&>", "third")]
    assert places == sorted(set(places))


def test_text_in_a_page_is_text(picture: Picture):
    text = picture.inline("one")
    assert 'aria-label="what &quot;it&quot; shows &lt;b&gt;"' in text and 'width="300" height="200"' in text
    assert "<b>" not in text and "&lt;b&gt;&amp;\"'$x^2$ \\u{6f22}\\u{202e}" in text and "\0" not in text


def test_what_the_font_lacks_shows_as_its_code():
    assert drawable("a $x$ é ± ↵ “”") == "a $x$ é ± ↵ “”"
    assert drawable("漢\u202e\n😀") == "\\u{6f22}\\u{202e}↵😀"
    assert drawable("\U0001f9ff") == "\\u{1f9ff}"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.3, 7.0], ["0.5", "1", "2", "5"]),
        ([0.0, 2.0, 50.0], ["0", "2", "5", "10", "20", "50"]),
        ([0.0, 0.0], ["0", "1"]),
        ([1e-3, 1e6], ["0.01", "1", "100", "10,000", "1e6"]),
        ([3.0, 3.0], None),
        ([2.2, 4.8], None),
        ([1e-30, 1e30], None),
        ([5e-7, 6e-7], None),
    ],
)
def test_a_log_scale_has_ticks_and_holds_its_values(values: list[float], ticks: list[str] | None):
    with style():
        picture = Picture(300, 300, "")
        axes = picture.figure.subplots()
        axes.scatter(range(len(values)), values)
        log_scale(axes, values, 220)
        picture.figure.draw_without_rendering()
        low, high = axes.get_ylim()
        shown = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert low <= min(values) and max(values) <= high
    assert len(set(shown)) == len(shown) >= 2
    if ticks is not None:
        assert shown == ticks


@pytest.mark.parametrize("backend", ["nonsense", None])
def test_nothing_of_the_users_matplotlib_counts_and_nothing_is_said(tmp_path: Path, backend: str | None):
    """Without a home to write to, with a backend that does not exist and broken settings, pictures are the same."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nbogus: 1\n")
    (tmp_path / "home").write_text("a file, so that nothing can be written below it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MPL", "XDG_"))}
    environment |= {"HOME": str(tmp_path / "home")} | ({"MPLBACKEND": backend} if backend else {})
    code = (
        "import os, sys; before = dict(os.environ)\n"
        "from vase_cli.reports import figures\n"
        "with figures.style():\n    from matplotlib import rcParams\n    print(rcParams['font.size'])\n"
        "assert dict(os.environ) == before\n"
    )
    command = [sys.executable, "-c", code]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=tmp_path, env=environment | {"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("11.5\n", "")
