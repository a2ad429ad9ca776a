"""What every grader shares: the grade, where the answer is looked for, and the contract.

A completion is graded in three steps. The answer part is what follows the thought. In it the last
balanced box counts; if there is none, the fallbacks the task declares are tried in their order. What
was found is then judged against the gold answer, which is each grader's own business.
"""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import ClassVar, Literal, Self

from vase_cli.errors import ConfigError, DataError
from vase_cli.graders._latex import clean

Status = Literal["correct", "wrong", "no_answer", "error"]

MAX_ANSWER_CHARS = 2000
"""A longer answer is compared as text only: nothing that long is a value, and parsing it is not bounded."""


@dataclass(frozen=True)
class Grade:
    """The outcome for one completion.

    ``status``: "error" means the grader could not decide; it is not counted as correct.
    ``extracted``: the answer as it was found, or None. ``rule``: "boxed", the name of the fallback that
    found it, or "". ``detail``: why, in one line, for an error or an answer that was not looked into.
    """

    status: Status
    extracted: str | None
    rule: str
    detail: str = ""


class Grader(ABC):
    """Judges completions against gold answers.

    ``policies`` are short sentences that say how this grader decides where mathematics does not;
    ``fallbacks_known`` are the names that ``grade`` accepts as ``fallbacks``.
    """

    name: ClassVar[str]
    policies: ClassVar[tuple[str, ...]]
    fallbacks_known: ClassVar[tuple[str, ...]] = ("final_answer_phrase", "last_number")

    def grade(self, answer: str, text: str, *, thought_open: bool = False, fallbacks: Sequence[str] = ()) -> Grade:
        """The grade of a completion.

        ``answer`` is the gold answer, ``text`` the whole completion, ``thought_open`` whether the prompt
        had already opened ``<think>``, ``fallbacks`` the extraction rules to try, in order, when the
        answer part holds no box.

        Raises:
            ConfigError: a fallback this grader does not know.
        """
        for name in fallbacks:
            if name not in self.fallbacks_known:
                known = ", ".join(self.fallbacks_known) or "none"
                raise ConfigError(f"the grader '{self.name}' has no fallback '{name}'; there are: {known}")
        try:
            self.check_gold(answer)
        except DataError as error:
            return Grade("error", None, "", str(error))
        part = answer_part(text, thought_open)
        if part is None:
            return Grade("no_answer", None, "", "the thought was never closed")
        found = _extract(part, fallbacks)
        if found is None:
            return Grade("no_answer", None, "")
        extracted, rule = found
        if len(extracted) > MAX_ANSWER_CHARS:
            if extracted == answer.strip():
                return Grade("correct", extracted, rule)
            return Grade(
                "wrong", extracted, rule, f"longer than {MAX_ANSWER_CHARS:,} characters: compared as text only"
            )
        status, detail = self.judge(answer, extracted)
        return Grade(status, extracted, rule, detail)

    def check_gold(self, answer: str) -> None:
        """Refuses a gold answer this grader can never find correct.

        Raises:
            DataError: what is wrong with it.
        """
        if not clean(answer):
            raise DataError("the gold answer is empty")

    @abstractmethod
    def judge(self, answer: str, extracted: str) -> tuple[Status, str]:
        """Status and detail of an extracted answer of at most ``MAX_ANSWER_CHARS`` characters."""

    def close(self) -> None:  # noqa: B027 - most graders hold nothing
        """Ends what the grader holds; it may be used again afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer_part(text: str, thought_open: bool) -> str | None:
    """What follows the last ``</think>``; None if a thought is open and never closed.

    ``thought_open``: the prompt had already opened ``<think>``, so the text starts inside the thought.
    """
    _, closed, rest = text.rpartition("</think>")
    if not closed and thought_open:
        return None
    return None if "<think>" in rest else rest


_BOX_TOKEN = re.compile(r"\\\\?(?P<box>boxed|fbox)(?![A-Za-z])\s*|\\.|[{}]", re.DOTALL)
_BLANK = re.compile(r"\s*")
_UNBRACED = re.compile(r"[-+−]?[0-9][0-9.,/]*|[A-Za-z](?![A-Za-z])|\\[A-Za-z]+(?:\{[^{}]*\}|[0-9])*")


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced, non-empty ``\boxed{}`` or ``\fbox{}``, or None.

    Of nested boxes the outermost counts, with the inner commands taken away. ``\boxed 5`` boxes one
    number, letter or command. Escaped braces do not count as braces. One pass, whatever the text.
    """
    open_braces: list[int | None] = []
    best: tuple[int, int] | None = None
    pending = -1
    for token in _BOX_TOKEN.finditer(text):
        if token["box"]:
            if text.startswith("{", token.end()):
                pending = token.end()
            elif bare := _UNBRACED.match(text, token.end()):
                best = (bare.start(), bare.end())
        elif token.group() == "{":
            open_braces.append(token.end() if token.start() == pending else None)
        elif token.group() == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and not _BLANK.fullmatch(text, start, token.start()):
                best = (start, token.start())
    return _without_boxes(text[best[0] : best[1]].strip().rstrip(".,")) if best else None


