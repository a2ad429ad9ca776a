"""A grader in a process of its own: however long it takes over an answer, or dies of it, its caller goes on."""

import sys
from collections.abc import Sequence

from vase_cli.errors import ConfigError, DataError, RunError
from vase_cli.graders._worker import Worker, WorkerTimeoutError
from vase_cli.graders.base import Grade

_START_TIMEOUT_S = 120.0


class IsolatedGrader:
    """The grader of a name; one thread at a time may use it, another may ``close`` it."""

    def __init__(self, name: str) -> None:
        """Start nothing yet."""
        self.name = name
        self._worker: Worker | None = None
        self._limit_s = _START_TIMEOUT_S

    def grade_both(self, gold: str, text: str, *, thought_open: bool, fallbacks: Sequence[str]) -> tuple[Grade, Grade]:
        """Both verdicts, as :meth:`Grader.grade_both` gives them.

        Errors, with a detail, where the grader took longer than its ``limit_s``, failed or died; the next text gets a
        new process. ConfigError or RunError if there is no such grader, or it cannot work here.
        """
        request = {"gold": gold, "text": text, "thought_open": thought_open, "fallbacks": list(fallbacks)}
        try:
            reply = self._started().ask(request, self._limit_s)
        except DataError as error:
            self.close()
            limit: dict[str, str] = {"limit": "time"} if isinstance(error, WorkerTimeoutError) else {}
            reply = {"failed": f"the grader {error}" if limit else "the grader's process died", **limit}
        if "refused" in reply:
            raise (ConfigError if reply["input"] else RunError)(reply["refused"])
        if "failed" in reply:
            failed = Grade("error", None, "", reply["failed"], reply.get("limit"))
            return failed, failed
        strict, published = (Grade(**grade) for grade in reply["grades"])
        return strict, published

    def close(self) -> None:
        """End the process, also while it grades; the next text starts a new one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _started(self) -> Worker:
        worker = self._worker
        if worker is None or not worker.alive():
            self.close()
            self._worker = worker = Worker("vase_cli.graders._grading_worker")
            try:
                reply = worker.ask({"grader": self.name, "path": sys.path}, _START_TIMEOUT_S)
            except DataError as error:
                self.close()
                raise RunError(f"the process of the grader '{self.name}' did not start: {error}") from error
            if "refused" in reply:
                self.close()
                raise ConfigError(reply["refused"])
            self._limit_s = reply["limit_s"]
        return worker
