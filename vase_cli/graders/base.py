"""The base of graders: the grade, and the three steps that lead to it.

The answer is looked for in what follows the thought, the same way for every grader (``_extraction``); it and the
gold answer get one spelling (``_latex.normalize``); their comparison is each grader's own business.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vase_cli.errors import ConfigError, DataError
from vase_cli.graders._characters import clean
from vase_cli.graders._extraction import answer_part, extract
from vase_cli.graders._latex import both_spellings
from vase_cli.graders._worker import WorkerTimeoutError

MAX_ANSWER_CHARS = 2000
"""A longer answer is compared as text only: nothing that long is a value, and parsing it is not bounded."""


@dataclass(frozen=True)
class Grade:
    """The outcome for one completion."""

    # "error": the grader could not decide, which does not count as correct
    status: Literal["correct", "wrong", "no_answer", "error"]
    extracted: str | None  # the answer as it stands in the text
    rule: str  # that found the answer: "boxed" or the name of a fallback; else ""
    detail: str = ""  # one line: why an error, or why the answer was not looked into
    limit: Literal["time", "length"] | None = None  # that the answer ran into


class Grader(AbstractContextManager["Grader", None]):
    """Judge of completions against gold answers."""

    name: ClassVar[str]
    policies: ClassVar[tuple[str, ...]]  # one sentence each: how it decides where mathematics does not
    fallbacks_known: ClassVar[tuple[str, ...]] = ("final_answer_phrase", "last_number")  # that ``grade`` accepts
    limit_s: ClassVar[float] = 60.0  # for both verdicts on one text, after which an evaluation goes on without them

    def grade(self, gold: str, text: str, *, thought_open: bool = False, fallbacks: Sequence[str] = ()) -> Grade:
        """The strict verdict on ``text``, a whole completion: its answer is the one that follows the thought.

        ``thought_open`` says that the prompt already opened ``<think>``; ``fallbacks`` are the extraction rules to
        try, in order, when the answer part holds no box; ConfigError for one that this grader does not know.
        """
        for name in fallbacks:
            if name not in self.fallbacks_known:
                known = ", ".join(self.fallbacks_known) or "none"
                raise ConfigError(f"the grader '{self.name}' has no fallback '{name}'; there are: {known}")
        if (part := answer_part(text, thought_open)) is None:
            return self._grade_answer(gold, None, "", "the thought was never closed")
        return self._grade_answer(gold, *extract(part, fallbacks, self.usable))

    def grade_both(
        self, gold: str, text: str, *, thought_open: bool = False, fallbacks: Sequence[str] = ()
    ) -> tuple[Grade, Grade]:
        r"""The strict verdict, and the published one: on the last ``\boxed{}`` anywhere, the thought included.

        That is how the paper graded (arXiv 2606.03928): a thought that was never finished can hold an answer.
        """
        strict = self.grade(gold, text, thought_open=thought_open, fallbacks=fallbacks)
        answer, rule = extract(text, (), self.usable)
        if (answer, rule) == (strict.extracted, strict.rule):
            return strict, strict
        return strict, self._grade_answer(gold, answer, rule)

    def _grade_answer(self, gold: str, answer: str | None, rule: str, without: str = "") -> Grade:
        try:
            target = self.parse_gold(gold)
            if answer is None:
                return Grade("no_answer", None, "", without)
            as_text = len(answer) > MAX_ANSWER_CHARS
            if answer == gold.strip() if as_text else self._judge_spellings(target, answer):
                return Grade("correct", answer, rule)
        except DataError as error:
            return Grade("error", answer, rule, str(error), "time" if isinstance(error, WorkerTimeoutError) else None)
        if as_text:
            detail = f"longer than {MAX_ANSWER_CHARS:,} characters: compared as text only"
            return Grade("wrong", answer, rule, detail, "length")
        return Grade("wrong", answer, rule)

    def parse_gold(self, gold: str) -> Any:
        """The target of a gold answer, which ``judge`` compares with; a DataError says why nothing can match it."""
        if not clean(gold):
            raise DataError("the gold answer is empty")
        return gold

    def usable(self, answer: str) -> bool:
        """Whether what a fallback found can be an answer; where it cannot, the next fallback is tried."""
        return True

    def _judge_spellings(self, target: Any, answer: str) -> bool:
        """Judge the whole answer, and where that is not correct each spelling of it: all must be."""
        spellings = both_spellings(answer)
        return self.judge(target, answer) or (
            bool(spellings) and all(self.judge(target, spelling) for spelling in spellings)
        )

    @abstractmethod
    def judge(self, target: Any, prediction: str) -> bool:
        """Decide if an answer of at most ``MAX_ANSWER_CHARS`` characters is correct; a DataError says why it cannot."""

    def close(self) -> None:
        """End what the grader holds, if anything; it may be used again afterwards."""

    def __exit__(self, *exception: object) -> None:
        self.close()