def _without_boxes(content: str) -> str:
    """The content without the commands of nested boxes; their braces stay unless they are the whole."""
    stripped = re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", "", content)
    while stripped != content and re.fullmatch(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", stripped):
        stripped = stripped[1:-1].strip()
    return stripped


# Every repeat is bounded: the text may be a megabyte of anything.
_PHRASE = re.compile(
    r"(?<![A-Za-z])answer(?: to [^\n.:]{1,80}?)?[*_ ]{0,9}(?::|=|(?:is|are)(?![A-Za-z]))[*_:\s]{0,20}"
    r"(?=(?P<rest>[^\n]{1,500}))",
    re.IGNORECASE,
)
_MATH_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)(?:\\\]|$)")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$|\*)")


def _final_answer_phrase(part: str) -> str | None:
    """What the last "the answer is ...", "final answer: ..." says, up to the end of its sentence."""
    for phrase in reversed(list(_PHRASE.finditer(part))):
        rest = phrase["rest"].strip()
        span = _MATH_SPAN.match(rest)
        if span:
            found = next(group for group in span.groups() if group is not None)
        else:
            found = _SENTENCE_END.split(rest, maxsplit=1)[0]
        found = found.strip().strip("*_").strip()
        if found:
            return found
    return None


_NUMBER = re.compile(
    r"(?<![\w.,^_{])(?P<sign>[-−]\s?)?(?:\\?[$€£])?(?P<sign2>[-−])?"
    r"(?:\\[dt]?frac\{[0-9]+\}\{[0-9]+\}|(?:[0-9]+(?:,[0-9]{3})*)(?:\.[0-9]+)?(?:/[0-9]+)?)(?:\s?\\?%)?"
)


def _last_number(part: str) -> str | None:
    """The last number with its sign, currency and percent sign; a minus between two values is no sign."""
    numbers = deque(_NUMBER.finditer(part), maxlen=1)
    if not numbers:
        return None
    last = numbers[0]
    sign = last["sign"] or ""
    before = part[max(0, last.start() - 20) : last.start()].rstrip()[-1:]
    binary = sign and (sign[-1].isspace() or before.isdigit() or before in (")", "}"))
    return last.group()[len(sign) :] if binary else last.group()


_LETTER = re.compile(r"(?<![A-Za-z0-9\\])(?P<mark>[(*{]?)(?P<letter>[A-D])(?![A-Za-z0-9'’])")
_ARTICLE = re.compile(r"\s+[a-z]")


def _last_choice_letter(part: str) -> str | None:
    """The last capital A to D that stands alone; "A" before a lower-case word is the article."""
    found = None
    for letter in _LETTER.finditer(part):
        article = letter["letter"] == "A" and not letter["mark"] and _ARTICLE.match(part, letter.end())
        if not article:
            found = letter["letter"]
    return found


_FALLBACKS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {
        "final_answer_phrase": _final_answer_phrase,
        "last_number": _last_number,
        "last_choice_letter": _last_choice_letter,
    }
)


def _extract(part: str, fallbacks: Sequence[str]) -> tuple[str, str] | None:
    boxed = last_boxed(part)
    if boxed is not None:
        return boxed, "boxed"
    for name in fallbacks:
        found = _FALLBACKS[name](part)
        if found is not None:
            return found, name
    return None
