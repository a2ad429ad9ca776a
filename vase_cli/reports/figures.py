"""Figures: how they look, and their form as a file or as part of a page.

Lengths are CSS pixels, 72 to matplotlib's inch, so that a point is a pixel. No two colors are alike: inside a page
each becomes a CSS variable, light or dark with the page, while a file is always light.
"""

import importlib
import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from vase_cli.errors import quiet_log
from vase_cli.reports.characters import visible
from vase_cli.reports.numbers import tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.colors import Colormap

# On a light page and in a file; on a dark page. Blue and orange differ for color-blind readers too.
COLORS = {
    "paper": ("#ffffff", "#16191d"), "grid": ("#e4e7ea", "#2c3138"), "axis": ("#8b939b", "#6d757d"),
    "muted": ("#5b636b", "#a3abb3"), "ink": ("#1c2024", "#e6e8ea"), "orange": ("#c2410c", "#fb9a5c"),
    "blue": ("#1f63ad", "#74b3f2"), "blue-middle": ("#7fb0df", "#38699b"), "blue-pale": ("#d6e6f5", "#223a53"),
    "on-low": ("#1a0f08", "#f3ebe3"), "on-high": ("#fffffe", "#0f0a06"),
}  # fmt: skip
INK = {name: light for name, (light, _) in COLORS.items()}
HEAT_STEPS = 32
_HEAT = (
    ("#f7f3ee", "#fdd8a8", "#f7924f", "#bf2f18", "#6b0710"),
    ("#262a30", "#4d2b22", "#8e3b28", "#e27c3e", "#ffe9bd"),
)
_FONT = "DejaVu Sans"
_STYLE = {
    "font.family": _FONT, "font.size": 11.5, "text.color": INK["ink"], "text.parse_math": False,
    "axes.titlesize": 12.5, "axes.titlelocation": "left", "axes.titlepad": 8, "axes.labelcolor": INK["muted"],
    "axes.labelpad": 6, "axes.axisbelow": True, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": INK["grid"], "grid.linewidth": 1, "lines.linewidth": 1, "lines.solid_capstyle": "butt",
    "xtick.color": INK["muted"], "xtick.major.size": 0, "xtick.major.pad": 6,
    "ytick.color": INK["muted"], "ytick.major.size": 0, "ytick.major.pad": 6,
    "legend.frameon": False, "legend.labelcolor": INK["muted"], "legend.columnspacing": 1.6,
    "legend.handlelength": 1, "legend.handleheight": 1,
    "figure.constrained_layout.w_pad": 0.11, "figure.constrained_layout.h_pad": 0.08,
    "svg.fonttype": "none", "svg.hashsalt": "vase", "pdf.fonttype": 42,
} | {f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")}  # fmt: skip
_UNDATED = {"png": ("Software",), "svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer")}


@cache
def load_matplotlib() -> None:
    """Import matplotlib so that no backend, settings or font cache of the user's count, and none are written over."""
    import platformdirs

    folder = platformdirs.user_cache_path("vase", appauthor=False) / "matplotlib"
    ours = {"MPLBACKEND": "agg", "MPLCONFIGDIR": str(folder)}
    theirs = {name: os.environ[name] for name in ours if name in os.environ}
    os.environ |= ours
    try:
        with quiet_log("matplotlib"):  # a folder that cannot be written, a broken file of settings: neither matters
            for module in ("matplotlib.font_manager", "matplotlib.style"):
                importlib.import_module(module)
    finally:
        for name in ours:
            del os.environ[name]
        os.environ |= theirs


@contextmanager
def style() -> Iterator[None]:
    """Draw within it: matplotlib's own defaults and the style of all figures, whatever the user's settings are."""
    load_matplotlib()
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]):
        yield


def heat_colors(*, dark: bool = False) -> "Colormap":
    """:data:`HEAT_STEPS` colors from pale to strong; what has no value is as the grid."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", _HEAT[dark], HEAT_STEPS).with_extremes(bad=INK["grid"])


@cache
def palette() -> dict[str, tuple[str, str]]:
    """The light and the dark form of every color, ``heat-0`` to ``heat-31`` included."""
    load_matplotlib()
    from matplotlib.colors import to_hex

    light, dark = heat_colors(), heat_colors(dark=True)
    return COLORS | {f"heat-{step}": (to_hex(light(step)), to_hex(dark(step))) for step in range(HEAT_STEPS)}


def heat_ink(step: int) -> str:
    """The name of the color of text on a heat color."""
    return "on-high" if step >= 20 else "on-low"


def drawable(text: str) -> str:
    """Text in which a character that has no shape, or none in the figures' font, shows as its code."""
    return "".join(sign if ord(sign) in _glyphs() else f"\\u{{{ord(sign):x}}}" for sign in visible(text))


