r"""Equality of two LaTeX answers as mathematical objects.

Lists, sets, pairs, intervals and equations are taken apart here, so that their order and brackets count exactly as the
policies of the math grader say; math-verify decides about the expressions inside. Runs in the worker process.
"""

import re
from fractions import Fraction
from typing import Any

from vase_cli.graders import _latex
from vase_cli.graders._conditions import same_form
from vase_cli.graders._exact import rational
from vase_cli.graders._scalar import read_scalar, rounds_to, same_scalar

_NAME = re.compile(r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\})'?(?:_\{?[A-Za-z0-9]+\}?)?(?:\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?")
_TEXT = re.compile(r"\\text\{\s*[A-Za-z][A-Za-z' -]*\s*\}|[A-Za-z]{3,}(?: [A-Za-z]+)*")
_CHOICE = re.compile(r"\(?\s*(?:\\text\{\s*)?\(?\s*([A-Ea-e])\s*\)?\s*\}?\s*\)?")
_BASE = re.compile(r"(-?[0-9A-F]+)\s*_\s*\{?\s*\(?\s*(?:\\text\{)?\s*([0-9]+)\s*\}?\)?\s*\}?")
_TIME = re.compile(r"([0-9]{1,2}:[0-9]{2})\s*(?:(?:\\text\{)?\s*([ap])\.?\s*m\.?\s*\}?)?", re.IGNORECASE)
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_MAX_MEMBERS = 24
_DIGITS = 60
_PRIMED = re.compile(r"\\[A-Za-z]+|([A-Za-z])((?:\s*')+)")
_TWO_NUMBERS = re.compile(r"(?<![_^0-9.])[0-9.]+\s+[0-9.]+(?!\s*/|[0-9.])")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\\circ")
# math-verify adds any number and the fraction behind it; only a proper fraction of integers makes a mixed number.
_BEFORE_FRACTION = re.compile(r"(?<![\^_0-9.])([0-9]+)\s*(?=\\frac\{(?:([0-9]+)\}\{([0-9]+)\})?)")


def equal(target: str, prediction: str) -> bool:
    """Decide if a prediction equals the target; both come from ``_latex.normalize``."""
    target, joined = _latex.join_thousands(target), _latex.join_thousands(prediction)
    # Where the target is a list, "1,234" may also be the list of 1 and 234.
    may_list = joined != prediction and _members(target) is not None
    return _same(target, joined) or (may_list and _same(target, prediction))


def _same(target: str, prediction: str) -> bool:
    same_key = _latex.key(target) == _latex.key(prediction)
    if same_key or not target or not prediction:
        return same_key
    if forms := same_form(target, prediction):
        return _same(*forms)
    target, prediction = _MEMBER.sub("", target, count=1), _MEMBER.sub("", prediction, count=1)
    targets, predictions = _members(target), _members(prediction)
    (brackets, target_group), (other_brackets, group) = _group(target), _group(prediction)
    named, other_named = _in_order_of_names(targets), _in_order_of_names(predictions)
    if other_named and not named and brackets == "()":
        return _same_in_order(target_group, other_named)
    if named and not other_named and other_brackets == "()":
        return _same_in_order(named, group)
    if named and not other_named and predictions is not None and not prediction.startswith(r"\{"):
        return _same_in_order(targets or [], predictions)
    if targets is not None:
        alone = group if other_brackets == "()" else [prediction]
        return _same_in_any_order(targets, alone if predictions is None else predictions)
    if predictions is not None:
        if len(predictions) == 1:
            return _same(target, predictions[0])
        bare_pair = brackets == "()" and not prediction.startswith(r"\{") and "infty" not in target
        return bare_pair and _same_in_order(target_group, predictions)
    verdict = _same_equation(target, prediction)
    if verdict is not None:
        return verdict
    if brackets and other_brackets:
        return brackets == other_brackets and _same_in_order(target_group, group)
    targets, predictions = _latex.split_top(target, r"\cup"), _latex.split_top(prediction, r"\cup")
    return (len(targets) > 1 and _same_in_any_order(targets, predictions)) or _same_expression(target, prediction)


