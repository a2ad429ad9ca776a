"""Exact numbers: read from a normalized numeral without algebra, and compared."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from vase_cli.graders._latex import without_percent, without_units


class Scalar(NamedTuple):
    """An exact number."""

    value: Fraction
    percent: bool
    decimal: str | None  # the numeral if it has a decimal point, so that it may be rounded


_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_DECIMAL})?(?:[eE](?P<e>[+-]?[0-9]{{1,3}})"
    r"|\s*(?P<times>\\times|\\cdot|\*|x)?\s*10\s*\^\s*(?:\{\s*(?P<braced>[+-]?[0-9]{1,3})\s*\}|(?P<bare>[0-9])))"
)
_SCALED = re.compile(r"(.*[^0-9.].*?)\s*\\times\s*10\^\{([0-9]{1,3})\}")  # a number before a number word
_RATIO = re.compile(
    rf"\\frac\s*\{{\s*(-?)\s*({_DECIMAL})\s*\}}\s*\{{\s*(-?)\s*({_DECIMAL})\s*\}}|({_DECIMAL})\s*/\s*({_DECIMAL})"
)
_MIXED = re.compile(r"([0-9]+)\s*\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)")
_SEPARATED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]*)?")


@lru_cache(maxsize=4096)
def read_scalar(text: str) -> Scalar | None:
    """The exact value of a normalized numeral, or None if it is anything else.

    A numeral is an integer, decimal, fraction, mixed number (a number, then a proper fraction) or scientific notation,
    with thousands separators, a sign, a percent sign, and what ``without_units`` drops.
    """
    body, percent = without_percent(without_units(text))
    body = without_units(body) if percent else body
    while len(body) > 2 and body[0] + body[-1] in ("{}", "()") and not re.search(r"[{}()]", body[1:-1]):
        body = body[1:-1].strip()
    negative = body.startswith("-")
    if negative or body.startswith("+"):
        body = re.sub(r"^[$€£]\s*", "", body[1:].strip())
    value = _magnitude(body)
    if value is None:
        return None
    return Scalar(-value if negative else value, percent, body if re.fullmatch(r"[0-9]*\.[0-9]+", body) else None)


def _magnitude(body: str) -> Fraction | None:
    if _SEPARATED.fullmatch(body):
        body = body.replace(",", "").replace(" ", "")
    if re.fullmatch(_DECIMAL, body):
        return Fraction(body.rstrip("."))
    if ratio := _RATIO.fullmatch(body):
        top, bottom = Fraction((ratio[2] or ratio[5]).rstrip(".")), Fraction((ratio[4] or ratio[6]).rstrip("."))
        sign = -1 if (ratio[1] == "-") != (ratio[3] == "-") else 1
        return sign * top / bottom if bottom else None
    if mixed := _MIXED.fullmatch(body):
        whole, over, under = (int(group) for group in mixed.groups() if group is not None)
        return Fraction(whole * under + over, under) if over < under else None
    if power := _SCIENTIFIC.fullmatch(body):
        if bool(power["mantissa"]) != bool(power["e"] or power["times"]):
            return None
        exponent = int(power["e"] or power["braced"] or power["bare"])
        return Fraction((power["mantissa"] or "1").rstrip(".")) * Fraction(10) ** exponent
    if scaled := _SCALED.fullmatch(body):
        head = _magnitude(scaled[1].strip())
        return None if head is None else head * 10 ** int(scaled[2])
    return None


def rounds_to(decimal: str, exact: Fraction) -> bool:
    """True if a decimal of at least 6 significant digits is ``exact`` rounded to the places it shows."""
    if len(decimal.replace(".", "").lstrip("0")) < 6:
        return False
    scale = Fraction(10) ** len(decimal.partition(".")[2])
    return abs(Fraction(decimal) - abs(exact)) * scale <= Fraction(1, 2)


def same_exactly(target: Scalar, prediction: Scalar) -> bool:
    """Decide if two numbers are equal, where p percent is both p and p / 100 to a number without the sign."""
    if target.percent != prediction.percent:
        percent, plain = (target, prediction) if target.percent else (prediction, target)
        return percent.value in (plain.value, 100 * plain.value)
    return target.value == prediction.value


def same_scalar(target: Scalar, prediction: Scalar) -> bool:
    """``same_exactly``, or one is the decimal that the other, which is none, rounds to."""
    if same_exactly(target, prediction):
        return True
    if target.percent or prediction.percent or (target.value < 0) != (prediction.value < 0):
        return False
    rounded, exact = (target, prediction) if target.decimal else (prediction, target)
    if rounded.decimal is None or exact.decimal is not None:
        return False
    return exact.value.denominator > 1 and rounds_to(rounded.decimal, exact.value)
