"""Text on stdout while ``vase run`` makes it."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from vase_cli.cli.output import echo, print_json
from vase_cli.device import readable_bytes
from vase_cli.reports.characters import harmless

if TYPE_CHECKING:
    from vase_cli.engine.requests import NewToken
    from vase_cli.runs.schema import Sample

_SECONDS_BETWEEN_STATUS = 0.25

Decode: TypeAlias = Callable[[Sequence[int]], str]


class RunOutput:
    """Progress of a run: print each sample as a line of JSON when it is finished.

    ``printed`` holds the ids of the samples that are printed, ``failed`` the number of prompts that ended in an error.
    """

    def __init__(self) -> None:
        self.printed: set[str] = set()
        self.failed = 0

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Enter this around the run."""
        return contextlib.nullcontext()

    def note(self, line: str) -> None:
        """Print a line about the run on stderr: a warning always, any other on a terminal only."""
        if sys.stderr.isatty() or line.startswith("warning"):
            echo(line, err=True)

    def start(self, task: str, finished: int, planned: int) -> None:
        """Begin a task; the base prints nothing."""

    def tokens(self, tokens: "Sequence[NewToken]") -> None:
        """Take new tokens of some requests; the base prints nothing."""

    def sample(self, sample: "Sample | None") -> None:
        """Print a text that is finished, now or by an earlier run."""
        assert sample is not None  # None is for texts that are only measured
        self.printed.add(sample.id)
        if sample.error:
            self.failed += 1
            echo(f"vase: {sample.error}", err=True)
        self._print(sample)

    def grade(self, sample: "Sample") -> None:
        """Prompts have no right answers."""

    def stopped(self, stored: int) -> None:
        """What is printed says how far it came."""

    def _print(self, sample: "Sample") -> None:
        print_json(sample.text_line())


class OrderedTexts(RunOutput):
    """Print texts in the order of ``ids``, each as soon as those before it are printed."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__()
        self._waiting = list(ids)
        self._texts: dict[str, str] = {}

    def _print(self, sample: "Sample") -> None:
        self._texts[sample.id] = sample.text
        while self._waiting and self._waiting[0] in self._texts:
            echo(self._texts.pop(self._waiting.pop(0)))


class StreamedText(RunOutput):
    """Print one text while it is generated."""

    def __init__(self, decode: Decode) -> None:
        from vase_cli.models.tokenizer import TextStream

        super().__init__()
        self._stream = TextStream(decode)
        self._count = 0

    def tokens(self, tokens: "Sequence[NewToken]") -> None:
        """Print the text that these tokens make certain."""
        self._count += len(tokens)
        for token in tokens:
            self._write(self._stream.add(token.token_id))

    def _print(self, sample: "Sample") -> None:
        self._write((self._stream.finish() if self._count else sample.text) + "\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class TerminalText(StreamedText):
    """Print one text that grows above a live line of figures, dimmed between the think tags.

    ``thinking`` says that the prompt has opened ``<think>``; ``budget`` is in tokens per KV head, None for the full
    cache; ``memory_bytes``, called a few times a second, returns the memory in use.
    """

    def __init__(self, decode: Decode, *, thinking: bool, budget: int | None, memory_bytes: Callable[[], int]) -> None:
        super().__init__(decode)
        self._thinking, self._budget, self._memory_bytes = thinking, budget, memory_bytes
        self._started = self._refreshed = 0.0
        self._figures = self._pending = ""
        self._line = Text()
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live line; it goes at the end, and the last line of the text stays."""
        self._live.start()
        try:
            yield
        finally:
            self._append(self._pending)
            self._live.stop()
            if self._line.plain:
                self._console.print(self._line, soft_wrap=True)

    def start(self, task: str, finished: int, planned: int) -> None:
        """Start the clock."""
        self._started = time.monotonic()

    def tokens(self, tokens: "Sequence[NewToken]") -> None:
        """Print the text that these tokens make certain, and from time to time the figures."""
        super().tokens(tokens)
        now = time.monotonic()
        if now - self._refreshed >= _SECONDS_BETWEEN_STATUS:
            self._refreshed = now
            budget = "" if self._budget is None else f"/{self._budget:,}"
            row, memory = tokens[-1], readable_bytes(self._memory_bytes())
            self._figures = (
                f"{self._count:,} tokens, {self._count / max(now - self._started, 1e-9):,.1f} tokens/s, "
                f"{row.cached_tokens:,}{budget} cached, {row.cuts} cuts, {memory}"
            )
            self._refresh()

    def _write(self, text: str) -> None:
        self._pending += text
        while (tag := "</think>" if self._thinking else "<think>") in self._pending:
            before, self._pending = self._pending.split(tag, 1)
            self._append(before)
            self._thinking = True  # for either tag is dimmed
            self._append(tag)
            self._thinking = tag == "<think>"
        # A tag may be cut between two pieces of text: what could be its beginning waits.
        keep = max((size for size in range(1, len(tag)) if self._pending.endswith(tag[:size])), default=0)
        ready = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(ready) :]
        self._append(ready)
        self._refresh()

    def _append(self, text: str) -> None:
        self._line.append(harmless(text), style="dim" if self._thinking else "")
        if "\n" in text:
            *whole, self._line = self._line.split(allow_blank=True)
            for line in whole:
                self._console.print(line, soft_wrap=True)

    def _refresh(self) -> None:
        # Of a line longer than the screen the tail is shown; at the end it is printed whole.
        tail = self._line[-self._console.width * max(self._console.height - 2, 1) // 2 :]
        self._live.update(Group(tail, Text(self._figures, style="reverse", no_wrap=True)))
