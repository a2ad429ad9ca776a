"""A drawing as a list of shapes, and its two forms: SVG inside a page, and PNG.

Lengths are CSS pixels from the upper left corner. A colour is a name of :data:`COLOURS`, or ``heat-0`` to
``heat-31``; the SVG refers to it by class, so that a page can be light or dark, and a PNG is always light.
"""

import html
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vase_cli.reports.lettering import Stroke, letters, text_width

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

# On a light page and in a PNG; on a dark page.
COLOURS = {
    "paper": ("#ffffff", "#16191d"),
    "ink": ("#1c2024", "#e6e8ea"),
    "muted": ("#5b636b", "#a3abb3"),
    "axis": ("#8b939b", "#6d757d"),
    "grid": ("#e4e7ea", "#2c3138"),
    "blue": ("#1f63ad", "#74b3f2"),
    "blue-middle": ("#7fb0df", "#38699b"),
    "blue-pale": ("#d6e6f5", "#223a53"),
    "orange": ("#c2410c", "#fb9a5c"),
    "on-low": ("#1a0f08", "#f3ebe3"),
    "on-high": ("#ffffff", "#0f0a06"),
}
HEAT_STEPS = 32
_HIGH_STEP = 20
_HEAT_LIGHT = ("#f7f3ee", "#fdd8a8", "#f7924f", "#bf2f18", "#6b0710")
_HEAT_DARK = ("#262a30", "#4d2b22", "#8e3b28", "#e27c3e", "#ffe9bd")


@dataclass(frozen=True)
class Rectangle:
    """A filled rectangle, with what it says when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A polyline with round ends."""

    points: Sequence[Point]
    colour: str
    width: float = 1.0


@dataclass(frozen=True)
class Dot:
    """A filled circle, with what it says when it is pointed at."""

    x: float
    y: float
    radius: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Label:
    """One line of text; y is its baseline, and a turned one reads upwards from its point."""

    x: float
    y: float
    text: str
    colour: str = "ink"
    size: float = 12.0
    anchor: Anchor = "start"
    turned: bool = False


Shape = Rectangle | Line | Dot | Label


@dataclass
class Drawing:
    """Shapes in the order they are drawn.

    Attributes:
        title: what is drawn, for who cannot see it.
    """

    width: int
    height: int
    title: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Draws over what is there."""
        self.shapes += shapes


def heat_colour(share: float) -> str:
    """The name of a heat colour: 0 the palest, 1 the strongest; beyond them as at them."""
    return f"heat-{_heat_step(share)}"


def heat_ink(share: float) -> str:
    """The name of the colour that text has on a heat colour."""
    return "on-high" if _heat_step(share) >= _HIGH_STEP else "on-low"


def _heat_step(share: float) -> int:
    return min(HEAT_STEPS - 1, max(0, round(share * (HEAT_STEPS - 1))))


def hex_colour(name: str, *, dark: bool = False) -> str:
    """A colour as ``#rrggbb``."""
    if name.startswith("heat-"):
        return _blend(_HEAT_DARK if dark else _HEAT_LIGHT, int(name[5:]) / (HEAT_STEPS - 1))
    return COLOURS[name][dark]


def style_rules(*, dark: bool) -> str:
    """CSS that gives every colour a drawing may name its class, and the page its variables."""
    names = [*COLOURS, *(f"heat-{step}" for step in range(HEAT_STEPS))]
    variables = ";".join(f"--{name}:{hex_colour(name, dark=dark)}" for name in COLOURS)
    rules = (
        f".f-{name}{{fill:{colour};background-color:{colour}}}.s-{name}{{stroke:{colour}}}"
        for name, colour in _hexes(names, dark)
    )
    return f":root{{{variables}}}" + "".join(rules)


def svg(drawing: Drawing) -> str:
    """The drawing as an element for an HTML page that holds :func:`style_rules`."""
    title = html.escape(drawing.title)
    body = "".join(map(_element, drawing.shapes))
    return (
        f'<svg viewBox="0 0 {drawing.width} {drawing.height}" width="{drawing.width}" height="{drawing.height}" '
        f'role="img" aria-label="{title}">{body}</svg>'
    )


def png(drawing: Drawing, *, scale: int = 2) -> bytes:
    """The drawing as a PNG of 8-bit RGB, with so many pixels to each CSS pixel."""
    raster = _Raster(drawing.width * scale, drawing.height * scale, scale)
    for shape in drawing.shapes:
        raster.draw(shape)
    return raster.encoded()


def _hexes(names: Iterable[str], dark: bool) -> Iterable[tuple[str, str]]:
    return ((name, hex_colour(name, dark=dark)) for name in names)


def _blend(stops: Sequence[str], share: float) -> str:
    place = share * (len(stops) - 1)
    first = min(int(place), len(stops) - 2)
    pair = zip(_rgb(stops[first]), _rgb(stops[first + 1]), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * (place - first)):02x}" for low, high in pair)


