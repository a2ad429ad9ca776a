"""One number in words or symbols, as GSM8K asks for it (https://arxiv.org/abs/2110.14168)."""

import re

from vase_cli.errors import DataError
from vase_cli.graders._latex import last_side, normalize, without_units
from vase_cli.graders._scalar import Scalar, read_scalar, same_exactly
from vase_cli.graders.base import Grader

_NUMERAL = r"[-+]?\s*[$€£]?\s*[-+]?(?:[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+)(?:\s*/\s*[0-9]+)?(?:\s*\\?%)?"
_NUMERAL += r"(?:\s*\\times\s*10\^\{[0-9]{1,3}\})?"
_AMONG_WORDS = re.compile(rf"(?:[A-Za-z]+[:\s]+)*(?P<numeral>{_NUMERAL})(?P<rest>.*)", re.DOTALL)
# A single letter that touches the number is a variable.
_WORDS = re.compile(r"(?:[A-Za-z]{2,}|(?=[\s/]))(?:(?:\s*/\s*|\s+)[A-Za-z]+)*\s*|")


class NumberGrader(Grader):
    """An answer is right if the one number it holds has the gold answer's exact value."""

    name = "number"
    policies = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "Values are compared exactly: 18, 18.00, 36/2 and 1.8e1 are one answer, 18.01 is another.",
        "Thousands separators, currency signs, units and words around the one number are ignored.",
        "Of an equation the last side counts; other expressions are not evaluated, and two numbers are no answer.",
        "A number followed by a proper fraction is a mixed number: 1\\frac12 is 3/2.",
        "p% equals p and p/100: 50% answers both 50 and 0.5, but 50 never answers 0.5.",
    )

    def parse_gold(self, gold: str) -> Scalar:
        """The number."""
        target = read_scalar(normalize(gold))
        if target is None:
            raise DataError(f"the gold answer '{gold[:40]}' is not a number")
        return target

    def judge(self, target: Scalar, prediction: str) -> bool:
        """Compare values."""
        number = _number(last_side(normalize(prediction)))
        return number is not None and same_exactly(target, number)

    def usable(self, answer: str) -> bool:
        """Only what holds a digit."""
        return bool(re.search("[0-9]", normalize(answer)))


def _number(text: str) -> Scalar | None:
    if scalar := read_scalar(text):
        return scalar
    bare = re.sub(r"\\text\{([^{}]*)\}(?:\^\{?[0-9]\}?)?", r" \1 ", without_units(text)).strip().rstrip(".")
    among = _AMONG_WORDS.fullmatch(bare)
    if among is None or not _WORDS.fullmatch(among["rest"]):
        return None
    return read_scalar(among["numeral"].strip().rstrip(",."))


GRADER = NumberGrader
