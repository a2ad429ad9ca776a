"""Letters as strokes, for labels in pictures where no font is at hand.

A glyph is a few polylines on a grid: two digits a point, x and y; capitals stand on 2 and reach 9, small letters
reach 7 and hang down to 0. A point named alone, or twice, is a dot.
"""

from collections.abc import Iterator

Stroke = list[tuple[float, float]]

# Grid units of an em, so that capitals have 0.7 of it; and the room between two letters.
EM = 10.0
_SPACING = 2
_BASELINE = 2
_SPACE_WIDTH = 2
_UNKNOWN = "02 09 49 42 02"

_GLYPHS = {
    "A": "02 39 62|14 54",
    "B": "02 09 49 58 57 46 06|46 55 53 42 02",
    "C": "58 49 19 08 03 12 42 53",
    "D": "02 09 39 57 54 32 02",
    "E": "49 09 02 42|06 36",
    "F": "49 09 02|06 36",
    "G": "58 49 19 08 03 12 42 53 55 35",
    "H": "02 09|52 59|06 56",
    "I": "02 22|09 29|12 19",
    "J": "39 33 22 12 03",
    "K": "02 09|59 04|26 52",
    "L": "09 02 42",
    "M": "02 09 35 69 62",
    "N": "02 09 52 59",
    "O": "12 03 08 19 49 58 53 42 12",
    "P": "02 09 49 58 56 45 05",
    "Q": "12 03 08 19 49 58 53 42 12|34 51",
    "R": "02 09 49 58 56 45 05|25 52",
    "S": "58 49 19 08 07 16 46 55 53 42 12 03",
    "T": "09 69|39 32",
    "U": "09 03 12 42 53 59",
    "V": "09 32 69",
    "W": "09 22 48 62 89",
    "X": "02 59|09 52",
    "Y": "09 36 69|36 32",
    "Z": "09 59 02 52",
    "a": "06 17 37 46 42|45 15 04 03 12 32 43",
    "b": "09 02|03 12 32 43 46 37 17 06",
    "c": "46 37 17 06 03 12 32 43",
    "d": "49 42|43 32 12 03 06 17 37 46",
    "e": "05 45 46 37 17 06 03 12 32 43",
    "f": "39 29 18 12|07 37",
    "g": "47 41 30 10 01|43 32 12 03 06 17 37 46",
    "h": "09 02|06 17 37 46 42",
    "i": "02 07|09",
    "j": "17 11 00|19",
    "k": "09 02|47 04|15 42",
    "l": "09 03 12",
    "m": "02 07|06 17 27 36 32|36 47 57 66 62",
    "n": "02 07|06 17 37 46 42",
    "o": "12 03 06 17 37 46 43 32 12",
    "p": "00 07|06 17 37 46 43 32 12 03",
    "q": "40 47|46 37 17 06 03 12 32 43",
    "r": "02 07|05 27 37",
    "s": "46 37 17 06 15 34 43 32 12 03",
    "t": "19 13 22 32|07 37",
    "u": "07 03 12 32 43|47 42",
    "v": "07 22 47",
    "w": "07 22 36 42 67",
    "x": "02 47|07 42",
    "y": "07 22|47 22 10 00",
    "z": "07 47 02 42",
    "0": "12 03 08 19 39 48 43 32 12",
    "1": "07 29 22|02 42",
    "2": "08 19 39 48 47 02 42",
    "3": "08 19 39 48 47 36 16|36 45 43 32 12 03",
    "4": "32 39 04 44",
    "5": "49 09 06 36 45 43 32 12 03",
    "6": "48 39 19 08 03 12 32 43 45 36 16 05",
    "7": "09 49 22",
    "8": "16 07 08 19 39 48 47 36 16 05 03 12 32 43 45 36",
    "9": "03 12 32 43 48 39 19 08 06 15 35 46",
    ".": "02",
    ",": "12 01",
    ":": "02|06",
    ";": "12 01|16",
    "!": "05 09|02",
    "?": "08 19 39 48 47 25 24|22",
    "'": "07 09",
    '"': "07 09|27 29",
    "(": "29 07 03 21",
    ")": "09 27 23 01",
    "[": "29 09 01 21",
    "]": "09 29 21 01",
    "{": "39 29 18 16 05 14 12 21 31",
    "}": "09 19 28 26 35 24 22 11 01",
    "/": "01 49",
    "\\": "09 41",
    "|": "01 09",
    "+": "05 45|23 27",
    "-": "05 35",
    "–": "05 45",
    "=": "04 44|06 46",
    "*": "24 28|05 47|07 45",
    "_": "01 51",
    "<": "47 05 43",
    ">": "07 45 03",
    "%": "02 69|08 19 28 17 08|43 54 63 52 43",
    "&": "52 07 08 19 29 38 37 04 03 12 32 54",
    "#": "12 29|42 59|04 54|07 57",
    "@": "46 36 25 24 33 43 47|43 63 67 49 29 07 04 22 52",
    "$": "48 39 19 08 07 16 36 45 43 32 12 03|21 29",
    "^": "07 29 47",
    "~": "04 16 34 46",
    "`": "09 17",
    "±": "06 46|24 28|02 42",
    "×": "03 47|07 43",
    "·": "05",
    "≤": "48 06 44|02 42",
    "≥": "08 46 04|02 42",
    "…": "02|22|42",
    " ": "",
}


def _read(glyph: str) -> tuple[list[Stroke], int]:
    """A glyph's strokes above its baseline, and its width."""
    drawn = [stroke.split() for stroke in glyph.split("|") if stroke]
    strokes: list[Stroke] = [[(int(point[0]), int(point[1]) - _BASELINE) for point in stroke] for stroke in drawn]
    return strokes, max((round(x) for stroke in strokes for x, _ in stroke), default=_SPACE_WIDTH)


_READ = {character: _read(glyph) for character, glyph in _GLYPHS.items()}
_READ_UNKNOWN = _read(_UNKNOWN)


def text_width(text: str, size: float) -> float:
    """How far a line of text reaches at this size of an em."""
    return sum(_READ.get(character, _READ_UNKNOWN)[1] + _SPACING for character in text) * size / EM


def letters(text: str, size: float) -> Iterator[tuple[str, float, list[Stroke]]]:
    """Each letter of a line that starts at 0: itself, its offset, and its strokes (y upwards) from there."""
    unit, offset = size / EM, 0.0
    for character in text:
        strokes, width = _READ.get(character, _READ_UNKNOWN)
        yield character, offset, [[(x * unit, y * unit) for x, y in stroke] for stroke in strokes]
        offset += (width + _SPACING) * unit