def _rgb(colour: str) -> bytes:
    return bytes.fromhex(colour[1:])


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle(x, y, width, height, colour, title):
            size = f'x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}"'
            return _titled("rect", f'class="f-{colour}" {size}', title)
        case Dot(x, y, radius, colour, title):
            return _titled(
                "circle", f'class="f-{colour}" cx="{_short(x)}" cy="{_short(y)}" r="{_short(radius)}"', title
            )
        case Line(points, colour, width):
            path = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
            return f'<polyline class="s-{colour}" stroke-width="{_short(width)}" points="{path}"/>'
        case Label(x, y, text, colour, size, anchor, turned):
            place = f'x="{_short(x)}" y="{_short(y)}"'
            turn = f' transform="rotate(-90 {_short(x)} {_short(y)})"' if turned else ""
            side = "" if anchor == "start" else f' text-anchor="{anchor}"'
            return f'<text class="f-{colour}" {place} font-size="{_short(size)}"{side}{turn}>{html.escape(text)}</text>'


def _titled(tag: str, attributes: str, title: str) -> str:
    return f"<{tag} {attributes}><title>{html.escape(title)}</title></{tag}>" if title else f"<{tag} {attributes}/>"


def _short(length: float) -> str:
    return f"{length:.2f}".rstrip("0").rstrip(".")


Coverage = dict[tuple[int, int], float]


class _Raster:
    """Rows of RGB pixels; lines, dots and letters have soft edges, rectangles whole pixels."""

    def __init__(self, width: int, height: int, scale: int) -> None:
        self.width, self.height, self.scale = width, height, scale
        self.rows = [bytearray(_rgb(hex_colour("paper")) * width) for _ in range(height)]
        self._letters: dict[tuple[str, float, bool], Coverage] = {}

    def draw(self, shape: Shape) -> None:
        scale = self.scale
        match shape:
            case Rectangle(x, y, width, height, colour, _):
                self._fill(x * scale, y * scale, width * scale, height * scale, colour)
            case Dot(x, y, radius, colour, _):
                self._cover(_stroke([(x * scale, y * scale)], 2 * radius * scale), 0, 0, colour)
            case Line(points, colour, width):
                scaled = [(x * scale, y * scale) for x, y in points]
                self._cover(_stroke(scaled, width * scale), 0, 0, colour)
            case Label():
                self._write(shape)

    def _fill(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        left, top = max(0, round(x)), max(0, round(y))
        right, bottom = min(self.width, max(round(x) + 1, round(x + width))), min(self.height, round(y + height))
        bottom = min(self.height, max(round(y) + 1, bottom))
        for row in self.rows[top:bottom]:
            row[3 * left : 3 * right] = _rgb(hex_colour(colour)) * (right - left)

    def _write(self, label: Label) -> None:
        size = label.size * self.scale
        width = text_width(label.text, size)
        back = {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
        for character, offset, strokes in letters(label.text, size):
            key = (character, size, label.turned)
            if key not in self._letters:
                self._letters[key] = _letter(strokes, size, label.turned)
            along = offset - back
            x, y = label.x * self.scale, label.y * self.scale
            x, y = (x, y - along) if label.turned else (x + along, y)
            self._cover(self._letters[key], round(x), round(y), label.colour)

    def _cover(self, coverage: Coverage, left: int, top: int, colour: str) -> None:
        red, green, blue = _rgb(hex_colour(colour))
        for (x, y), share in coverage.items():
            across, down = x + left, y + top
            if 0 <= across < self.width and 0 <= down < self.height:
                row, place = self.rows[down], 3 * across
                row[place] += round((red - row[place]) * share)
                row[place + 1] += round((green - row[place + 1]) * share)
                row[place + 2] += round((blue - row[place + 2]) * share)

    def encoded(self) -> bytes:
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + row for row in self.rows), 9)
        density = struct.pack(">IIB", *(round(96 * self.scale / 0.0254),) * 2, 1)
        chunks = (_chunk(b"IHDR", header), _chunk(b"pHYs", density), _chunk(b"IDAT", pixels), _chunk(b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _letter(strokes: list[Stroke], size: float, turned: bool) -> Coverage:
    covered: Coverage = {}
    for stroke in strokes:
        placed = [(-y, -x) if turned else (x, -y) for x, y in stroke]
        for pixel, share in _stroke(placed, size * 0.095).items():
            covered[pixel] = max(share, covered.get(pixel, 0.0))
    return covered


def _stroke(points: Sequence[Point], width: float) -> Coverage:
    """How much of each pixel a round-ended polyline covers; one point is a dot."""
    covered: Coverage = {}
    reach = width / 2 + 0.5
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        run, rise = x1 - x0, y1 - y0
        length = run * run + rise * rise
        for y in range(math.floor(min(y0, y1) - reach), math.ceil(max(y0, y1) + reach) + 1):
            low, high = _columns(x0, y0, x1, y1, y + 0.5, reach)
            for x in range(math.floor(low), math.ceil(high) + 1):
                across, down = x + 0.5 - x0, y + 0.5 - y0
                along = min(1.0, max(0.0, (across * run + down * rise) / length)) if length else 0.0
                share = min(1.0, reach - math.hypot(across - along * run, down - along * rise), width)
                if share > covered.get((x, y), 0.0):
                    covered[x, y] = share
    return covered


def _columns(x0: float, y0: float, x1: float, y1: float, y: float, reach: float) -> Point:
    """Columns near a segment in one row, so that a long slant is not searched as a square."""
    if y0 == y1:
        return min(x0, x1) - reach, max(x0, x1) + reach
    ends = [x0 + (x1 - x0) * min(1.0, max(0.0, (edge - y0) / (y1 - y0))) for edge in (y - 2 * reach, y + 2 * reach)]
    return min(ends) - 2 * reach, max(ends) + 2 * reach
