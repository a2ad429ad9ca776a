r"""Answers, plain or LaTeX, in one spelling, and their parts.

``normalize`` is the one place that unifies spellings. Nothing here evaluates anything: it is fast whatever the text.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial

from vase_cli.graders._characters import clean

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


def _rewrite(pattern: str, spelling: str | Callable[[re.Match[str]], str], flags: int = 0) -> Callable[[str], str]:
    return partial(re.compile(pattern, flags).sub, spelling)


_NEST = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_ROUND = r"\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
# One argument of a command: a group, a command with its own arguments, or one character.
_ARGUMENT = rf"\s*(\{{{_NEST}\}}|\\[A-Za-z]+(?:\s*\[[^]]*\])?(?:\s*\{{{_NEST}\}}|(?<=sqrt)\s*[0-9A-Za-z])?|[^\W_])"
_FRACTION = re.compile(rf"\\[dtc]?frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}|\\[dtc]frac(?![A-Za-z])|\\frac\s+(?=\{{)")


def _brace_fractions(text: str) -> str:
    r"""``\dfrac12``, ``\frac 59``, ``\frac9{19}`` and ``\frac\pi2`` with both pairs of braces."""

    def braced(fraction: re.Match[str]) -> str:
        if fraction[1] is None:
            return r"\frac"
        parts = (part if part.startswith("{") else f"{{{part}}}" for part in fraction.groups())
        return r"\frac" + "".join(part[0] + _brace_fractions(part[1:-1]) + part[-1] for part in parts)

    return _FRACTION.sub(braced, text)


def _repeating(decimal: re.Match[str]) -> str:
    """A repeating decimal as a fraction of two integers."""
    whole, fixed = decimal["whole"] or "0", decimal["fixed"]
    period = next(filter(None, decimal.group("over", "round", "dots", "dot")))
    period = re.sub(r"\\dot|[{}\s]", "", period)
    under = (10 ** len(period) - 1) * 10 ** len(fixed)
    exact = Fraction(int(whole + fixed + period) - int(whole + fixed), under)
    return rf"\frac{{{exact.numerator}}}{{{exact.denominator}}}"


def _root(root: re.Match[str]) -> str:
    return rf"\sqrt{root[1] or ''}{{{root[2] or root[3] or root[4]}}}"


_DOT = r"\\dot\s*(?:\{[0-9]\}|[0-9])"
_REPEATING = (
    r"(?<![0-9.,])(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)(?:\\(?:overline|bar|overbar)\s*(?:\{\s*(?P<over>[0-9]+)\s*\}|"
    rf"(?P<dot>[0-9]))|\((?P<round>[0-9]+)\)|(?P<dots>{_DOT}(?:[0-9]*{_DOT})?))"
)
_WORD_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "quadrillion": 15}
_WORD = rf"(?:{'|'.join(_WORD_POWERS)})s?"
_WORDS = rf"{_WORD}(?:\s+{_WORD})*(?![A-Za-z])"
_NUMBER_WORDS = rf"(?<=[0-9}}.])[\s-]*(?:\\text\{{\s*-?\s*({_WORDS})([^{{}}]*)\}}|({_WORDS}))"


def _power_of_ten(words: re.Match[str]) -> str:
    power = sum(_WORD_POWERS[word.lower().removesuffix("s")] for word in (words[1] or words[3]).split())
    rest = (words[2] or "").strip()
    return rf" \times 10^{{{power}}}" + (rf" \text{{ {rest}}}" if rest else " ")


_FONT = r"\\(?:math(?:rm|sf|it|bf)|text|operatorname)"
_UNIT_RUN = (
    rf"(?<=[0-9}})\]])(?:\s*(?:/|\\cdot(?![A-Za-z]))?\s*{_FONT}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}"
    r"(?:\s*\^\s*(?:\{[^{}]*\}|-?[0-9]))?)+\s*\Z"
)


def _unit(run: re.Match[str]) -> str:
    r"""Units in upright letters as one ``\text{}``; what may be a constant, a variable or a function stays."""
    pieces = re.findall(rf"{_FONT}\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", run[0])
    letters = re.sub(r"\\(?:cdot|mu|Omega)(?![A-Za-z])|[\s~^/0-9{}.-]", "", "".join(pieces))
    single = len(letters) == 1
    compound = len(pieces) > 1 or re.search(r"[{}^\\/ ]", pieces[0].strip())
    if not letters.isalpha() or "math" not in run[0] or not (single or compound) or _FUNCTION.fullmatch(letters):
        return run[0]
    return run[0] if single and letters not in "msghJNWVAKCFHTLl" else rf" \text{{{letters}}}"


_NAMES = r"pi|theta|alpha|beta|phi|infinity|infty"
_BARE = re.compile(
    r"\\text\{[^{}]*\}|\\[A-Za-z]+"
    rf"|(?<![A-Za-z])(?:sqrt\s*{_ROUND}|(?P<function>arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp)"
    rf"(?=\s*\()|(?P<name>{_NAMES})(?![A-Za-z]))"
)


def _with_backslashes(text: str) -> str:
    """Functions, roots and constants as programs write them; words stay."""

    def command(found: re.Match[str]) -> str:
        if name := found["function"] or found["name"]:
            return rf"\{name.replace('infinity', 'infty')} "
        return found[0] if found[1] is None else rf"\sqrt{{{_with_backslashes(found[1])}}}"

    return text if re.fullmatch(r"[A-Za-z' -]+", text) and " " in text.strip() else _BARE.sub(command, text)


_BASES = {
    name: str(base if name != "sixteen" else 16)
    for base, name in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "sixteen"), start=2
    )
}


def _base(numeral: re.Match[str]) -> str:
    digits, base = numeral[1] or numeral[2], numeral[3] or numeral[4]
    return f"{digits}_{{{_BASES.get(base.lower(), base)}}}"


_BASE_NAME = rf"([0-9]{{1,2}}|{'|'.join(_BASES)})"
_IN_BASE = (
    r"(?:\A|(?<=[=\s]))(?:\(\s*([0-9A-F]+)\s*\)|([0-9A-F]+))\s*"
    rf"(?:_\s*\{{?\s*\(?\s*(?:\\text\{{)?\s*{_BASE_NAME}\s*\}}?\s*\)?\s*\}}?"
    rf"|\(?(?:\\text\{{)?\s*\(?\s*(?:in\s+)?base[\s-]*\}}?\s*{_BASE_NAME}\s*\)?\}}?\s*\)?)\s*\Z"
)


def _without_braces(text: str) -> str:
    while text.startswith("{") and is_bracketed(text):
        text = text[1:-1].strip()
    return text


_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")


def _join_conditions(text: str) -> str:
    r"""``\lor`` and ``\land`` between inequalities, where "or" and "and" between answers are commas."""
    pieces = _JOINT.split(text)
    if len(pieces) == 1 or not all(_RELATION.search(piece) for piece in pieces[::2]):
        return text
    return "".join(rf" \l{piece.lower()} " if at % 2 else piece for at, piece in enumerate(pieces))


_JOINT = re.compile(
    r",?\s*(?:\\text\{\s*,?\s*(?=(?:and|or)\s*\})|(?<![A-Za-z\\{]))(and|or)(?![A-Za-z])\s*\}?", re.IGNORECASE
)

_LOOKS = (
    "tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|bf|it|rm|sf|tt|em|bfseries|itshape"
    "|boldmath|scriptstyle|nonumber|notag|nolimits|noindent|hfill|centering|thinspace|medspace|thickspace|enspace"
)

_STEPS = (
    clean,
    _unwrap,
    _rewrite(r"\\\$", "$"),
    _rewrite(r"(?<=[0-9])\s*(?:\{,\}|,\\!)\s*(?=[0-9]{3})", ""),  # separators of thousands: 1{,}234, 1,\!234
    # Looks, sizes and spacing go; a double backslash is a row of a matrix.
    _rewrite(r"\\\\\s*\*?\s*\[\s*-?[0-9.]+\s*[a-z]{2}\s*\]", r"\\\\"),
    _rewrite(
        r"(?<!\\)\\(?:text)?color\s*(?:\[[^]]*\])?\s*\{[^{}]*\}|\\(?:underline|uline|bold|pmb|mathstrut)(?![A-Za-z])",
        " ",
    ),
    _rewrite(rf"(?<!\\)\\(?:{_LOOKS})(?![A-Za-z])", " "),
    _rewrite(r"\\[Bb]igg?[lrm]?(?![A-Za-z])", ""),
    _rewrite(
        r"(\\\\)|(\\!)|\\[,;:> ]|~|\\q?quad(?![A-Za-z])|\\(?:displaystyle|textstyle|left|right|limits)(?![A-Za-z])",
        lambda spacing: spacing[1] or ("" if spacing[2] else " "),
    ),
    _rewrite(r"(?<!\\)\\\Z", ""),
    _rewrite(_UNIT_RUN, _unit),
    # Every upright word becomes \text{}.
    _rewrite(r"\\(?:mbox|hbox|text(?:bf|it|rm|sf|tt|normal|up)?)\s*\{", r"\\text{"),
    _rewrite(
        r"\\(?:math(?:rm|bf|it|sf|tt)|boldsymbol|bm|operatorname)\s*\{([^{}]*)\}(?:(\^\{?[0-9]\}?)\s*$)?", _upright
    ),
    _rewrite(
        r"\A\\text\{\s*(\\?[$€£]?\s*[-+]?[0-9][0-9.,/]*)\s*((?!(?:and|or)\b)[A-Za-z]+(?:[ ][A-Za-z]+)*)\.?\s*\}\Z",
        r"\1 \\text{ \2}",
    ),
    _with_backslashes,
    _rewrite(rf"√\s*(\[3\])?\s*(?:{_ROUND}|\{{({_NEST})\}}|([0-9]+(?:\.[0-9]+)?|\\[A-Za-z]+|[A-Za-z]))", _root),
    _rewrite("√", r"\\sqrt "),
    _brace_fractions,
    _rewrite(_REPEATING, _repeating),
    # Numerals with a base, a residue's modulus, and number words.
    _rewrite(_IN_BASE, _base, re.IGNORECASE),
    _rewrite(r"\\text\{\s*(\(?)\s*mod(?:ulo)?\s*([0-9]*)\s*(\)?)\s*\}", r"\1\\mod \2\3"),
    _rewrite(
        r"\s*(?:\\pmod\s*|\(\s*\\?b?mod(?:ulo)?\s*(?=[^()]*\)))\s*\{?\s*([0-9A-Za-z^]+)\s*\}?\s*\)?\s*\Z",
        r" \\pmod{\1}",
    ),
    _rewrite(_NUMBER_WORDS, _power_of_ten, re.IGNORECASE),
    _rewrite(
        r"\^\s*(?:\{\s*(\\prime\s*)+\}|\\prime(?![A-Za-z]))|\\prime(?![A-Za-z])", lambda p: "'" * p[0].count("prime")
    ),
    _rewrite(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset"),
    _rewrite(r"<=|\\leq(?:slant)?(?![A-Za-z])", r"\\le "),
    _rewrite(r">=|\\geq(?:slant)?(?![A-Za-z])", r"\\ge "),
    _rewrite(r"!=|\\neq(?![A-Za-z])", r"\\ne "),
    _rewrite(r"\\lbrace(?![A-Za-z])", r"\\{"),
    _rewrite(r"\\rbrace(?![A-Za-z])", r"\\}"),
    _rewrite(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degrees?(?![A-Za-z])", r"^\\circ "),
    _join_conditions,
    # "and" and "or" between answers are commas.
    _rewrite(r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*", ", ", re.IGNORECASE),
    _rewrite(r"\A\\text\{([^{}A-Za-z]*)\}\Z", r"\1"),  # text without a letter is no text
    _rewrite(r" {2,}", " "),
    _without_braces,
)


@lru_cache(maxsize=4096)  # a gold answer comes again with every sample
def normalize(text: str) -> str:
    """A LaTeX answer in one spelling: the steps of ``_STEPS``, in their order."""
    for step in _STEPS:
        text = step(text)
    return text.strip().rstrip(".,;").strip()


def key(text: str) -> str:
    """A normalized answer without spaces and braces around one character: equal for two in one notation.

    Space between two digits stays: it separates two numbers.
    """
    text = re.sub(r"\\text\{\s*([A-Za-z])\s*\}", r"\1", text)
    return re.sub(r"\{([A-Za-z0-9])\}", r"\1", re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text))


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
    return split_top(split_modulus(text)[0], "=", r"\approx", r"\equiv")[-1]


def split_modulus(text: str) -> tuple[str, str]:
    r"""A normalized residue without its ``\pmod{}``, and that; the second is empty if there is none."""
    residue, mark, modulus = text.partition(r"\pmod{")
    return residue.strip(), mark + modulus


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


_SECOND = re.compile(
    r"(?P<first>.+?)(?:\s|\\[,;:! ]|~|\\q?quad)*(?:\(|\\left\s*\(|\\text\{\s*\()\s*"
    r"(?:(?P<exact>=|\\text\{\s*(?:or|i\.e\.,?|equivalently)\s*\}|or\s*\}?|i\.e\.,?)"
    r"|\\approx|≈|\\text\{\s*(?:approximately|approx\.?|about)\s*\}|approx(?:imately|\.)?)"
    r"(?:\s|\\[,;:! ]|~|\})*(?P<second>[^()]+?)(?:\\right\s*\)|\)\}?)\.?",
    re.DOTALL,
)


def both_spellings(answer: str) -> list[str]:
    r"""The spellings in ``\frac92 (=4.5)``, of which an approximate second one is left out; none without a second."""
    found = _SECOND.fullmatch(answer.strip().strip("$"))
    if found is None:
        return []
    return [found["first"], found["second"]] if found["exact"] else [found["first"]]
