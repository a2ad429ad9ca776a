r"""Conditions on one variable as intervals: ``x<2 \lor x>3`` is ``(-\infty,2)\cup(3,\infty)``."""

import re

from vase_cli.graders._latex import split_top

_RELATION = re.compile(r"\s*(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z]))\s*")
_VARIABLE = re.compile(r"\\?[A-Za-z]+")
_BUILDER = re.compile(
    r"\\\{\s*(?P<variable>\\?[A-Za-z]+)\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R|R)\s*)?"
    r"(?:\\mid|\\vert|\||:)(?P<condition>.*)\\\}"
)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def same_form(target: str, prediction: str) -> tuple[str, str] | None:
    r"""Both answers as intervals, where one is written with ``\lor``, ``\land`` or as a set with a condition.

    None where neither is, or where a condition is of another kind. A comma means what joins the other answer's parts.
    """
    texts = (target, prediction)
    bare = [_condition(text) for text in texts]
    joint = next((mark for mark in (r"\lor", r"\land") if any(mark in text for text in bare)), None)
    if joint is None and list(texts) == bare:
        return None
    read = [_intervals(text, joint) for text in bare]
    if read[0] and read[1] and read[0][0] != read[1][0]:
        return None
    forms = [found[1] if found else text for found, text in zip(read, bare, strict=True)]
    return (forms[0], forms[1]) if any(read) else None


def _condition(text: str) -> str:
    builder = _BUILDER.fullmatch(text)
    return builder["condition"].strip() if builder else text


def _intervals(text: str, joint: str | None) -> tuple[str, str] | None:
    """The variable, and the union of its intervals; None if the text is no such condition."""
    variables, intervals = set(), []
    for case in split_top(text, r"\lor", *([","] if joint == r"\lor" else [])):
        lower = upper = ""
        for condition in split_top(case, r"\land", *([","] if joint == r"\land" else [])):
            bounds = _bounds(condition)
            if bounds is None or (lower and bounds[1]) or (upper and bounds[2]):
                return None
            variables.add(bounds[0])
            lower, upper = lower or bounds[1], upper or bounds[2]
        intervals.append((lower or r"(-\infty") + "," + (upper or r"\infty)"))
    return (variables.pop(), r"\cup ".join(intervals)) if len(variables) == 1 else None


def _bounds(condition: str) -> tuple[str, str, str] | None:
    """The variable, its lower bound and its upper bound, each with its bracket or empty."""
    parts = _RELATION.split(condition)
    if len(parts) == 3 and _VARIABLE.fullmatch(parts[2]) and not _VARIABLE.fullmatch(parts[0]):
        parts = [parts[2], _FLIPPED[parts[1]], parts[0]]
    if len(parts) == 3 and _VARIABLE.fullmatch(parts[0]):
        parts = ["", "<", *parts]
    if len(parts) != 5 or not _VARIABLE.fullmatch(parts[2]):
        return None
    ends = [(parts[0], _FLIPPED[parts[1]]), (parts[4], parts[3])]
    lower = upper = ""
    for end, relation in ends:
        if end and relation in (">", r"\ge"):
            lower = ("(" if relation == ">" else "[") + end
        elif end:
            upper = end + (")" if relation == "<" else "]")
    return parts[2], lower, upper
