"""A child process that answers questions, and is killed when it takes too long over one."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import vase_cli
from vase_cli.errors import DataError


class WorkerTimeoutError(DataError):
    """A worker was killed, as it took too long."""


class Worker:
    """One process; a thread reads its replies, so that any system can stop waiting for one.

    The module that it runs reads one JSON request a line and writes one JSON reply a line.
    """

    def __init__(self, module: str) -> None:
        root = str(Path(vase_cli.__file__).parent.parent)
        # -P keeps files of the working folder (a user's math.py) from standing in for modules.
        # Its own process group keeps the terminal's Ctrl-C from it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
            encoding="ascii",
            process_group=0,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests = self._process.stdin
        self._replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_forward, args=(self._process.stdout, self._replies), daemon=True).start()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The reply to a request; DataError says why there is none, and then the process is dead."""
        try:
            print(json.dumps(request), file=self._requests, flush=True)
            reply: dict[str, Any] = json.loads(self._replies.get(timeout=timeout_s))
        except BaseException as error:  # Ctrl-C too: the pending reply would be taken for that to the next question
            self.kill()
            if isinstance(error, queue.Empty):
                raise WorkerTimeoutError(f"timed out after {timeout_s:g} s") from error
            if isinstance(error, OSError | ValueError):
                raise DataError("the worker process died") from error
            raise
        return reply

    def kill(self) -> None:
        """End the process; who waits for a reply gets a DataError."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # a request that was not read
            self._requests.close()


def _forward(replies: IO[str], to: "queue.SimpleQueue[str]") -> None:
    with replies:
        for line in replies:
            to.put(line)
    to.put("")
