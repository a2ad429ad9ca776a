"""One of four options, as GPQA asks for it (https://arxiv.org/abs/2311.12022)."""

import re

from vase_cli.errors import DataError
from vase_cli.graders._latex import normalize
from vase_cli.graders.base import Grader

_LETTER = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+|final\s+)?(?:option|choice|answer)\s*(?:is)?\s*:?\s*)?"
    r"(?:\(\s*(?P<round>[A-D])\s*\)|\[\s*(?P<square>[A-D])\s*\]|(?P<marked>[A-D])\s*(?:[.):,]|-\s|\s(?=\())|(?P<alone>[A-D])\s*$)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER = re.compile(
    r"\s*[,/&]?\s*\(?[A-Da-d]\s*(?:[).:,]|$)"
    r"|\s*\(?\s*[,/&]\s*\(?(?:[B-D]|A(?!\s+[a-z]))(?![A-Za-z0-9'])"
)


class ChoiceGrader(Grader):
    """An answer is right if it names the gold letter, A to D, and no other."""

    name = "choice"
    fallbacks_known = ("final_answer_phrase", "last_choice_letter")
    policies = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "The letter counts in either case, alone, in brackets, or before its option's text: B, (B), b., B) text.",
        "The text of an option without its letter is wrong, and so are two letters.",
    )

    def parse_gold(self, gold: str) -> str:
        """The letter, from A to D."""
        if not re.fullmatch(r"[A-D]", gold.strip()):
            raise DataError(f"the gold answer '{gold[:40]}' is not one of A, B, C, D")
        return gold.strip()

    def judge(self, target: str, prediction: str) -> bool:
        """Compare letters."""
        text = re.sub(r"\\text\{([^{}]*)\}", r"\1", normalize(prediction)).replace("*", "").strip(" {}_")
        letter = _LETTER.match(text)
        if letter is None or _ANOTHER.match(text[letter.start("rest") - text[: letter.start("rest")].endswith(",") :]):
            return False
        return (letter["round"] or letter["square"] or letter["marked"] or letter["alone"]).upper() == target

    def usable(self, answer: str) -> bool:
        """Only what holds one of the letters by itself."""
        return bool(re.search("(?<![A-Za-z])[A-Da-d](?![A-Za-z])", answer))


GRADER = ChoiceGrader