@cache
def _glyphs() -> frozenset[int]:
    load_matplotlib()
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont(_FONT)).get_charmap())


def log_scale(axes: "Axes", values: Iterable[float], pixels: float) -> None:
    """Make the y axis, ``pixels`` high, logarithmic for these values, with 0 at its foot if one of them is 0."""
    from matplotlib.ticker import LogLocator, NullLocator

    values = [*values]
    low, high = (end((value for value in values if value > 0), default=1.0) for end in (min, max))
    locator = LogLocator(subs=[1, 2, 5] if pixels > 50 * math.log10(high / low) else [1])
    if min(values) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(locator)
    else:
        axes.set_yscale("symlog", linthresh=low, linscale=0.5)
        axes.set_yticks([0.0, *(value for value in locator.tick_values(low, 2 * high) if low <= value <= high)])
        axes.set_ylim(bottom=0.0)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: tick(value))


class Picture:
    """A figure, made and drawn on within :func:`style`; its title says what it shows to those who cannot see it."""

    def __init__(self, width: float, height: float, title: str) -> None:
        from matplotlib.figure import Figure

        self.figure, self.title = Figure((width / 72, height / 72), dpi=72, layout="constrained"), title
        self._hints: dict[str, list[str]] = {}

    def legend(self, axes: "Axes") -> None:
        """One line on top that explains what has a label in an axes."""
        legend = self.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=9)
        for line in legend.get_lines():
            line.set_linewidth(min(line.get_linewidth(), 12))

    def hint(self, texts: list[str], *artists: "Collection") -> None:
        """Set the texts that the elements of each collection, in their order, show to a reader who points at them."""
        for artist in artists:
            artist.set_gid(f"hints-{len(self._hints)}")
            self._hints[f"hints-{len(self._hints)}"] = texts

    def save(self, kind: Literal["png", "svg", "pdf"]) -> bytes:
        """The figure as a file, the same bytes for the same drawing; a PNG has two dots for a pixel each way."""
        file = io.BytesIO()
        metadata: dict[str, Any] = dict.fromkeys(_UNDATED[kind])
        with style():
            self.figure.savefig(file, format=kind, dpi=144 if kind == "png" else 72, metadata=metadata)
        return file.getvalue()

    def inline(self, name: str) -> str:
        """The figure as an SVG element of a page, in the page's font and colors; ``name-`` begins every id in it."""
        root = ElementTree.fromstring(self.save("svg"))
        # The first two elements are facts about the file, and a style that all elements of the page would have.
        root[:2] = []
        for group in root.iterfind(".//{*}g"):
            elements = (element for part in group if not part.tag.endswith("defs") for element in part.iter())
            shapes = [element for element in elements if element.tag.endswith(("path", "use"))]
            for shape, text in zip(shapes, self._hints.get(group.get("id", ""), ()), strict=False):
                ElementTree.SubElement(shape, "title").text = text
        variables = {light: f"var(--{color})" for color, (light, _) in palette().items()}

        def adapted(key: str, value: str) -> str:
            if key == "style":
                value = re.sub("font-family: [^;]*;? ?", "", value)
                return re.sub("#[0-9a-f]{6}", lambda color: variables.get(color[0], color[0]), value)
            if key in ("href", "clip-path"):
                return value.replace("#", f"#{name}-")
            return f"{name}-{value}" if key == "id" else " ".join(value.split())

        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
            plain = {key.rpartition("}")[2]: value for key, value in element.items()}
            element.attrib = {key: adapted(key, value) for key, value in plain.items()}
        width, height = (f"{72 * inches:g}" for inches in self.figure.get_size_inches())
        root.attrib |= {"width": width, "height": height, "role": "img", "aria-label": self.title}
        return ElementTree.tostring(root, "unicode")
