r"""Plain text and LaTeX answers in one spelling, and the numbers that can be read without algebra.

``clean`` mends characters, ``normalise`` mends LaTeX, ``scalar`` reads a number exactly. None of them
evaluates anything, so all are fast whatever they are given.
"""

import re
from fractions import Fraction
from typing import NamedTuple

_SPELLINGS: dict[str, str | None] = {
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},  # full-width forms
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
    **dict.fromkeys(map(chr, range(32))),
    **dict.fromkeys("\t\r\n\v\f", " "),
    "×": r"\times ",
    "÷": r"\div ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "π": r"\pi ",
    "θ": r"\theta ",
    "√": r"\sqrt ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "°": r"^\circ ",
    "²": "^2",
    "³": "^3",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⁄": "/",
    "’": "'",
}
_CHARACTERS = str.maketrans(_SPELLINGS)


def clean(text: str) -> str:
    """One spelling per character: full-width, dashes, spaces, controls, signs that LaTeX has a command for."""
    return re.sub(r" {2,}", " ", text.translate(_CHARACTERS)).strip()


_SPACING = re.compile(r"\\[,;:!> ]|~|\\q?quad(?![A-Za-z])|\\(?:displaystyle|textstyle|left|right|limits)(?![A-Za-z])")
_SIZES = re.compile(r"\\[Bb]igg?[lrm]?(?![A-Za-z])")
_TEXT = re.compile(r"\\(?:mbox|hbox|text(?:bf|it|rm|sf|tt|normal|up)?)\s*\{")
_FONT = re.compile(r"\\(?:math(?:rm|bf|it|sf|tt)|boldsymbol|bm|operatorname)\s*\{([^{}]*)\}(?:(\^\{?[0-9]\}?)\s*$)?")
_FRACTION = re.compile(r"\\[dtc]?frac\s*(\{|[0-9])\s*")
_CONNECTIVE = re.compile(
    r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*", re.IGNORECASE
)
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_MATH_FUNCTIONS = re.compile(
    r"arg|deg|det|dim|exp|gcd|ker|lcm|lim|ln|log|max|min|mod|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?"
)


