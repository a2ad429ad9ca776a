r"""Mathematical answers, decided by math-verify (https://github.com/huggingface/Math-Verify).

Algebra on what a model wrote can take any time: a tower of powers never ends. So it runs in worker
processes that are killed when their time is up.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, ClassVar

import vase_cli
from vase_cli.errors import RunError
from vase_cli.graders import _latex
from vase_cli.graders.base import Grader, Status, last_boxed

_START_TIMEOUT_S = 120.0


class MathGrader(Grader):
    """Equality of numbers, expressions, equations, lists, sets, pairs, intervals, matrices and words.

    A comparison that takes longer than ``timeout_s`` is an "error" and not "wrong": it was not decided.
    Workers start when first needed, one per thread that grades at the same time.
    """

    name: ClassVar[str] = "math"
    policies: ClassVar[tuple[str, ...]] = (
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
        "A comparison that takes too long or too much memory is an error, which is not counted as correct.",
    )

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.timeout_s = timeout_s
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._end_workers = weakref.finalize(self, _end_all, self._idle)

    def judge(self, answer: str, extracted: str) -> tuple[Status, str]:
        """Compares in this process what is written alike or is a plain number, else in a worker.

        Raises:
            RunError: no worker could be started.
        """
        gold, given = _gold_latex(answer), _latex.normalise(extracted)
        if not given:
            return "wrong", ""
        if _latex.key(gold) == _latex.key(given):
            return "correct", ""
        gold_scalar, given_scalar = _latex.scalar(gold), _latex.scalar(given)
        if gold_scalar and given_scalar:
            return ("correct" if _latex.same_scalar(gold_scalar, given_scalar) else "wrong"), ""
        reply = self._ask({"gold": gold, "answer": given, "limit_s": self.timeout_s})
        if "error" in reply:
            return "error", reply["error"]
        return ("correct" if reply["equal"] else "wrong"), ""

    def close(self) -> None:
        """Ends the idle workers; the next comparison starts new ones."""
        with self._lock:
            ended = self._idle[:]
            self._idle.clear()
        _end_all(ended)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        worker = self._take()
        try:
            reply = worker.ask(request, self.timeout_s)
        except TimeoutError:
            worker.kill()
            return {"error": f"timed out after {self.timeout_s:g} s"}
        except EOFError:
            worker.kill()
            return {"error": "the worker process died"}
        except BaseException:  # Ctrl-C too: a worker with a pending reply would answer the next question with it
            worker.kill()
            raise
        with self._lock:
            self._idle.append(worker)
        return reply

    def _take(self) -> "_Worker":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                worker.kill()
        return _Worker()


class _Worker:
    """One child process and its pipes."""

    def __init__(self) -> None:
        root = str(Path(vase_cli.__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P keeps files of the working folder (a user's math.py) from standing in for modules.
        # Its own process group keeps the terminal's Ctrl-C from it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vase_cli.graders._math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            process_group=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            ready = self._reply(_START_TIMEOUT_S)
        except (TimeoutError, EOFError):
            ready = {"error": "it ended or did not answer"}
        except BaseException:
            self.kill()
            raise
        if "error" in ready:
            self.kill()
            raise RunError(f"the math grader's worker did not start: {ready['error']}; check `pip show math-verify`")

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            TimeoutError: no reply within the time.
            EOFError: the process has ended.
        """
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise EOFError from error
        return self._reply(timeout_s)

    def _reply(self, timeout_s: float) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self._replies, 65536)
                if not chunk:
                    raise EOFError
                received += chunk
        reply: dict[str, Any] = json.loads(received)
        return reply

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()


def _gold_latex(answer: str) -> str:
    return _latex.normalise(last_boxed(answer) or answer)


GRADER = MathGrader
