"""The ``vase`` command: parse, call, print. Heavy imports wait until a command needs them."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

import vase_cli
from vase_cli.cli import bench, calibrate, doctor, evaluate, grade, methods, recipes, run, tasks, zoo
from vase_cli.errors import VaseError

EXIT_INTERRUPTED = 130

# Not exported; which package it is from depends on Typer's version.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    help="Run and study reasoning models with a small KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("eval")(evaluate.evaluate)
app.command("bench")(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.command("grade")(grade.grade)
app.command("doctor")(doctor.doctor)
app.add_typer(methods.app, name="methods")
app.add_typer(tasks.app, name="tasks")
app.add_typer(zoo.app, name="zoo")
app.add_typer(recipes.app, name="recipes")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vase {vase_cli.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run and study reasoning models with a small KV cache."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for a run that failed, 2 for what the user gave, 130 on Ctrl-C."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="vase", standalone_mode=False)
        # Typer has met a Ctrl-C inside a command and made a code of it.
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(code or 0)
    except VaseError as error:
        _fail(str(error), error.exit_code)
    except _UsageError as error:
        # Typer prints a box of many lines. Where no message is left, it has printed the help.
        message = error.format_message().rstrip(".")
        command = error.ctx.command_path if error.ctx else "vase"
        _fail(f"{message} (see {command} --help)" if message else "", error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of stdout went away; what Python would still flush has nowhere to go.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, exit_code: int) -> NoReturn:
    if message:
        typer.echo(f"vase: {' '.join(message.split())}", err=True)
    sys.exit(exit_code)
