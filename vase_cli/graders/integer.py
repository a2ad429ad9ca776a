"""Integers from 0 to 999, as the AIME asks for them (https://maa.org/maa-invitational-competitions/)."""

import re
from typing import ClassVar

from vase_cli.errors import DataError
from vase_cli.graders import _latex
from vase_cli.graders.base import Grader, Status

_LARGEST = 999


class IntegerGrader(Grader):
    """An answer is right if it is a numeral whose value is the gold integer."""

    name: ClassVar[str] = "integer"
    policies: ClassVar[tuple[str, ...]] = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "Gold answers are integers from 0 to 999; leading zeros do not matter: 033 is 33.",
        "Any numeral of the same value is right (33.0, 66/2); expressions are not evaluated (2^5, 30 + 3).",
        "Of an equation the last side counts: m + n = 33 is 33.",
        "Units, currency and degree signs are ignored; a percent sign is not part of an integer.",
    )

    def check_gold(self, answer: str) -> None:
        """Refuses a gold answer that is no integer from 0 to 999."""
        if not re.fullmatch(r"[0-9]{1,3}", _latex.clean(answer)):
            raise DataError(f"the gold answer '{answer[:40]}' is not an integer from 0 to {_LARGEST}")

    def judge(self, answer: str, extracted: str) -> tuple[Status, str]:
        """Compares values."""
        given = _latex.scalar(_latex.last_side(_latex.normalise(extracted)))
        right = given is not None and not given.percent and given.value == int(_latex.clean(answer))
        return ("correct" if right else "wrong"), ""


GRADER = IntegerGrader
