"""Integers from 0 to 999, as the AIME asks for them (https://maa.org/maa-invitational-competitions/)."""

import re

from vase_cli.errors import DataError
from vase_cli.graders._characters import clean
from vase_cli.graders._latex import last_side, normalize
from vase_cli.graders._scalar import read_scalar
from vase_cli.graders.base import Grader


class IntegerGrader(Grader):
    """An answer is right if it is a numeral whose value is the gold integer."""

    name = "integer"
    policies = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "Gold answers are integers from 0 to 999; leading zeros do not matter: 033 is 33.",
        "Any numeral of the same value is right (33.0, 66/2); expressions are not evaluated (2^5, 30 + 3).",
        "Of an equation the last side counts: m + n = 33 is 33.",
        "Units, currency and degree signs are ignored; a percent sign is not part of an integer.",
    )

    def parse_gold(self, gold: str) -> int:
        """The integer, from 0 to 999."""
        if not re.fullmatch(r"[0-9]{1,3}", clean(gold)):
            raise DataError(f"the gold answer '{gold[:40]}' is not an integer from 0 to 999")
        return int(clean(gold))

    def judge(self, target: int, prediction: str) -> bool:
        """Compare values."""
        number = read_scalar(last_side(normalize(prediction)))
        return number is not None and not number.percent and number.value == target

    def usable(self, answer: str) -> bool:
        """Only what holds a digit."""
        return bool(re.search("[0-9]", normalize(answer)))


GRADER = IntegerGrader
