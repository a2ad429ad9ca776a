"""Axes of charts: from values to places, with ticks at round numbers."""

import math
from collections.abc import Iterable


def short_number(value: float | None) -> str:
    """A number of two or three digits for a narrow place; "-" for none."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if not 0.001 <= abs(value) < 99_999.5:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(exponent)}"
    decimals = max(0, 1 - math.floor(math.log10(abs(value)))) if abs(value) < 99.5 else 0
    return f"{value:,.{decimals}f}"


class LogAxis:
    """A logarithmic axis from ``start`` to ``end`` pixels that holds all values; zeros lie at its start."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        listed = list(values)
        positive = [value for value in listed if value > 0]
        steps = [place_in_row(min(positive, default=0.1)), place_in_row(max(positive, default=1.0))]
        self.first, self.last = math.floor(steps[0] + 1e-9), math.ceil(steps[1] - 1e-9)
        if self.first == self.last:
            self.first, self.last = self.first - 1, self.last + 1
        self.has_zero = len(positive) < len(listed)
        if self.has_zero:
            self.first -= 1
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high = math.log(tick_value(self.first)), math.log(tick_value(self.last))
        share = (math.log(value) - low) / (high - low) if value > 0 else 0.0
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self) -> list[tuple[float, str]]:
        """Values with their labels: 1, 2, 5 of every decade, or whole decades where that were too many."""
        inner = range(self.first + self.has_zero, self.last + 1)
        if len(inner) > 9:
            inner = range(3 * math.ceil(inner[0] / 3), self.last + 1, 3 * math.ceil(len(inner) / 27))
        return [(0.0, "0")] * self.has_zero + [(tick_value(step), tick_label(tick_value(step))) for step in inner]


class LinearAxis:
    """An axis from ``start`` to ``end`` pixels that holds all values and ends on ticks, about ``most`` steps apart."""

    def __init__(self, values: Iterable[float], start: float, end: float, *, most: int = 5) -> None:
        listed = list(values)
        low, high = min(listed), max(listed)
        span = (high - low) or 1.0
        self.step = next(tick_value(step) for step in range(-27, 28) if span / tick_value(step) <= most)
        self.first, self.last = math.floor(low / self.step + 1e-9), math.ceil(high / self.step - 1e-9)
        if self.first == self.last:
            self.last += 1
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (value / self.step - self.first) / (self.last - self.first)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Values at whole steps."""
        return [index * self.step for index in range(self.first, self.last + 1)]


def place_in_row(value: float) -> float:
    """A place in the row 1, 2, 5, 10, ..., of which 1 has place 0; between two of them it is between."""
    decade = math.floor(math.log10(value) + 1e-12)
    lead = value / 10.0**decade
    bounds = [1.0, 2.0, 5.0, 10.0]
    index = max(place for place in range(3) if lead >= bounds[place] * (1 - 1e-9)) if lead >= 1 - 1e-9 else 0
    return 3 * decade + index + (lead - bounds[index]) / (bounds[index + 1] - bounds[index])


def tick_value(step: int) -> float:
    """The value at a whole place of the row 1, 2, 5, 10, ...."""
    return float(f"{(1, 2, 5)[step % 3]}e{step // 3}")


def tick_label(value: float) -> str:
    """A round number as short as it gets: "0.5", "2,000", "2e-5"."""
    if 0.001 <= value < 100_000:
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    digits, exponent = f"{value:.0e}".split("e")
    return f"{digits}e{int(exponent)}"
