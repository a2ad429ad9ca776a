"""Exact rational values of expressions that sympy has read but not evaluated."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import comb, factorial, prod
from typing import Any

_MAX_BITS = 4_000_000
_MAX_FACTORIAL = 20_000


def rational(expression: Any, values: Mapping[Any, Fraction]) -> Fraction | None:
    """The exact value of an expression; None if it is not rational, has none, or is too large to write down."""
    if expression in values:
        return values[expression]
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))
    if expression.is_Float:
        return Fraction(str(expression))  # the decimal that was written
    read = _OPERATIONS.get(type(expression).__name__)
    if read is None:
        return None
    arguments = [rational(argument, values) for argument in expression.args]
    known = [argument for argument in arguments if argument is not None]
    return read(*known) if len(known) == len(arguments) else None


def _sum(*terms: Fraction) -> Fraction:
    return sum(terms, start=Fraction(0))


def _product(*factors: Fraction) -> Fraction:
    return prod(factors, start=Fraction(1))


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator > 1 or abs(exponent) * bits > _MAX_BITS or (base == 0 and exponent <= 0):
        return None
    return base ** int(exponent)


def _factorial(number: Fraction) -> Fraction | None:
    return Fraction(factorial(int(number))) if number.denominator == 1 and 0 <= number <= _MAX_FACTORIAL else None


def _binomial(number: Fraction, chosen: Fraction) -> Fraction | None:
    whole = number.denominator == chosen.denominator == 1
    return Fraction(comb(int(number), int(chosen))) if whole and 0 <= chosen <= number <= _MAX_FACTORIAL else None


_OPERATIONS: Mapping[str, Callable[..., Fraction | None]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": _power,
    "factorial": _factorial,
    "binomial": _binomial,
    "Abs": abs,
}
