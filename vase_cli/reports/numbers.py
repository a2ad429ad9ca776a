"""Numbers as people read them; "-" is a number that is not there."""

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
