"""The worker process of the math grader: reads one JSON request a line, writes one JSON reply a line.

Started with ``python -m``, so that neither the caller's memory, threads, CUDA context nor ``__main__``
module reaches it. It ends with its input, as when the caller dies; a watchdog ends it while it computes.
"""

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys

_MEMORY_LIMIT_GIB = 4
_GRACE_S = 2


def main() -> None:
    """Serve requests ``{"target", "prediction", "limit_s"}`` with ``{"equal": bool}`` or ``{"error": str}``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system limits address space
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_GIB * 2**30, _MEMORY_LIMIT_GIB * 2**30))
    logging.disable(logging.CRITICAL)
    # What a library prints must not end up among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # It ends the process even inside one long multiplication.
        faulthandler.dump_traceback_later(request["limit_s"] + _GRACE_S, exit=True)
        try:
            from vase_cli.graders._math_equal import equal

            reply: dict[str, object] = {"equal": equal(request["target"], request["prediction"])}
        except MemoryError:
            reply = {"error": f"out of memory (the limit is {_MEMORY_LIMIT_GIB} GiB)"}
        except Exception as error:
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
