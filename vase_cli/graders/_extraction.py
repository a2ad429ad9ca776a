"""Extraction of a completion's answer: behind the thought, from the last box, or as a fallback finds it.

Every repeat in a pattern is bounded: the text may be a megabyte of anything.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence


def answer_part(text: str, thought_open: bool) -> str | None:
    """The text after the last ``</think>``; None if a thought, which the prompt may have opened, is never closed."""
    _, closed, rest = text.rpartition("</think>")
    return None if "<think>" in rest or (thought_open and not closed) else rest


def extract(part: str, fallbacks: Sequence[str], usable: Callable[[str], bool]) -> tuple[str | None, str]:
    """The answer in the last box, else that of a fallback, and the rule; None and "" where none finds one.

    Of the fallbacks the first counts that finds a ``usable`` answer, else the first that finds any.
    """
    if (boxed := last_boxed(part)) is not None:
        return boxed, "boxed"
    found = [(answer, rule) for rule in fallbacks if (answer := _RULES[rule](part)) is not None]
    return next((answer for answer in found if usable(answer[0])), found[0] if found else (None, ""))


_BOX_TOKEN = re.compile(r"\\\\?(?P<box>boxed|fbox)(?![A-Za-z])\s*|\\.|[{}]", re.DOTALL)
_BLANK = re.compile(r"\s*")
_FULL_STOP = re.compile(r"(?<![\\.,])[.,]{1,99}\Z")  # the comma of a spacing command is none
_UNBRACED = re.compile(r"[-+−]?[0-9][0-9.,/]*|[A-Za-z](?![A-Za-z])|\\[A-Za-z]+(?:\{[^{}]*\}|[0-9])*")


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced, non-empty ``\boxed{}`` or ``\fbox{}``, or None; one pass, whatever the text.

    Of nested boxes the outermost counts, with the inner commands taken away. ``\boxed 5`` boxes one number, letter or
    command. Escaped braces do not count as braces.
    """
    open_braces: list[int | None] = []
    best: tuple[int, int] | None = None
    pending = -1
    for token in _BOX_TOKEN.finditer(text):
        if token["box"]:
            if text.startswith("{", token.end()):
                pending = token.end()
            elif bare := _UNBRACED.match(text, token.end()):
                best = bare.span()
        elif token.group() == "{":
            open_braces.append(token.end() if token.start() == pending else None)
        elif token.group() == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and not _BLANK.fullmatch(text, start, token.start()):
                best = (start, token.start())
    return _without_boxes(_FULL_STOP.sub("", text[best[0] : best[1]].strip())) if best else None


def _without_boxes(content: str) -> str:  # their braces stay unless they are around the whole
    stripped = re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", "", content)
    while stripped != content and re.fullmatch(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", stripped):
        stripped = stripped[1:-1].strip()
    return stripped


_PHRASE = re.compile(
    r"(?<![A-Za-z])(?:answer|(?:correct|right|best)\s(?:option|choice))"
    r"(?: to [^\n.:]{1,80}?)?[*_ ]{0,9}(?::|=|(?:is|are)(?![A-Za-z])|(?<=\*)\s{0,5}\n)[*_:\s]{0,20}"
    r"(?=(?P<rest>[^\n]{1,500}))",
    re.IGNORECASE,
)
_MATH_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)(?:\\\]|$)")
_REMARK = re.compile(r",\s+(?!and\b|or\b)[a-z]{2,}\b")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$|\*)")


def _final_answer_phrase(part: str) -> str | None:
    """The answer in the last "the answer is ...", "final answer: ...", up to the end of its sentence."""
    for phrase in reversed(list(_PHRASE.finditer(part))):
        rest = phrase["rest"].strip().lstrip("}").strip()
        span = _MATH_SPAN.match(rest)
        answer = next(filter(None, span.groups())) if span else _SENTENCE_END.split(rest, maxsplit=1)[0]
        answer = _REMARK.split(answer, maxsplit=1)[0]
        if (answer := answer.strip().strip("*_").strip()).strip("$"):
            return answer
    return None


_NUMBER = re.compile(
    r"(?<![\w.,^_{])(?P<sign>[-−]\s?)?(?:\\?[$€£])?(?P<sign2>[-−])?"
    r"(?:\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|(?:[0-9]+(?:,[0-9]{3})*)(?:\.[0-9]+)?(?:/[0-9]+)?)(?:\s?\\?%)?"
)


def _last_number(part: str) -> str | None:
    """The last number with its sign, currency and percent sign; a minus between two values is no sign."""
    last = next(iter(deque(_NUMBER.finditer(part), maxlen=1)), None)
    if last is None:
        return None
    sign = last["sign"] or ""
    before = part[max(0, last.start() - 20) : last.start()].rstrip()[-1:]
    binary = sign and (sign[-1].isspace() or before.isdigit() or before in (")", "}"))
    return last.group()[len(sign) :] if binary else last.group()


# "A" before a lower-case word is the article.
_LETTER = re.compile(r"(?<![A-Za-z0-9\\])(?:[(*{][A-D]|A(?!\s+[a-z])|[B-D])(?![A-Za-z0-9'’])")


def _last_choice_letter(part: str) -> str | None:
    """The last capital A to D that stands alone."""
    letters: list[str] = _LETTER.findall(part)
    return letters[-1][-1] if letters else None


_RULES: Mapping[str, Callable[[str], str | None]] = {
    "final_answer_phrase": _final_answer_phrase,
    "last_number": _last_number,
    "last_choice_letter": _last_choice_letter,
}
