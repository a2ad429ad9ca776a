"""Text on stdout while ``vase run`` makes it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from vase_cli.engine.engine import Engine
    from vase_cli.engine.requests import Request
    from vase_cli.runs.schema import Sample

_SECONDS_BETWEEN_STATUS = 0.25


class TextStream:
    """Turns token ids into text piece by piece; a character of several tokens comes whole.

    ``decode`` turns ids into text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = self._read = 0

    def add(self, token_id: int) -> str:
        """The text that became certain with this token."""
        self._ids.append(token_id)
        text = self._decode(self._ids[self._start :])
        return "" if text.endswith("\ufffd") else self._advance(text)

    def finish(self) -> str:
        """What is left, whole characters or not."""
        return self._advance(self._decode(self._ids[self._start :]))

    def _advance(self, text: str) -> str:
        # Decoded with the piece before it: some tokenizers write a token differently at the start of a text.
        new = text[len(self._decode(self._ids[self._start : self._read])) :]
        self._start, self._read = self._read, len(self._ids)
        return new


class RunOutput:
    """Prints a run's texts: one prompt as it is made, several in the order of the prompts, or JSON as they finish.

    Args:
        ids: the requests' ids in the order of the prompts.
        decode: turns token ids into text.
        as_json: one JSON object a line.
        thought_open: the prompt already opened ``<think>``, where there is one prompt.
        memory_bytes: memory in use, asked now and then.
        budget: tokens per KV head, None for the full cache.
    """

    def __init__(
        self,
        ids: Sequence[str],
        decode: Callable[[Sequence[int]], str],
        *,
        as_json: bool,
        thought_open: bool,
        memory_bytes: Callable[[], int],
        budget: int | None,
    ) -> None:
        self._ids = tuple(ids)
        self._waiting = list(ids)
        self._seen: set[str] = set()
        self._texts: dict[str, str] = {}
        self._as_json = as_json
        self._memory_bytes = memory_bytes
        self._budget = budget
        self._stream = TextStream(decode) if len(ids) == 1 and not as_json else None
        self._terminal = _Terminal(thought_open) if self._stream and sys.stdout.isatty() else None
        self._engine: Engine | None = None
        self._started = self._shown = 0.0
        self._count = 0
        self.failed = 0

    def __enter__(self) -> Self:
        if self._terminal:
            self._terminal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            self._terminal.stop()

    def note(self, line: str) -> None:
        """A line about the run: on stderr, and only for a person, but for a warning."""
        if sys.stderr.isatty() or line.startswith("warning"):
            typer.echo(line, err=True)

    def start(self, task: str, finished: int, planned: int, engine: "Engine | None") -> None:
        """Generation begins."""
        self._engine = engine
        self._started = time.monotonic()

    def tokens(self, tokens: Sequence[tuple["Request", int]]) -> None:
        """New tokens: text at once if there is one prompt."""
        self._count += len(tokens)
        if self._stream is not None:
            for _, token_id in tokens:
                self._write(self._stream.add(token_id))
        now = time.monotonic()
        if self._terminal and now - self._shown >= _SECONDS_BETWEEN_STATUS:
            self._shown = now
            self._terminal.status(self._status(now))

    def sample(self, sample: "Sample | None") -> None:
        """A text is finished."""
        assert sample is not None
        self._seen.add(sample.id)
        if sample.error:
            self.failed += 1
            typer.echo(f"vase: {sample.error}", err=True)
        if self._as_json:
            typer.echo(json.dumps(dict(sample), ensure_ascii=False))
        elif self._stream is not None:
            self._write(self._stream.finish() + "\n")
        else:
            self._texts[sample.id] = sample.text
            while self._waiting and self._waiting[0] in self._texts:
                typer.echo(self._texts.pop(self._waiting.pop(0)))

    def unseen(self) -> list[str]:
        """Ids of the texts that were not generated now: an earlier run stored them."""
        return [identifier for identifier in self._ids if identifier not in self._seen]

    def stored(self, sample: "Sample") -> None:
        """A text that an earlier run stored."""
        if self._stream is not None:
            self._write(sample.text)
        self.sample(sample)

    def _write(self, text: str) -> None:
        if self._terminal:
            self._terminal.write(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _status(self, now: float) -> str:
        from vase_cli.device import readable_bytes

        held = next(iter(self._engine.held().values()), (0, 0)) if self._engine else (0, 0)
        speed = self._count / max(now - self._started, 1e-9)
        budget = f"/{self._budget:,}" if self._budget is not None else ""
        return (
            f"{self._count:,} tokens, {speed:,.1f} tokens/s, {held[0]:,}{budget} cached, {held[1]} cuts, "
            f"{readable_bytes(self._memory_bytes())}"
        )


class _Terminal:
    """Text that grows above one live line; what is between ``<think>`` and ``</think>`` is dimmed."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking
        self._pending = ""
        self._line: Any = None
        self._status = ""
        self._console: Console | None = None
        self._live: Live | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._line = Text()
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def stop(self) -> None:
        if self._live and self._console:
            self._append(self._pending)
            self._pending = ""
            self._live.stop()
            if self._line.plain:
                self._console.print(self._line, soft_wrap=True)

    def status(self, text: str) -> None:
        self._status = text
        self._refresh()

    def write(self, text: str) -> None:
        self._pending += text
        while (tag := "</think>" if self._thinking else "<think>") in self._pending:
            before, self._pending = self._pending.split(tag, 1)
            self._append(before + tag, thinking=True) if self._thinking else self._append(before)
            if not self._thinking:
                self._append(tag, thinking=True)
            self._thinking = not self._thinking
        # A tag may be cut between two pieces of text: what could be its beginning waits.
        keep = max((size for size in range(1, len(tag)) if self._pending.endswith(tag[:size])), default=0)
        ready = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(ready) :]
        self._append(ready)
        self._refresh()

    def _append(self, text: str, *, thinking: bool | None = None) -> None:
        style = "dim" if (self._thinking if thinking is None else thinking) else ""
        *whole, rest = text.split("\n")
        for line in whole:
            self._line.append(line, style=style)
            if self._console:
                self._console.print(self._line, soft_wrap=True)
            self._line = type(self._line)()
        self._line.append(rest, style=style)

    def _refresh(self) -> None:
        from rich.console import Group
        from rich.text import Text

        if self._live and self._console:
            # Of a line longer than the screen the end is what one wants to see; stop() prints it whole.
            tail = self._line[-self._console.width * max(self._console.height - 2, 1) // 2 :]
            self._live.update(Group(tail, Text(self._status, style="reverse", no_wrap=True)))
