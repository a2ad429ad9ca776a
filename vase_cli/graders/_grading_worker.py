"""The process of an isolated grader: reads one JSON request a line, writes one JSON reply a line.

It ends with its input, as when the caller dies.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import ConfigError, VaseError, first_line
from vase_cli.graders.base import Grader


def main() -> None:
    """Serve a first request ``{"grader", "path"}`` with ``{"limit_s"}``, others with ``{"grades"}`` of a text.

    ``{"failed"}`` says that the grader raised, ``{"refused"}`` that it cannot work here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # where memory runs out, Linux ends this process and not the run's
        Path("/proc/self/oom_score_adj").write_text("1000")
    # What a grader prints must not end up among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    grader: Grader | None = None
    for request in map(json.loads, sys.stdin.buffer):
        try:
            if grader is None:
                sys.path += [entry for entry in request["path"] if entry not in sys.path]  # which may lead to a plug-in
                grader = plugins.make("graders", request["grader"])
                reply: dict[str, Any] = {"limit_s": grader.limit_s}
            else:
                reply = _graded(grader, request)
        except VaseError as error:
            reply = {"refused": str(error), "input": isinstance(error, ConfigError)}
        print(json.dumps(reply), file=replies, flush=True)


def _graded(grader: Grader, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"grades": [dataclasses.asdict(grade) for grade in grader.grade_both(**request)]}
    except VaseError:
        raise
    except Exception as error:  # a fault of the grader's is no fault of the run's
        fault = " ".join(f"{type(error).__name__}: {first_line(error)}".split())[:300]
        return {"failed": f"the grader failed ({fault})"}


if __name__ == "__main__":
    main()
