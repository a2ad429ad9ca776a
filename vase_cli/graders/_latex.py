r"""Answers, plain or LaTeX, in one spelling, and their parts.

``normalize`` is the one place that unifies spellings. Nothing here evaluates anything: it is fast whatever the text.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

_CHARACTERS = str.maketrans({
    **{chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)},  # full-width forms
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
    **dict.fromkeys(map(chr, range(32))),
    **dict.fromkeys("\t\r\n\v\f", " "),
    "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "√": r"\sqrt ",
    "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "²": "^2", "³": "^3", "⁄": "/", "’": "'",
    "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
})  # fmt: skip


def clean(text: str) -> str:
    """One spelling per character: full-width, dashes, spaces, controls, signs that LaTeX has a command for."""
    return re.sub(r" {2,}", " ", text.translate(_CHARACTERS)).strip()


# Math delimiters and emphasis.
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


def _unwrap(text: str) -> str:
    for opening, closing in _WRAPPERS:
        inner = text[len(opening) : len(text) - len(closing)]
        around = len(text) > len(opening + closing) and text.startswith(opening) and text.endswith(closing)
        if around and opening not in inner:
            return _unwrap(inner.strip())
    return text


_FUNCTION = re.compile(r"arg|deg|det|dim|exp|gcd|ker|lcm|lim|ln|log|max|min|mod|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?")


def _upright(font: re.Match[str]) -> str:
    r"""``\mathrm{cm}^2`` is a word, ``\mathbf{33}`` and ``\mathrm{e}`` are what they hold."""
    word, power = font[1].strip(), font[2] or ""
    if "\\" in word or _FUNCTION.fullmatch(word):
        return font.group()
    letters = re.sub(r"[\s^/0-9]", "", word)
    return f"\\text{{{word}}}{power}" if len(letters) > 1 and letters.isalpha() else f"{word}{power}"


_BRACED = r"\{(?:[^{}\\]|\{(?:[^{}\\]|\{[^{}\\]*\})*\})*\}"


def _rewrite(pattern: str, spelling: str | Callable[[re.Match[str]], str], flags: int = 0) -> Callable[[str], str]:
    return partial(re.compile(pattern, flags).sub, spelling)


_STEPS = (
    clean,
    _unwrap,
    _rewrite(r"\\\$", "$"),
    _rewrite(r"(?<=[0-9])\s*(?:\{,\}|,\\!)\s*(?=[0-9]{3})", ""),  # separators of thousands: 1{,}234, 1,\!234
    # Sizes and spacing go; a double backslash is a row of a matrix.
    _rewrite(r"\\[Bb]igg?[lrm]?(?![A-Za-z])", ""),
    _rewrite(
        r"(\\\\)|(\\!)|\\[,;:> ]|~|\\q?quad(?![A-Za-z])|\\(?:displaystyle|textstyle|left|right|limits)(?![A-Za-z])",
        lambda spacing: spacing[1] or ("" if spacing[2] else " "),
    ),
    # Every upright word becomes \text{}.
    _rewrite(r"\\(?:mbox|hbox|text(?:bf|it|rm|sf|tt|normal|up)?)\s*\{", r"\\text{"),
    _rewrite(
        r"\\(?:math(?:rm|bf|it|sf|tt)|boldsymbol|bm|operatorname)\s*\{([^{}]*)\}(?:(\^\{?[0-9]\}?)\s*$)?", _upright
    ),
    # \dfrac12, \frac 59, \frac9{19} and \frac{270}7 get both braces.
    _rewrite(r"\\[dtc]?frac\s*([0-9])\s*([^\W_])", r"\\frac{\1}{\2}"),
    _rewrite(r"\\[dtc]?frac\s*([0-9])\s*", r"\\frac{\1}"),
    _rewrite(r"\\[dtc]?frac\s*(?=\{)", r"\\frac"),
    _rewrite(rf"(\\frac{_BRACED})\s*([0-9])", r"\1{\2}"),
    _rewrite(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset"),
    _rewrite(r"<=|\\leq(?:slant)?(?![A-Za-z])", r"\\le "),
    _rewrite(r">=|\\geq(?:slant)?(?![A-Za-z])", r"\\ge "),
    _rewrite(r"!=|\\neq(?![A-Za-z])", r"\\ne "),
    _rewrite(r"\\lbrace(?![A-Za-z])", r"\\{"),
    _rewrite(r"\\rbrace(?![A-Za-z])", r"\\}"),
    _rewrite(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])", r"^\\circ "),
    # "and" and "or" between answers are commas.
    _rewrite(r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*", ", ", re.IGNORECASE),
    _rewrite(r"\A\\text\{([^{}A-Za-z]*)\}\Z", r"\1"),  # text without a letter is no text
    _rewrite(r" {2,}", " "),
)


@lru_cache(maxsize=4096)  # a gold answer comes again with every sample
def normalize(text: str) -> str:
    """A LaTeX answer in one spelling: the steps of ``_STEPS``, in their order."""
    for step in _STEPS:
        text = step(text)
    return text.strip().rstrip(".,;").strip()


def key(text: str) -> str:
    """A normalized answer without spaces and braces around one character: equal for two in one notation."""
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
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:percent|percentage|\\?%)\s*\}|(?<![A-Za-z])percent)\s*$")
TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")


def without_units(text: str) -> str:
    """A normalized answer without its currency sign, trailing unit words, their exponents and degree sign."""
    text = re.sub(r"\s*[$€£¥₹]$", "", re.sub(r"^([+-]?)\s*[$€£¥₹]\s*", r"\1", text))
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


def without_percent(text: str) -> tuple[str, bool]:
    """The answer without a trailing percent sign or word, and True if it had one."""
    bare = _PERCENT.sub("", text)
    return (bare, True) if bare and bare != text else (text, False)


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


def last_side(text: str) -> str:
    """A normalized answer behind its last equals or approximation sign, if it has such a sign."""
    return split_top(text, "=", r"\approx")[-1]


def is_bracketed(text: str) -> bool:
    """True if the last character of the text closes the bracket that opens it."""
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
