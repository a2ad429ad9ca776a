"""Numbers as people read them; "-" is a number that is not there."""

import math

from vase_cli.device import readable_bytes


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number with thousands separated: "1,234.5", or "1.12x" with the unit "x"."""
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def rate(tokens_per_s: float | None) -> str:
    """Tokens per second: a decimal below 100."""
    return number(tokens_per_s, 0 if (tokens_per_s or 0) >= 100 else 1)


def percent(share: float | None, digits: int = 1) -> str:
    """A share as percent: 0.123 is "12.3%"."""
    return "-" if share is None else f"{100 * share:.{digits}f}%"


def points(share: float | None, error: float | None, sign: str = "", unit: str = "") -> str:
    """A share in percentage points ± its standard error: "85.0 ± 1.5"; with the sign "+" a difference."""
    if share is None:
        return "-"
    return f"{100 * share:{sign}.1f}{unit}" + ("" if error is None else f" ± {100 * error:.1f}")


def size(size_bytes: int | None) -> str:
    """A number of bytes: "1.5 GiB"."""
    return "-" if size_bytes is None else readable_bytes(size_bytes)


def short(value: float | None) -> str:
    """A number of two or three digits for a narrow place: "0.40", "12", "4,321", "2.5e-6"."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if not 0.001 <= abs(value) < 99_999.5:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(exponent)}"
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if abs(value) < 99.5 else 0
    return f"{value:,.{decimals}f}"


def tick(value: float) -> str:
    """A round number as short as it gets, for an axis: "0.5", "2,000", "2e-5"."""
    text = short(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
