"""The worker process of the math grader: reads one JSON request a line, writes one JSON reply a line.

Started with ``python -m``, so that neither the caller's memory, threads, CUDA context nor ``__main__``
module reaches it. It ends when its input ends, which the death of the caller brings about; while it
computes it has an alarm of its own, so that it cannot outlive a caller that was killed.
"""

import contextlib
import json
import logging
import math
import os
import resource
import signal
import sys

_MEMORY_LIMIT_GIB = 4
_GRACE_S = 2


def main() -> None:
    """Serves requests ``{"gold", "answer", "limit_s"}`` with ``{"equal": bool}`` or ``{"error": str}``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):  # not every system limits address space
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_GIB * 2**30, _MEMORY_LIMIT_GIB * 2**30))
    logging.disable(logging.CRITICAL)
    # What a library prints must not end up among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    try:
        from vase_cli.graders._math_equal import equal

        equal("x+1", "1+x")
    except Exception as error:
        print(json.dumps({"error": _line(error)}), file=replies, flush=True)
        return
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # The default action of the alarm ends the process, even inside one long multiplication.
        signal.alarm(math.ceil(request["limit_s"]) + _GRACE_S)
        try:
            reply: dict[str, object] = {"equal": equal(request["gold"], request["answer"])}
        except MemoryError:
            reply = {"error": f"out of memory (the limit is {_MEMORY_LIMIT_GIB} GiB)"}
        except Exception as error:
            reply = {"error": _line(error)}
        signal.alarm(0)
        print(json.dumps(reply), file=replies, flush=True)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


if __name__ == "__main__":
    main()
