r"""Whether two LaTeX answers are the same mathematical object.

Lists, sets, pairs, intervals and equations are taken apart here, so that their order and brackets
count exactly as the policies of the math grader say; math-verify decides about the expressions inside.
Runs in the worker process: an expression can take any time and memory.
"""

import re
from fractions import Fraction
from typing import Any

from vase_cli.graders import _latex

_OPENING, _CLOSING = "([", ")]"
_NAME = re.compile(r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\})'?(?:_\{?[A-Za-z0-9]+\}?)?(?:\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?")
_CHOICE = re.compile(r"\(?\s*(?:\\text\{\s*)?\(?\s*([A-Ea-e])\s*\)?\s*\}?\s*\)?")
_BASE = re.compile(r"(-?[0-9A-F]+)\s*_\s*\{?\s*\(?\s*(?:\\text\{)?\s*([0-9]+)\s*\}?\)?\s*\}?")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_MAX_MEMBERS = 24
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\^\\circ")
# math-verify adds any number and the fraction behind it; only a proper fraction of integers makes a mixed number.
_BEFORE_FRACTION = re.compile(r"(?<![\^_0-9.])([0-9]+)\s*(?=\\frac\{(?:([0-9]+)\}\{([0-9]+)\})?)")


def equal(gold: str, answer: str) -> bool:
    """Whether an answer equals the gold answer; both come from ``_latex.normalise``."""
    joined_gold, joined_answer = _latex.join_thousands(gold), _latex.join_thousands(answer)
    if _same(joined_gold, joined_answer):
        return True
    # Where a list is asked for, "1,234" may also be the list of 1 and 234.
    return joined_answer != answer and _members(joined_gold) is not None and _same(joined_gold, answer)


def _same(gold: str, answer: str) -> bool:
    if _latex.key(gold) == _latex.key(answer):
        return True
    if not gold or not answer:
        return False
    gold, answer = _MEMBER.sub("", gold, count=1), _MEMBER.sub("", answer, count=1)
    golds, answers = _members(gold), _members(answer)
    if golds is not None:
        return _same_list(golds, answer, answers)
    gold_group, answer_group = _group(gold), _group(answer)
    if answers is not None:
        if len(answers) == 1:
            return _same(gold, answers[0])
        bare_pair = gold_group is not None and gold_group[0] == "()" and not answer.startswith(r"\{")
        return bare_pair and gold_group is not None and "infty" not in gold and _same_in_order(gold_group[1], answers)
    decided = _same_equation(gold, answer)
    if decided is not None:
        return decided
    if gold_group and answer_group:
        return gold_group[0] == answer_group[0] and _same_in_order(gold_group[1], answer_group[1])
    golds, answers = _latex.split_top(gold, r"\cup"), _latex.split_top(answer, r"\cup")
    if len(golds) > 1 and len(golds) == len(answers) and _same_in_any_order(golds, answers):
        return True
    return _same_expression(gold, answer)


def _members(text: str) -> list[str] | None:
    r"""The members of ``a, b``, ``\{a, b\}`` or ``a \pm b``; None if the text is one thing."""
    inner = re.fullmatch(r"\\\{(.*)\\\}", text)
    is_set = inner is not None and r"\}" not in inner[1] and not re.search(r"\\mid|\||:", inner[1])
    parts = _latex.split_top(inner[1] if inner is not None and is_set else text, ",", ";")
    members = [choice for part in parts if part for choice in _plus_minus(part)]
    return members if is_set or len(members) > 1 else None


def _plus_minus(text: str) -> list[str]:
    if len(re.findall(r"\\(?:pm|mp)(?![A-Za-z])", text)) != 1:
        return [text]
    return [re.sub(r"^\s*\+", "", re.sub(r"\\(?:pm|mp)(?![A-Za-z])", sign, text)).strip() for sign in "+-"]


def _group(text: str) -> tuple[str, list[str]] | None:
    """Brackets and members of a pair, a point or an interval; None if the text is something else."""
    if text[0] not in _OPENING or text[-1] not in _CLOSING or not _latex.is_bracketed(text):
        return None
    members = _latex.split_top(text[1:-1], ",", ";")
    return (text[0] + text[-1], members) if len(members) > 1 and all(members) else None


def _same_list(golds: list[str], answer: str, answers: list[str] | None) -> bool:
    if answers is None:
        group = _group(answer)
        answers = group[1] if group is not None and group[0] == "()" else [answer]
    return _same_in_any_order(golds, answers)


def _same_in_order(golds: list[str], answers: list[str]) -> bool:
    return len(golds) == len(answers) and all(map(_same, golds, answers))


