"""The ``vase`` command: parse, call, print. The module of a command is imported when the command is called."""

import atexit
import contextlib
import errno
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

import vase_cli
from vase_cli.errors import VaseError
from vase_cli.reports.characters import harmless

EXIT_INTERRUPTED = 130
_OTHER_SIGNALS = ("SIGTERM", "SIGHUP")  # that end a process, and are treated as Ctrl-C

# What a write to a stream says; on a file of the user's the errors module has made a message of it.
_OUTPUT_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

# Typer does not export it, and the package it comes from depends on Typer's version.
_UsageError: Any = typer.BadParameter.__base__

# At exit Python searches every object for cycles: a fifth of the time of `vase --help`, unless they are frozen first.
atexit.register(gc.freeze)

# In the order of the help. The module of the same name has a function of that name, or a Typer `app` of several.
COMMANDS = {
    "run": "Generate text for one prompt, or for each prompt of a file.",
    "eval": "Evaluate a model on tasks, under one eviction method and budget or several side by side.",
    "bench": "Measure decoding: every method at every budget, number of slots and length of text.",
    "calibrate": "Measure a model's value states, and fit the thresholds above which a token is an outlier.",
    "grade": "Grade the stored texts of a run again, without a model; a copy of the old grades is kept.",
    "doctor": "Check Python, PyTorch, the device, FlashAttention, the hub, and say which recipes fit this machine.",
    "methods": "List eviction methods, or show one's options.",
    "tasks": "List the benchmarks, or show one.",
    "zoo": "List models, show one, check or copy their files.",
    "recipes": "List recipes, show one resolved, check or copy their files.",
}


def load_command(name: str) -> Any:
    """Import the command of this name, as Typer runs it."""
    identifier = {"eval": "evaluate"}.get(name, name)  # eval is Python's own
    module = importlib.import_module(f"vase_cli.cli.{identifier}")
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name)(getattr(module, identifier))
    return typer.main.get_command(single)


class LazyGroup(TyperGroup):
    """Commands as the help lists them; one that is called is imported then."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=summary) for name, summary in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that the arguments name."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(str(name)), rest


# A --help without a default makes Typer import pydantic to check it: half the time of `vase methods list`.
_NO_HELP = {"help": False, "methods": {"help": False, "list": {"help": False}}}

app = typer.Typer(
    cls=LazyGroup,
    help="Run and study reasoning models with a small KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "default_map": _NO_HELP},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vase {vase_cli.__version__}")
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")


@app.callback()
def _options(version: Annotated[bool, _VERSION] = False) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 if the run failed, 2 for a mistake in the input, 130 on Ctrl-C.

    SIGTERM and SIGHUP end a run as Ctrl-C does, with 143 and 129.
    """
    with _other_signals_as_ctrl_c() as stopped_by:
        _main(arguments, stopped_by)


def _main(arguments: Sequence[str] | None, stopped_by: Sequence[int]) -> NoReturn:
    # Python has None for a stream that was closed before it started, and the next file would take its descriptor.
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - likewise
    if sys.stdout is None:
        _fail("stdout is closed; leave it open, or send it to a file or to /dev/null", 1)
    if len(os.environ.get("COLUMNS", "")) > len("99999"):  # what prints the help would make lines of so many blanks
        del os.environ["COLUMNS"]
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="vase", standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # what Typer makes of a Ctrl-C inside a command
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(code or 0)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or _of_an_interrupt(error):
            number = stopped_by[0] if stopped_by else signal.SIGINT
            _fail(f"stopped by {signal.Signals(number).name}" if stopped_by else "interrupted", 128 + number)
        _report(error)


def _of_an_interrupt(error: BaseException | None) -> bool:
    """Whether an error comes of a Ctrl-C during an import, of which some libraries make an ImportError."""
    importing = False
    while error is not None and not isinstance(error, KeyboardInterrupt):
        importing |= isinstance(error, ImportError)
        error = error.__cause__ or error.__context__
    return importing and error is not None


def _report(error: Exception) -> NoReturn:
    """Exit with the line that an error is worth; one that is a bug is raised again."""
    try:
        raise error
    except VaseError as error:
        _fail(str(error), error.exit_code)
    except _UsageError as error:
        # Typer prints a box of many lines. Where no message is left, it has printed the help.
        message = error.format_message().rstrip(".")
        command = error.ctx.command_path if error.ctx else "vase"
        _fail(f"{message} (see {command} --help)" if message else "", error.exit_code)
    except BrokenPipeError:  # the reader of stdout went away
        _discard(sys.stdout)
        sys.exit(1)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES) and error.filename is not None:
            _fail(f"cannot look at {error.filename}: {error.strerror}; name another path", 2)
        if error.errno not in _OUTPUT_FAULTS or error.filename is not None:
            raise
        _discard(sys.stdout)
        _fail(f"cannot write to stdout: {error.strerror}; free some space, or send it elsewhere", 1)


@contextlib.contextmanager
def _other_signals_as_ctrl_c() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt for other signals that would kill this process, and note which came.

    One that comes while the first is dealt with is ignored.
    """
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in _OTHER_SIGNALS if hasattr(signal, name)]  # Windows has no SIGHUP
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number in numbers if before[number] == signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in ours:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _discard(stream: TextIO) -> None:
    """Send what Python would still flush to a stream that takes nothing more to nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, exit_code: int) -> NoReturn:
    try:
        if message:
            typer.echo(harmless(f"vase: {' '.join(message.split())}"), err=True)
    except OSError:
        _discard(sys.stderr)
    sys.exit(exit_code)
