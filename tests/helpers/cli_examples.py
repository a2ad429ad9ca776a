"""Calling the command line in this process, and problem files for it."""

import contextlib
import json
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vase_cli.cli.app import main

# A small cache that is cut often, and short texts.
SMALL = ("--budget", "16", "--window", "4", "-o", "n_large=4", "--max-new-tokens", "12", "--slots", "3")


@dataclass(frozen=True)
class Outcome:
    """What a command did: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """stdout's lines, of a command that went well."""
        assert self.code == 0, self.err
        return self.out.splitlines()


class Shell:
    """Calls ``vase`` in this process, in an empty folder and a home without settings."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Outcome(int(exit_info.value.code or 0), out, err)

    def refused(self, *arguments: object) -> str:
        """The message of a command that must be refused in one line and leave nothing behind."""
        before = files_under(Path.cwd())
        outcome = self(*arguments)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        (line,) = outcome.err.splitlines()
        assert line.startswith("vase: ") and "Traceback" not in line
        assert files_under(Path.cwd()) == before
        return line.removeprefix("vase: ")


def help_words(shell: Shell, command: str) -> str:
    """What ``--help`` of a command says, its words without the boxes and columns."""
    return " ".join(word for word in shell(command, "--help").out.split() if word not in "│╭╰")


def open_shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell in an empty folder, which is the working folder from here on."""
    torch.set_num_threads(1)  # for so small models more threads only wait for each other
    for name in [name for name in os.environ if name.startswith("VASE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    return Shell(capsys)


def files_under(folder: Path) -> set[Path]:
    """Every file and folder under a folder."""
    return set(folder.rglob("*"))


def clean_environment(folder: Path) -> dict[str, str]:
    """The environment of a user without settings, for a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VASE_")}
    return kept | {
        "HOME": str(folder),
        "HF_HUB_CACHE": str(folder / "hub"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
        "TERM": "xterm-256color",
    }


def problem_rows(count: int) -> list[dict[str, Any]]:
    """Rows with questions of very different lengths."""
    return [
        {"id": f"p{index}", "question": f"What is {index} plus {'1' * (1 + 9 * index % 40)}?", "answer": str(index % 3)}
        for index in range(count)
    ]


def write_rows(path: Path, rows: Sequence[object]) -> Path:
    """A .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The texts of a run folder in their order, each with its grade."""
    grades = {grade["id"]: grade for grade in read_jsonl(folder / "grades.jsonl")}
    return [{**text, **grades[text["id"]]} for text in read_jsonl(folder / "completions.jsonl")]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def only_run(out: Path) -> Path:
    """The one run folder of a folder of runs."""
    (folder,) = out.iterdir()
    return folder


def poisoned(model: Path, folder: Path, character: str) -> Path:
    """A copy of a model that has no finite state for one character."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    token = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"][character]
    weights["model.embed_tokens.weight"][token] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@contextlib.contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, stream: str, *, columns: int = 200, rows: int = 24
) -> Iterator[list[str]]:
    """Makes sys.stdout or sys.stderr a terminal; the list holds all that was written to it when this ends."""
    termios = pytest.importorskip("termios", reason="needs a terminal of POSIX")
    written: list[str] = []
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (rows, columns))
    chunks: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with monkeypatch.context() as patch, open(theirs, "w", encoding="utf-8") as file:
            for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
                patch.delenv(name, raising=False)
            patch.setenv("TERM", "xterm-256color")
            patch.setattr(sys, stream, file)
            yield written
    finally:
        reader.join()
        os.close(ours)
        written.append(b"".join(chunks).decode().replace("\r\n", "\n"))


def a_device(kind: str, available_bytes: int, description: str) -> Callable[[object], SimpleNamespace]:
    """What stands for :class:`vase_cli.device.Device`, whatever device is asked for."""
    return lambda device: SimpleNamespace(type=kind, available_bytes=lambda: available_bytes, description=description)
