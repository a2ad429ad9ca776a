"""Grading of stored texts, beside what else goes on."""

import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Self

from vase_cli.graders._isolated import IsolatedGrader
from vase_cli.graders.base import Grade
from vase_cli.runs.schema import RunTask, Sample, SampleGrade

_SECONDS_BETWEEN_KILLS = 0.05


class Grading:
    """The verdicts on a task's texts, made in processes of their own; a context manager.

    Leaving it by an exception leaves at once what is not graded: a text that is stored can be graded later.
    """

    def __init__(self, task: RunTask, processes: int = 1) -> None:
        """Grade nothing for a task without a grader. Processes start with the first texts."""
        self._task = task
        self._graders = [IsolatedGrader(task.grader) for _ in range(processes if task.grader else 0)]
        self._idle: queue.SimpleQueue[IsolatedGrader] = queue.SimpleQueue()
        for grader in self._graders:
            self._idle.put(grader)
        # Grading waits for other processes and generation for the device: threads let them overlap.
        self._pool = ThreadPoolExecutor(max_workers=processes)
        self._pending: set[Future[SampleGrade]] = set()
        self._done: queue.SimpleQueue[Future[SampleGrade]] = queue.SimpleQueue()

    def submit(self, sample: Sample) -> None:
        """Have a text graded."""
        if self._graders:
            self._pending.add(future := self._pool.submit(self._grade, sample))
            future.add_done_callback(self._done.put)

    def finished(self, *, all_of_them: bool = False) -> Iterator[SampleGrade]:
        """The grades there are since the last call; with ``all_of_them``, wait for the rest.

        ConfigError or RunError if the grader cannot work here.
        """
        while self._pending:
            try:
                future = self._done.get(block=all_of_them)
            except queue.Empty:
                return
            self._pending.discard(future)
            yield future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in self._pending if not future.cancelled()]
        while wait(running, _SECONDS_BETWEEN_KILLS).not_done:
            for grader in self._graders:
                grader.close()
        for grader in self._graders:
            grader.close()

    def _grade(self, sample: Sample) -> SampleGrade:
        grader = self._idle.get()
        try:
            strict = published = Grade("error", None, "")
            if sample.finish_reason != "error":
                strict, published = grader.grade_both(
                    sample.gold, sample.text, thought_open=sample.thought_open, fallbacks=self._task.fallbacks
                )
        finally:
            self._idle.put(grader)
        return SampleGrade(
            id=sample.id,
            grade=strict.status,
            extracted=strict.extracted,
            rule=strict.rule,
            grade_error=strict.detail or None if strict.status == "error" else None,
            grade_limit=strict.limit,
            published=published.status,
            published_extracted=published.extracted,
        )
