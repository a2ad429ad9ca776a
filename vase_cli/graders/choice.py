"""One of four options, as GPQA asks for it (https://arxiv.org/abs/2311.12022)."""

import re
from typing import ClassVar

from vase_cli.errors import DataError
from vase_cli.graders import _latex
from vase_cli.graders.base import Grader, Status

_LETTER = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+|final\s+)?(?:option|choice|answer)\s*(?:is)?\s*:?\s*)?"
    r"(?:\(\s*(?P<round>[A-D])\s*\)|\[\s*(?P<square>[A-D])\s*\]|(?P<marked>[A-D])\s*(?:[.):,]|-\s)|(?P<alone>[A-D])\s*$)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER = re.compile(r"\s*[,/&]?\s*\(?[A-Da-d]\s*(?:[).:,]|$)")


class ChoiceGrader(Grader):
    """An answer is right if it names the gold letter, A to D, and no other."""

    name: ClassVar[str] = "choice"
    fallbacks_known: ClassVar[tuple[str, ...]] = ("final_answer_phrase", "last_choice_letter")
    policies: ClassVar[tuple[str, ...]] = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "The letter counts in either case, alone, in brackets, or before its option's text: B, (B), b., B) text.",
        "The text of an option without its letter is wrong, and so are two letters.",
    )

    def check_gold(self, answer: str) -> None:
        """Refuses a gold answer that is no letter from A to D."""
        if not re.fullmatch(r"[A-D]", answer.strip()):
            raise DataError(f"the gold answer '{answer[:40]}' is not one of A, B, C, D")

    def judge(self, answer: str, extracted: str) -> tuple[Status, str]:
        """Compares letters."""
        return ("correct" if _letter(extracted) == answer.strip() else "wrong"), ""


def _letter(extracted: str) -> str | None:
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", _latex.normalise(extracted)).replace("*", "").strip(" {}_")
    found = _LETTER.match(text)
    if found is None or _ANOTHER.match(found["rest"]):
        return None
    return next(found[name] for name in ("round", "square", "marked", "alone") if found[name]).upper()


GRADER = ChoiceGrader