def normalise(text: str) -> str:
    r"""A LaTeX answer in one spelling.

    Sizes, spacing and math delimiters go; every upright word becomes ``\text{}``; fractions get braces;
    "and" and "or" between answers become commas; ``1{,}234`` and ``1,\!234`` lose their separators.
    """
    text = clean(text)
    changed = True
    while changed:
        changed = False
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            if (
                text.startswith(opening)
                and text.endswith(closing)
                and len(text) > len(opening + closing)
                and opening not in inner
            ):
                text, changed = inner.strip(), True
    text = text.replace(r"\$", "$")
    text = re.sub(r"(?<=[0-9])\s*(?:\{,\}|,\\!)\s*(?=[0-9]{3})", "", text)
    text = _SIZES.sub("", text)
    # A double backslash is a row of a matrix, not a spacing command.
    text = "\\\\".join(_SPACING.sub(lambda m: "" if m.group() == r"\!" else " ", part) for part in text.split("\\\\"))
    text = _TEXT.sub(r"\\text{", text)
    text = _FONT.sub(_upright, text)
    text = _brace_fractions(text)
    text = re.sub(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset", text)
    for sign, command in (("<=", "le"), (">=", "ge"), ("!=", "ne")):
        text = text.replace(sign, f"\\{command} ")
    text = re.sub(r"\\(l|g|n)eq(?![A-Za-z])|\\(l|g)eqslant(?![A-Za-z])", lambda m: "\\" + (m[1] or m[2]) + "e ", text)
    text = re.sub(r"\\(?:lbrace|rbrace)(?![A-Za-z])", lambda m: r"\{" if m.group() == r"\lbrace" else r"\}", text)
    text = re.sub(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?:s)?(?![A-Za-z])", r"^\\circ ", text)
    text = _CONNECTIVE.sub(", ", text)
    whole = re.fullmatch(r"\\text\{([^{}A-Za-z]*)\}", text)
    text = whole[1] if whole else text
    return re.sub(r" {2,}", " ", text).strip().rstrip(".,;").strip()


def _upright(font: re.Match[str]) -> str:
    """``\\mathrm{cm}^2`` is a word, ``\\mathbf{33}`` and ``\\mathrm{e}`` are what they hold."""
    word = font[1].strip()
    if "\\" in word or _MATH_FUNCTIONS.fullmatch(word):
        return font.group()
    power = font[2] or ""
    letters = re.sub(r"[\s^/0-9]", "", word)
    return f"\\text{{{word}}}{power}" if len(letters) > 1 and letters.isalpha() else f"{word}{power}"


def _brace_fractions(text: str) -> str:
    r"""``\dfrac12``, ``\frac 59``, ``\frac9{19}`` and ``\frac{270}7`` with both braces."""
    parts: list[str] = []
    at = 0
    for fraction in _FRACTION.finditer(text):
        if fraction.start() < at:
            continue
        parts.append(text[at : fraction.start()] + r"\frac")
        if fraction[1] == "{":
            at = fraction.start(1)
            end = _closing_brace(text, at)
            # A digit behind a braced numerator is the denominator; a brace is already one.
            below = re.compile(r"\s*([0-9])").match(text, end) if end else None
            if below and "\\" not in text[at:end]:
                parts.append(f"{text[at:end]}{{{below[1]}}}")
                at = below.end()
        else:
            parts.append(f"{{{fraction[1]}}}")
            at = fraction.end()
            if at < len(text) and text[at].isalnum():
                parts.append(f"{{{text[at]}}}")
                at += 1
    return "".join(parts) + text[at:]


def _closing_brace(text: str, start: int) -> int:
    """The position behind the brace that closes the one at ``start``; 0 if none does."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at + 1
    return 0


def key(text: str) -> str:
    """What two normalised answers share if they are written alike: no spaces, no braces around one character."""
    return re.sub(r"\{([A-Za-z0-9])\}", r"\1", re.sub(r"\s+", "", text))


_UNITS = (
    "mm|cm|km|ft|mi|(?:milli|centi|kilo)?met(?:er|re)s?|inch(?:es)?|foot|feet|yards?|miles?|kg|grams?|kilograms?|lbs?|pounds?"
    "|ounces?|oz|ml|lit(?:er|re)s?|gallons?|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?|months?|years?|degrees?"
    "|radians?|dollars?|cents?|euros?|units?|people|students?|mph|kph|km/h|m/s"
)
_TEXT_UNIT = re.compile(r"[\s/]*\\text\{[^{}]*\}(?:\s*\^\s*(?:[0-9]|\{-?[0-9]\}|\\text\{[0-9]\}))?\s*$")
_WORD_UNIT = re.compile(
    rf"(?<=[0-9}}\s/])(?:(?:square|cubic|sq\.?|cu\.?|per)\s+)*(?:{_UNITS})(?:\s*\^\s*(?:[0-9]|\{{[0-9]\}}))?\.?\s*$"
)
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:[CF]|\\text\{[CF]\})?\s*$")
TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


def without_units(text: str) -> str:
    r"""A normalised answer without its currency sign, trailing unit words, their exponents and degree sign."""
    text = re.sub(r"^([+-]?)\s*[$€£¥₹]\s*", r"\1", text)
    text = re.sub(r"\s*[$€£¥₹]$", "", text)
    while True:
        if text.endswith("%") or re.search(r"\\text\{\s*percent(?:age)?\s*\}$", text):
            return text
        shorter = _WORD_UNIT.sub("", _TEXT_UNIT.sub("", text))
        if not TRIGONOMETRY.search(shorter):
            shorter = _DEGREES.sub("", shorter)
        shorter = shorter.rstrip(" /").rstrip()
        if not shorter or shorter == text:
            return text
        text = shorter


_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:percent|percentage|\\?%)\s*\}|(?<![A-Za-z])percent)\s*$")


def without_percent(text: str) -> tuple[str, bool]:
    """The answer without a trailing percent sign or word, and whether there was one."""
    bare = _PERCENT.sub("", text)
    return (bare, True) if bare and bare != text else (text, False)


class Scalar(NamedTuple):
    """An exact number. ``decimal``: it was written with a decimal point, so it may be rounded."""

    value: Fraction
    percent: bool
    decimal: str | None


_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_DECIMAL})?(?:[eE](?P<e>[+-]?[0-9]{{1,3}})"
    r"|\s*(?P<times>\\times|\\cdot|\*|x)?\s*10\s*\^\s*(?:\{\s*(?P<braced>[+-]?[0-9]{1,3})\s*\}|(?P<bare>[0-9])))"
)
_RATIO = re.compile(
    rf"\\frac\s*\{{\s*(-?)\s*({_DECIMAL})\s*\}}\s*\{{\s*(-?)\s*({_DECIMAL})\s*\}}|({_DECIMAL})\s*/\s*({_DECIMAL})"
)
_MIXED = re.compile(r"([0-9]+)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)")
_SEPARATED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]*)?")


def scalar(text: str) -> Scalar | None:
    r"""The exact value of a normalised numeral, or None if it is anything else.

    Reads integers, decimals, thousands separators, fractions, mixed numbers (a number followed by a
    proper fraction), scientific notation, a sign, a percent sign, and what ``without_units`` drops.
    """
    body, percent = without_percent(without_units(text))
    body = without_units(body) if percent else body
    while len(body) > 2 and ((body[0], body[-1]) in (("{", "}"), ("(", ")"))) and not re.search(r"[{}()]", body[1:-1]):
        body = body[1:-1].strip()
    sign = 1
    if body[:1] in ("-", "+"):
        sign = -1 if body[0] == "-" else 1
        body = re.sub(r"^[$€£]\s*", "", body[1:].strip())
    value = _magnitude(body)
    if value is None:
        return None
    decimal = body if re.fullmatch(r"[0-9]*\.[0-9]+", body) else None
    return Scalar(sign * value, percent, decimal)


def _magnitude(body: str) -> Fraction | None:
    if _SEPARATED.fullmatch(body):
        body = body.replace(",", "").replace(" ", "")
    if re.fullmatch(_DECIMAL, body):
        return Fraction(body.rstrip("."))
    if ratio := _RATIO.fullmatch(body):
        top, bottom = Fraction((ratio[2] or ratio[5]).rstrip(".")), Fraction((ratio[4] or ratio[6]).rstrip("."))
        if not bottom:
            return None
        return -top / bottom if (ratio[1] == "-") != (ratio[3] == "-") else top / bottom
    if mixed := _MIXED.fullmatch(body):
        whole, over, under = (int(group) for group in mixed.groups() if group is not None)
        return Fraction(whole * under + over, under) if over < under else None
    if power := _SCIENTIFIC.fullmatch(body):
        if bool(power["mantissa"]) != bool(power["e"] or power["times"]):
            return None
        exponent = int(power["e"] or power["braced"] or power["bare"])
        return Fraction((power["mantissa"] or "1").rstrip(".")) * Fraction(10) ** exponent
    return None


def rounds_to(decimal: str, exact: Fraction) -> bool:
    """Whether a decimal of at least 6 significant digits is ``exact`` rounded to the places it shows."""
    if len(decimal.replace(".", "").lstrip("0")) < 6:
        return False
    scale = Fraction(10) ** len(decimal.partition(".")[2])
    return abs(Fraction(decimal) - abs(exact)) * scale <= Fraction(1, 2)


def same_exactly(gold: Scalar, answer: Scalar) -> bool:
    """Whether two numbers are equal, where p percent is both p and p / 100 to a number without the sign."""
    if gold.percent != answer.percent:
        percent, plain = (gold, answer) if gold.percent else (answer, gold)
        return percent.value in (plain.value, 100 * plain.value)
    return gold.value == answer.value


def same_scalar(gold: Scalar, answer: Scalar) -> bool:
    """``same_exactly``, or one is the decimal that the other, which is none, rounds to."""
    if same_exactly(gold, answer):
        return True
    if (
        gold.percent
        or answer.percent
        or (gold.value < 0) != (answer.value < 0)
        or (gold.decimal is None) == (answer.decimal is None)
    ):
        return False
    decimal, exact = (gold.decimal, answer) if gold.decimal else (answer.decimal, gold)
    return decimal is not None and exact.value.denominator > 1 and rounds_to(decimal, exact.value)


_TOKEN = re.compile(r"\\(?:begin|end)\{|\\[{}]|\\[A-Za-z]+|\\.|.", re.DOTALL)
# The name of an environment ends in a brace of its own, so \begin{ opens two and \end{ none.
_DEPTH = {"(": 1, "[": 1, "{": 1, r"\{": 1, r"\begin{": 2, ")": -1, "]": -1, "}": -1, r"\}": -1}


def split_top(text: str, *separators: str) -> list[str]:
    """The parts between separators (one character or command) outside brackets, braces and environments."""
    parts: list[str] = []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if not depth and token.group() in separators:
            parts.append(text[start : token.start()].strip())
            start = token.end()
        depth = max(0, depth + _DEPTH.get(token.group(), 0))
    return [*parts, text[start:].strip()]


def is_bracketed(text: str) -> bool:
    """Whether the bracket that opens the text is closed by its last character."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += _DEPTH.get(token.group(), 0)
        if depth <= 0:
            return token.end() == len(text)
    return False


_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


def join_thousands(text: str) -> str:
    """``1,234`` as ``1234``; not inside brackets, where commas separate the members."""
    pieces = re.split(r"((?<!\\)[(\[)\]]|\\[{}])", text)
    depth = 0
    for at, piece in enumerate(pieces):
        depth = max(0, depth + _DEPTH.get(piece, 0))
        if at % 2 == 0 and not depth:
            pieces[at] = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), piece)
    return "".join(pieces)


def last_side(text: str) -> str:
    """What follows the last equals or approximation sign of a normalised answer, if there is one."""
    return split_top(text, "=", r"\approx")[-1]
