"""Exact values of sympy expressions that were read but not evaluated, and what they decide about equality."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import comb, factorial, prod
from typing import Any

_MAX_BITS = 4_000_000
_MAX_FACTORIAL = 20_000
_DIGITS = 60


def same_value(first: Any, second: Any) -> bool | None:
    """The verdict on two numbers, or two expressions that differ at a point; None where this does not decide.

    Rational values are compared as fractions. Other numbers are compared at 60 digits, relative to their size.
    Variables take values at three points: expressions whose values differ at one are not equal, and equal values say
    nothing. OverflowError for rational values too large to write down that agree in their first digits.
    """
    if first.is_Matrix or second.is_Matrix:
        return _same_entries(first, second)
    if first.is_Relational and second.is_Relational and first.lhs.is_Symbol and first.lhs == second.lhs:
        return False if same_value(first.rhs, second.rhs) is False else None
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    for point in range(3 if symbols else 1):
        values = {symbol: Fraction(3 + 5 * index + 7 * point, 2 + point) for index, symbol in enumerate(symbols)}
        exact = rational(first, values), rational(second, values)
        if exact[0] is not None and exact[1] is not None and (exact[0] != exact[1] or not symbols):
            return exact[0] == exact[1]
    return _same_number(first, second) if first.is_number and second.is_number else None


def _same_entries(first: Any, second: Any) -> bool | None:
    """False if two matrices have an entry that differs; None else."""
    try:
        entries, others = first.doit(), second.doit()
        differ = entries.shape != others.shape or any(
            same_value(*pair) is False for pair in zip(entries.flat(), others.flat(), strict=True)
        )
    except (AttributeError, TypeError, ValueError):
        return None
    return False if differ else None


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


def _same_number(first: Any, second: Any) -> bool | None:
    """The verdict on two numbers that are not both rational, at 60 digits; None where they have no such value."""
    from sympy import Float, Integral, Limit, N, Product, Rational, Sum, UnevaluatedExpr

    if first.has(UnevaluatedExpr) or second.has(UnevaluatedExpr):
        return None
    try:
        left, right = (
            number.xreplace({decimal: Rational(str(decimal)) for decimal in number.atoms(Float)})
            for number in (first, second)
        )
        values = N(left, _DIGITS), N(right, _DIGITS)
        size, difference = max(map(abs, values)), abs(N(left - right, _DIGITS, maxn=10 * _DIGITS))
        if not (size.is_Float and difference.is_number and difference.is_finite):
            return None
        equal = bool(difference <= size * Float(10) ** (5 - _DIGITS))
        # What cancels to nothing has no size of its own, and a limit is not known to so many digits.
        unsure = size < Float(10) ** (-2 * _DIGITS) or any(
            number.has(Sum, Product, Integral, Limit) for number in (left, right)
        )
    except (ArithmeticError, TypeError, ValueError):
        return None
    if equal and left.is_rational and right.is_rational and left != right and size > Float(10) ** (10 * _DIGITS):
        raise OverflowError("the numbers are too large to be compared exactly")
    return equal or (None if unsure else False)
