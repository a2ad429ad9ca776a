"""The progress of a run on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vase_cli.cli.output import echo
from vase_cli.reports.characters import harmless

if TYPE_CHECKING:
    from vase_cli.runs.schema import Sample

_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_OF_SPEED = 10.0


class EvalProgress:
    """Samples done, accuracy so far where they are graded, tokens per second, time left; a context manager."""

    def __init__(self) -> None:
        name, figures = TextColumn("{task.description}"), TextColumn("{task.fields[figures]}")
        columns = (name, BarColumn(), MofNCompleteColumn(), figures, TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._graded = self._correct = self._tokens = 0
        self._speed_since = self._line_since = time.monotonic()
        self._speed = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt and self._bar.tasks:
            task = self._bar.tasks[-1]
            done = f"{task.completed} of {task.total} samples of {task.description}"
            echo(f"stopped at {done}, all stored; the same command goes on from there", err=True)

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar.disable:
            echo(line, err=True)
        else:
            self._bar.console.print(harmless(line), style="dim", markup=False, highlight=False)

    def start(self, task: str, finished: int, planned: int) -> None:
        """Begin a task, of whose ``planned`` samples ``finished`` are stored already."""
        self._graded = self._correct = 0
        if finished:
            self.note(f"{task}: {finished} of {planned} samples are stored already")
        self._bar.add_task(task, total=planned, completed=finished, figures="")

    def tokens(self, tokens: Sequence[object]) -> None:
        """Count new tokens."""
        self._tokens += len(tokens)
        now = time.monotonic()
        if now - self._speed_since >= (_SECONDS_OF_SPEED if self._speed else 1.0):
            self._speed = self._tokens / (now - self._speed_since)
            self._tokens, self._speed_since = 0, now
            self._show(0)
        if self._bar.disable and now - self._line_since >= _SECONDS_BETWEEN_LINES:
            self._line_since, task = now, self._bar.tasks[-1]
            self.note(f"{task.description}: {task.completed} of {task.total} samples, {self._figures()}")

    def sample(self, sample: "Sample | None") -> None:
        """Count a stored text; None for one that is only measured."""
        self._show(1)

    def grade(self, sample: "Sample") -> None:
        """Count the grade of a stored text."""
        self._graded += 1
        self._correct += sample.grade == "correct"
        self._show(0)

    def stopped(self, stored: int) -> None:
        """Count what is stored of a task that ends early."""
        self._bar.update(self._bar.tasks[-1].id, completed=stored)

    def _show(self, advance: int) -> None:
        self._bar.update(self._bar.tasks[-1].id, advance=advance, figures=self._figures())

    def _figures(self) -> str:
        accuracy = f"{self._correct / self._graded:.0%} right so far, " if self._graded else ""
        return f"{accuracy}{self._speed:,.0f} tokens/s"