def _members(text: str) -> list[str] | None:
    r"""The members of ``a, b``, ``\{a, b\}`` or ``a \pm b``; None if the text is one thing."""
    if named := re.fullmatch(r"\(([^()=]*)\)\s*=\s*\((.*)\)", text):
        names, values = _latex.split_top(named[1], ","), _latex.split_top(named[2], ",")
        if len(names) == len(values) and len(set(names)) == len(names) and names != sorted(names):
            return [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    inner = re.fullmatch(r"\\\{(.*)\\\}", text)
    is_set = inner is not None and r"\}" not in inner[1] and not re.search(r"\\mid|\||:", inner[1])
    parts = _latex.split_top(inner[1] if inner is not None and is_set else text, ",", ";")
    members = [choice for part in parts if part for choice in _plus_minus(part)]
    return members if is_set or len(members) > 1 else None


def _in_order_of_names(members: list[str] | None) -> list[str]:
    """The values of ``y = 1, x = 2`` in the order of the names; empty unless each has a name of its own."""
    named = [_latex.split_top(member, "=") for member in members or []]
    names = {sides[0] for sides in named if len(sides) == 2 and _NAME.fullmatch(sides[0])}
    return [sides[1] for sides in sorted(named)] if len(names) == len(named) else []


def _plus_minus(text: str) -> list[str]:
    if len(re.findall(r"\\(?:pm|mp)(?![A-Za-z])", text)) != 1:
        return [text]
    return [re.sub(r"^\s*\+", "", re.sub(r"\\(?:pm|mp)(?![A-Za-z])", sign, text)).strip() for sign in "+-"]


def _group(text: str) -> tuple[str, list[str]]:
    """Brackets and members of a pair, a point or an interval; both empty for another text."""
    if text[0] in "([" and text[-1] in ")]" and _latex.is_bracketed(text):
        members = _latex.split_top(text[1:-1], ",", ";")
        if len(members) > 1 and all(members):
            return text[0] + text[-1], members
    return "", []


def _same_in_order(targets: list[str], predictions: list[str]) -> bool:
    return len(targets) == len(predictions) and all(map(_same, targets, predictions))


def _same_in_any_order(targets: list[str], predictions: list[str]) -> bool:
    if len(targets) != len(predictions) or len(targets) > _MAX_MEMBERS:
        return False
    left = list(predictions)
    for target in targets:
        match = next((prediction for prediction in left if _same(target, prediction)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_equation(target: str, prediction: str) -> bool | None:
    """The verdict where an equals sign decides which sides to compare; None where it does not."""
    exact, *rounded = _latex.split_top(prediction, r"\approx")
    if rounded and not _latex.split_top(target, r"\approx")[1:]:
        return _same(target, rounded[-1]) or (exact != "" and _same(target, exact))
    targets, predictions = _latex.split_top(target, "="), _latex.split_top(prediction, "=")
    if len(targets) == 1:
        return _same(target, predictions[-1]) if len(predictions) > 1 else None
    named = _NAME.fullmatch(targets[0]) is not None
    if named and len(predictions) > 1:
        named = _NAME.fullmatch(predictions[0]) is not None and _latex.key(targets[0]) == _latex.key(predictions[0])
    return _same(targets[-1], predictions[-1]) if named else None


def _same_expression(target: str, prediction: str) -> bool:
    time, other_time = _TIME.fullmatch(target), _TIME.fullmatch(prediction)
    if time and other_time:
        halves = {half.lower() for half in (time[2], other_time[2]) if half}
        return time[1] == other_time[1] and len(halves) < 2
    if re.search(r"[A-Za-z]{3}", _plain(target)) and _plain(target) == _plain(prediction):
        return True
    words = _words(target)
    if len(words) > 2 and _TEXT.fullmatch(target):
        return words == _words(prediction)
    if (choice := _CHOICE.fullmatch(target)) and re.search(r"text|\(", target):
        chosen = _CHOICE.fullmatch(prediction)
        return chosen is not None and chosen[1].upper() == choice[1].upper()
    # math-verify drops primes.
    if len(re.findall(r"(?<=[0-9])\s*'", target)) != len(re.findall(r"(?<=[0-9])\s*'", prediction)):
        return False
    if _BASE.fullmatch(target) or _BASE.fullmatch(prediction):
        return _same_digits(target, prediction)
    target_scalar, scalar = read_scalar(target), read_scalar(prediction)
    if target_scalar and scalar:
        return same_scalar(target_scalar, scalar)
    target, target_percent = _latex.without_percent(_latex.without_units(target))
    prediction, percent = _latex.without_percent(_latex.without_units(prediction))
    if _verify(target, prediction):
        return True
    if target_percent and not percent:
        return _verify(rf"\frac{{{target}}}{{100}}", prediction)
    return percent and not target_percent and _verify(target, rf"\frac{{{prediction}}}{{100}}")


def _plain(text: str) -> str:
    """The text without text commands, case and repeated space."""
    return " ".join(re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).split()).casefold()


def _words(text: str) -> str:
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    return " ".join(re.sub(r"[^\w\s]", " ", plain).split()).casefold()


def _same_digits(target: str, prediction: str) -> bool:
    """Numerals with a base subscript on either side: the digits decide, and two subscripts must agree."""
    numerals = _BASE.fullmatch(target), _BASE.fullmatch(prediction)
    texts = zip(numerals, (target, prediction), strict=True)
    digits = {numeral[1] if numeral else _latex.key(text) for numeral, text in texts}
    return len(digits) == len({numeral[2] for numeral in numerals if numeral}) == 1


def _verify(target: str, prediction: str) -> bool:
    """math-verify's verdict on two expressions; the target goes first, it is not symmetric."""
    from math_verify import verify
    from sympy import Basic, MatrixBase

    targets, predictions = _parse(target, prediction), _parse(prediction, target)
    verdict = _same_decimal(target, targets, prediction, predictions)
    if verdict is not None:
        return verdict
    read = [item for item in (*targets[:1], *predictions[:1]) if isinstance(item, Basic | MatrixBase)]
    if len(read) == 2:
        verdict = _same_value(*read)
        if verdict is not None:
            return verdict
    if not verify(targets, predictions, float_rounding=10, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    # math-verify reads R and r as one variable.
    return _letters(target) == _letters(prediction) or _letters(target.lower()) != _letters(prediction.lower())


def _parse(text: str, other: str) -> list[Any]:
    """The sympy object of an expression, if it can be read, and its text; ``other`` is what it is compared with."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, I

    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none")
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)
    text = re.sub(r"(?<![0-9.,_^])[0-9]{1,3}(?: [0-9]{3})+(?![0-9])", lambda number: number[0].replace(" ", ""), text)
    if _TWO_NUMBERS.search(text):
        return [text]
    text = _PRIMED.sub(_with_index, text)
    # math-verify reads 2E+1 as 20, and no E or e with an index.
    if read_scalar(text) is None or (read_scalar(other) is None and "E" in other):
        text = re.sub(r"(?<![\\A-Za-z])E(?![A-Za-z])", r"\\Xi ", text)
        text = re.sub(r"(?<![\\A-Za-z])e(?=_)", r"\\eta ", text)
    text = _BEFORE_FRACTION.sub(_product, text.replace("$", ""))
    text = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})" if _latex.TRIGONOMETRY.search(text) else r"\1", text)
    # The whole text is one formula; an unreadable one stays a string, equal only to itself.
    readings = parse(f"${text}$", [config], parsing_timeout=None)
    return [_with_imaginary_unit(item, I) if isinstance(item, Basic) else item for item in readings]


def _with_index(primed: re.Match[str]) -> str:
    """A primed variable as one with an index that nobody writes: math-verify drops primes."""
    return f"{primed[1]}_{{{77 * primed[2].count(chr(39))}}}" if primed[1] else primed[0]


def _product(number: re.Match[str]) -> str:
    mixed = number[2] is not None and int(number[2]) < int(number[3])
    return number.group() if mixed else rf"{number[1]} \cdot "


def _with_imaginary_unit(expression: Any, unit: Any) -> Any:
    """The expression with its variable i as the imaginary unit, as which math-verify reads only some."""
    variables = {symbol: unit for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.subs(variables) if variables else expression


def _same_value(first: Any, second: Any) -> bool | None:
    """The verdict on two numbers, or two expressions that differ at a point; None where this does not decide.

    Rational values are compared as fractions. Other numbers are compared at 60 digits, relative to their size.
    Variables take values at three points: expressions whose values differ at one are not equal, and equal values say
    nothing. OverflowError for rational values too large to write down that agree in their first digits.
    """
    if first.is_Matrix or second.is_Matrix:
        return _same_entries(first, second)
    if first.is_Relational and second.is_Relational and first.lhs.is_Symbol and first.lhs == second.lhs:
        return False if _same_value(first.rhs, second.rhs) is False else None
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
            _same_value(*pair) is False for pair in zip(entries.flat(), others.flat(), strict=True)
        )
    except (AttributeError, TypeError, ValueError):
        return None
    return False if differ else None


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


def _same_decimal(target: str, targets: list[Any], prediction: str, predictions: list[Any]) -> bool | None:
    """The verdict where one side is a decimal: if it is the rounded value of the other; None where neither is."""
    from sympy import Expr, N

    for scalar, others in ((read_scalar(prediction), targets), (read_scalar(target), predictions)):
        exact = others[0] if others else None
        if scalar is None or scalar.decimal is None or not isinstance(exact, Expr) or not exact.is_number:
            continue
        value = N(exact, 50)
        if value.is_real:
            exact_value = Fraction(str(value))
            near = abs(exact_value - scalar.value) < Fraction(1, 10**40) or rounds_to(scalar.decimal, exact_value)
            return near and (exact_value < 0) == (scalar.value < 0)
    return None


def _letters(text: str) -> set[str]:  # the variables that are single letters
    return set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|(?<=[0-9])[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text)))
