"""Signs that a text went wrong at its end: a loop, or a tail that is not text.

Both look at the end of a text only and take well under a millisecond.
"""

import itertools
import operator
import re
import unicodedata

_LOOP_TAIL = 500  # characters looked at
_TIMES = 5
_SHORTEST_PHRASE = 10  # characters; a longer phrase that repeats holds a shorter one that does, so no longest is needed
_DISTINCT = 3  # different letters or digits in what repeats
_LONGEST_PERIOD = (_LOOP_TAIL - _SHORTEST_PHRASE) // (_TIMES - 1)

_FEWEST_SIGNS = 10
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC")
_LETTERLIKE = ("MATHEMATICAL", "DOUBLE", "SCRIPT", "FEMININE", "MASCULINE", "MICRO")  # signs of formulas read as Latin
_SCRIPTS = {**dict.fromkeys(_EAST_ASIAN, "EAST ASIAN"), **dict.fromkeys(_LETTERLIKE, "LATIN")}


def has_repetition(text: str) -> bool:
    """Find a loop in the last 500 characters: a phrase of 10 to 40 characters five times in a row.

    In a row: the five do not overlap, and the same text (or none) stands between each two, so the
    stretch has one period of 10 to 122 characters. Counting a phrase wherever it stands would not do:
    one in nine of GSM8K's own solutions has five times ``of the year`` or the like.

    What repeats must have 3 different letters or digits, or else fill the 500 characters: rulers
    (``-----``, ``|---|---|``), runs of spaces, rows of zeros and ``0.3333`` are layout and numbers.
    """
    tail = text[-_LOOP_TAIL:]
    # Of every stretch that is looked for below, a piece of this length comes again: most texts have none.
    piece = ((_TIMES - 2) * _SHORTEST_PHRASE + _SHORTEST_PHRASE) // 2
    starts = range(0, len(tail), piece)
    if all(tail.find(tail[at : at + piece], at + _SHORTEST_PHRASE, at + piece + _LONGEST_PERIOD) < 0 for at in starts):
        return False
    for period in range(_SHORTEST_PHRASE, _LONGEST_PERIOD + 1):
        needed = (_TIMES - 2) * period + _SHORTEST_PHRASE  # characters that equal the one a period later
        half = needed // 2  # a long enough stretch holds one of this length that begins at a multiple of it
        starts = range(0, len(tail) - period, half)
        if all(tail[at : at + half] != tail[at + period : at + period + half] for at in starts):
            continue
        same = bytes(map(operator.eq, tail, tail[period:]))
        if len(tail) == _LOOP_TAIL and 0 not in same:
            return True
        for stretch in re.finditer(b"\1{%d}" % needed, same):
            cycle = tail[stretch.start() : stretch.start() + period]
            if len(set(filter(str.isalnum, cycle))) >= _DISTINCT:
                return True
    return False


def has_garbage_tail(text: str) -> bool:
    """Judge whether the last 200 characters are mostly not text; any language, code, LaTeX and emoji are text.

    True if one of these holds:

    - at least 10 characters, and more than half of those that are not white space, are U+FFFD, control,
      surrogate, private-use or unassigned code points;
    - at least 4 scripts are used, and at least 10 times two neighboring letters are of different ones
      (``naمرinkствова``). Latin beside Greek, as in formulas, and anything beside East Asian writing,
      which has no spaces, do not count.
    """
    tail = text[-200:]
    visible = [character for character in tail if not character.isspace()]
    broken = sum(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") for c in visible)
    if broken >= _FEWEST_SIGNS and 2 * broken > len(visible):
        return True
    scripts = [_script(character) for character in tail]
    if len(set(scripts) - {None}) < 4:
        return False
    joined = [{left, right} for left, right in itertools.pairwise(scripts) if left and right and left != right]
    return sum("EAST ASIAN" not in pair and pair != {"LATIN", "GREEK"} for pair in joined) >= _FEWEST_SIGNS


def _script(character: str) -> str | None:
    """Name the writing system of a letter, from its Unicode name; East Asian ones, which mix, count as one."""
    if character.isascii():
        return "LATIN" if character.isalpha() else None
    if not unicodedata.category(character).startswith("L"):
        return None
    script = unicodedata.name(character, "UNNAMED").split()[0].split("-")[0]
    return _SCRIPTS.get(script, script)
