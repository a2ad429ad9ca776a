"""Mathematical answers, decided by math-verify (https://github.com/huggingface/Math-Verify).

Algebra can take any time (a tower of powers never ends), so it runs in worker processes that are killed at a timeout.
"""

import contextlib
import weakref

from vase_cli.errors import DataError, RunError
from vase_cli.graders._extraction import last_boxed
from vase_cli.graders._latex import key, normalize, split_modulus
from vase_cli.graders._scalar import read_scalar, same_scalar
from vase_cli.graders._worker import Worker
from vase_cli.graders.base import Grader

_START_TIMEOUT_S = 120.0


class MathGrader(Grader):
    """Equality of numbers, expressions, equations, lists, sets, pairs, intervals, matrices and words.

    A comparison that takes longer than ``timeout_s`` is an "error" and not "wrong": it was not decided.
    Workers start when first needed, one per thread that grades at the same time.
    """

    name = "math"
    policies = (
        "Only the last balanced, non-empty box of the answer part counts.",
        "p% equals p and p/100: 50% answers both 50 and 0.5, but 50 never answers 0.5.",
        "Units, currency and degrees are not compared: 18, $18, 18 cm and 18 cm^2 agree; 90 degrees are 90, not pi/2.",
        "Numerals with a base subscript are compared by digits: 52_8 agrees with 52, not with 52_9, nor with 42.",
        "1,234 is one number and '1, 234' a list; inside brackets commas always separate members.",
        "A number followed by a proper fraction is a mixed number: 1\\frac12 is 3/2.",
        "A decimal is compared exactly, but with 6 or more significant digits it may round a value that is no decimal.",
        "A list or a set has no order, a pair has; each member is needed as often as in the gold answer.",
        "(3, 5) may be answered as 3, 5 in that order; intervals need their brackets, and those must agree.",
        "x = 5 agrees with 5, not with y = 5; if the gold answer is no equation, the last side of an equation counts.",
        "An interval and the inequality that describes it agree; equations agree if their solutions do.",
        "Text answers are compared without case and punctuation; variables with their case.",
        "A residue agrees with or without its modulus; two moduli must agree.",
        "A comparison that takes too long or too much memory is an error, which is not counted as correct.",
    )

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.timeout_s = timeout_s
        self._idle: list[Worker] = []
        weakref.finalize(self, _end_all, self._idle)

    def parse_gold(self, gold: str) -> str:
        """The normalized gold answer, without the box it may stand in."""
        super().parse_gold(gold)
        return normalize(last_boxed(gold) or gold)

    def judge(self, target: str, prediction: str) -> bool:
        """Compare equal spellings and plain numbers in this process, all else in a worker.

        DataError if that took too long or too much memory, or failed; RunError if no worker could be started.
        """
        prediction = normalize(prediction)
        if not prediction or key(target) == key(prediction):
            return bool(prediction)
        (target, modulus), (prediction, other_modulus) = split_modulus(target), split_modulus(prediction)
        if modulus and other_modulus and key(modulus) != key(other_modulus):
            return False
        if modulus or other_modulus:
            return self.judge(target.replace(r"\equiv", "="), prediction.replace(r"\equiv", "="))
        target_scalar, scalar = read_scalar(target), read_scalar(prediction)
        if target_scalar and scalar:
            return same_scalar(target_scalar, scalar)
        worker = self._take()
        try:
            return _equal(worker, target, prediction, self.timeout_s)
        finally:
            if worker.alive():
                self._idle.append(worker)

    def close(self) -> None:
        """End the idle workers; the next comparison starts new ones."""
        _end_all(self._idle)

    def _take(self) -> Worker:
        with contextlib.suppress(IndexError):
            while not (worker := self._idle.pop()).alive():
                worker.kill()
            return worker
        return _started()


def _started() -> Worker:
    worker = Worker("vase_cli.graders._math_worker")
    try:
        _equal(worker, "x+1", "1+x", _START_TIMEOUT_S)
    except DataError as error:
        worker.kill()
        raise RunError(f"the math grader's worker did not start: {error}; check `pip show math-verify`") from error
    return worker


def _equal(worker: Worker, target: str, prediction: str, timeout_s: float) -> bool:
    reply = worker.ask({"target": target, "prediction": prediction, "limit_s": timeout_s}, timeout_s)
    if "error" in reply:
        raise DataError(reply["error"])
    return bool(reply["equal"])


def _end_all(workers: list[Worker]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            workers.pop().kill()


GRADER = MathGrader
