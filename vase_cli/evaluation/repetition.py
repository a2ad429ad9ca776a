"""Signs that a text went wrong at its end: a loop, or a tail that is not text.

Both look at the end of a text only and take well under a millisecond.
"""

import itertools
import unicodedata

_LOOP_TAIL = 500  # characters looked at
_TIMES = 5
_SHORTEST_PHRASE = 10  # characters; a longer phrase that repeats holds a shorter one that does, so no longest is needed
_DISTINCT = 3  # different letters or digits in what repeats
_LONGEST_PERIOD = (_LOOP_TAIL - _SHORTEST_PHRASE) // (_TIMES - 1)
_BLOCK = 20  # every loop is at least two blocks long, so it holds a whole aligned one

_GARBAGE_TAIL = 200  # characters looked at
_FEWEST_SIGNS = 10
_FEWEST_SCRIPTS = 4
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC"}


def has_repetition(text: str) -> bool:
    """Find a loop in the last 500 characters: a phrase of 10 to 40 characters five times in a row.

    In a row: the five do not overlap, and the same text (or none) stands between each two, so the
    stretch has one period of 10 to 122 characters. Counting a phrase wherever it stands would not do:
    one in nine of GSM8K's own solutions has five times ``of the year`` or the like.

    What repeats must have 3 different letters or digits, or else fill the 500 characters: rulers
    (``-----``, ``|---|---|``), runs of spaces, rows of zeros and ``0.3333`` are layout and numbers.
    """
    tail = text[-_LOOP_TAIL:]
    if len(tail) == _LOOP_TAIL and any(tail[period:] == tail[:-period] for period in range(1, _LONGEST_PERIOD + 1)):
        return True
    for start in range(0, len(tail) - _BLOCK + 1, _BLOCK):
        block = tail[start : start + _BLOCK]
        match = tail.find(block, start + _SHORTEST_PHRASE)
        while match != -1 and match - start <= _LONGEST_PERIOD:
            period = match - start
            if _repeats(tail, start, period):
                cycle = tail[start : start + period]
                if len({character for character in cycle if character.isalnum()}) >= _DISTINCT:
                    return True
                break  # a ruler; the words of a longer loop around it stand in another block
            match = tail.find(block, match + 1)
    return False


def has_garbage_tail(text: str) -> bool:
    """Judge whether the last 200 characters are mostly not text; any language, code, LaTeX and emoji are text.

    True if one of these holds:

    - at least 10 characters, and more than half of those that are not white space, are U+FFFD, control,
      surrogate, private-use or unassigned code points;
    - at least 4 scripts are used, and at least 10 times two neighbouring letters are of different ones
      (``naمرinkствова``). Latin beside Greek, as in formulas, and anything beside East Asian writing,
      which has no spaces, do not count.
    """
    tail = text[-_GARBAGE_TAIL:]
    visible = [character for character in tail if not character.isspace()]
    broken = sum(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") for c in visible)
    if broken >= _FEWEST_SIGNS and 2 * broken > len(visible):
        return True
    scripts = [_script(character) for character in tail]
    if len(set(scripts) - {None}) < _FEWEST_SCRIPTS:
        return False
    joined = [{left, right} for left, right in itertools.pairwise(scripts) if left and right and left != right]
    return sum("EAST ASIAN" not in pair and pair != {"LATIN", "GREEK"} for pair in joined) >= _FEWEST_SIGNS


def _repeats(text: str, start: int, period: int) -> bool:
    """Measure the stretch around ``start`` that has this period: does it hold the phrase often enough?"""
    needed = (_TIMES - 2) * period + _SHORTEST_PHRASE  # characters that equal the one a period later
    # The first aligned block of a stretch begins less than a block after it, so most of it follows.
    following = needed - _BLOCK
    if text[start : start + following] != text[start + period : start + period + following]:
        return False
    first = start
    while first > 0 and text[first - 1] == text[first - 1 + period]:
        first -= 1
    end = start
    while end + period < len(text) and text[end] == text[end + period]:
        end += 1
    return end - first >= needed


def _script(character: str) -> str | None:
    """Name the writing system of a letter, from its Unicode name; East Asian ones, which mix, count as one."""
    if character.isascii():
        return "LATIN" if character.isalpha() else None
    if not unicodedata.category(character).startswith("L"):
        return None
    script = unicodedata.name(character, "UNNAMED").split()[0].split("-")[0]
    if script in _EAST_ASIAN:
        return "EAST ASIAN"
    # Letter-like symbols of formulas (blackboard bold, italic alphabets) read as Latin.
    return "LATIN" if script in ("MATHEMATICAL", "DOUBLE", "SCRIPT", "FEMININE", "MASCULINE", "MICRO") else script