def _same_in_any_order(golds: list[str], answers: list[str]) -> bool:
    if len(golds) != len(answers) or len(golds) > _MAX_MEMBERS:
        return False
    left = list(answers)
    for gold in golds:
        match = next((answer for answer in left if _same(gold, answer)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_equation(gold: str, answer: str) -> bool | None:
    """The verdict where an equals sign decides which sides to compare; None where it does not."""
    golds, answers = _latex.split_top(gold, "="), _latex.split_top(answer, "=")
    if len(golds) == 1 and len(answers) > 1:
        return _same(gold, answers[-1])
    gold_named = len(golds) > 1 and _NAME.fullmatch(golds[0]) is not None
    if len(answers) == 1 and gold_named:
        return _same(golds[-1], answer)
    if (
        gold_named
        and len(answers) > 1
        and _NAME.fullmatch(answers[0])
        and _latex.key(golds[0]) == _latex.key(answers[0])
    ):
        return _same(golds[-1], answers[-1])
    return None


def _same_expression(gold: str, answer: str) -> bool:
    words = _words(gold)
    if words is not None:
        return words == _words(answer, anything=True)
    choice = _CHOICE.fullmatch(gold) if re.search(r"text|\(", gold) else None
    if choice:
        given = _CHOICE.fullmatch(answer)
        return given is not None and given[1].upper() == choice[1].upper()
    base = _same_digits(gold, answer)
    if base is not None:
        return base
    gold_scalar, answer_scalar = _latex.scalar(gold), _latex.scalar(answer)
    if gold_scalar and answer_scalar:
        return _latex.same_scalar(gold_scalar, answer_scalar)
    gold, gold_percent = _latex.without_percent(_latex.without_units(gold))
    answer, answer_percent = _latex.without_percent(_latex.without_units(answer))
    if gold_percent and not answer_percent:
        return _verify(gold, answer) or _verify(rf"\frac{{{gold}}}{{100}}", answer)
    if answer_percent and not gold_percent:
        return _verify(gold, answer) or _verify(gold, rf"\frac{{{answer}}}{{100}}")
    return _verify(gold, answer)


def _words(text: str, *, anything: bool = False) -> str | None:
    r"""A text answer as lower-case words, None if it is none: ``\text{...}``, or a bare word of 3 letters."""
    whole = re.fullmatch(r"\\text\{([^{}]*)\}", text)
    plain = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    words = " ".join(re.sub(r"[^\w\s]", " ", plain).split()).casefold()
    if anything:
        return words
    spelled = re.fullmatch(r"[A-Za-z][A-Za-z' -]*", whole[1].strip() if whole else text)
    return (
        words if spelled and len(words) > 2 and (whole or re.fullmatch(r"[A-Za-z]{3,}(?: [A-Za-z]+)*", text)) else None
    )


def _same_digits(gold: str, answer: str) -> bool | None:
    """Numerals with a base subscript on either side: the digits decide, and two subscripts must agree."""
    bases = []
    for text in (gold, answer):
        numeral = _BASE.fullmatch(text)
        bases.append((numeral[1], numeral[2]) if numeral else (text.replace(" ", ""), None))
    (gold_digits, gold_base), (answer_digits, answer_base) = bases
    if gold_base is None and answer_base is None:
        return None
    return gold_digits == answer_digits and (gold_base is None or answer_base is None or gold_base == answer_base)


def _verify(gold: str, answer: str) -> bool:
    """math-verify's verdict on two expressions; the gold answer goes first, it is not symmetric."""
    from math_verify import verify

    golds, answers = _parse(gold), _parse(answer)
    decided = _same_decimal(gold, golds, answer, answers)
    if decided is not None:
        return decided
    if not verify(golds, answers, float_rounding=10, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    # math-verify reads R and r as one variable.
    return _letters(gold) == _letters(answer) or _letters(gold.lower()) != _letters(answer.lower())


def _parse(text: str) -> list[Any]:
    """The sympy object of an expression, if it can be read, and its text."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, I

    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none")
    reading = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)
    text = _BEFORE_FRACTION.sub(_product, text.replace("$", ""))
    text = _DEGREES.sub(r"(\\frac{\1 \\pi}{180})" if _latex.TRIGONOMETRY.search(text) else r"\1", text)
    # The whole text is one formula; an unreadable one stays a string, equal only to itself.
    found = parse(f"${text}$", [reading], parsing_timeout=None)
    return [_with_imaginary_unit(item, I) if isinstance(item, Basic) else item for item in found]


def _product(number: re.Match[str]) -> str:
    mixed = number[2] is not None and int(number[2]) < int(number[3])
    return number.group() if mixed else rf"{number[1]} \cdot "


def _with_imaginary_unit(expression: Any, unit: Any) -> Any:
    """math-verify reads the i of some expressions as a variable."""
    variables = {symbol: unit for symbol in expression.free_symbols if symbol.name == "i"}
    return expression.subs(variables) if variables else expression


def _same_decimal(gold: str, golds: list[Any], answer: str, answers: list[Any]) -> bool | None:
    """Whether a decimal is the rounded value of the other side's expression; None if neither is a decimal."""
    from sympy import Expr, N

    for decimal, others in ((_latex.scalar(answer), golds), (_latex.scalar(gold), answers)):
        exact = others[0] if others else None
        if decimal is None or decimal.decimal is None or not isinstance(exact, Expr) or not exact.is_number:
            continue
        value = N(exact, 50)
        if value.is_real:
            exact_value = Fraction(str(value))
            return (exact_value < 0) == (decimal.value < 0) and (
                abs(exact_value - decimal.value) < Fraction(1, 10**40) or _latex.rounds_to(decimal.decimal, exact_value)
            )
    return None


def _letters(text: str) -> set[str]:
    """The variables of an expression that are single letters."""
    return set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|(?<=[0-9])[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", text)))
