"""Text as it is made: whole characters in a pipe, a dimmed thought and a live line on a terminal."""

import itertools
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.cli_examples import Shell, open_shell, terminal
from helpers.run_examples import a_sample
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vase_cli.cli import streaming
from vase_cli.cli.streaming import TerminalText
from vase_cli.engine.requests import NewToken, Request
from vase_cli.models.tokenizer import TextStream

PAUSE = "\x1b[59m"  # a control sequence that changes nothing here

Decode = Callable[[Sequence[int]], str]


def byte_level() -> tuple[Tokenizer, Decode]:
    """One token a byte, so that most characters beyond ASCII are several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, lambda ids: tokenizer.decode(list(ids))


def streamed(decode: Decode, ids: Sequence[int]) -> list[str]:
    stream = TextStream(decode)
    return [*(stream.add(token_id) for token_id in ids), stream.finish()]


TEXT = "Größe: 5 €, 也就是说 🙂👩‍👩‍👧 e\u0301 \u2028 ἀρετή\n\n終"


def test_a_character_of_several_tokens_comes_whole() -> None:
    tokenizer, decode = byte_level()
    ids = tokenizer.encode(TEXT).ids
    assert len(ids) == len(TEXT.encode())
    pieces = streamed(decode, ids)
    assert [piece for piece in pieces if piece] == list(TEXT)
    # At once, with the character's last byte.
    assert pieces[ids.index(tokenizer.encode("€").ids[0]) + 2] == "€"


def test_bytes_that_are_no_text_are_kept() -> None:
    _, decode = byte_level()
    rng = random.Random(5)
    for _ in range(200):
        ids = [rng.randrange(256) for _ in range(rng.randrange(30))]
        assert "".join(streamed(decode, ids)) == decode(ids)


def test_a_cut_character_at_the_end_comes_with_the_end() -> None:
    tokenizer, decode = byte_level()
    pieces = streamed(decode, tokenizer.encode("a🙂").ids[:-1])
    assert pieces[:4] == ["a", "", "", ""] and pieces[-1].startswith("\ufffd")


def test_blanks_between_words_stay_where_a_text_starts_without_one() -> None:
    words = ["▁Hello", "▁big", "▁world", "s"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="s"))
    tokenizer.decoder = decoders.Metaspace()

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    assert decode([2]) == "world"
    assert streamed(decode, [0, 1, 2, 3]) == ["Hello", " big", " world", "s", ""]


# --- on a terminal ------------------------------------------------------------------------------------------


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return open_shell(tmp_path, monkeypatch, capsys)


@dataclass(frozen=True)
class Screen:
    """What a terminal shows after all it was sent; a letter is in ``dim`` where it is dimmed, else a blank."""

    text: str
    dim: str


_SENT = re.compile(r"\x1b\[(?P<numbers>[0-9;?]*)(?P<command>[A-Za-z])|(?P<letter>[^\x1b])")


def screen(written: str) -> Screen:
    """Follows the few control sequences that are sent; lines do not wrap."""
    rows: list[dict[int, tuple[str, bool]]] = [{}]
    row = column = 0
    dim = False
    for sent in _SENT.finditer(written):
        numbers = sent["numbers"]
        if sent["command"] == "A":
            row -= int(numbers)
        elif sent["command"] == "K":
            assert numbers == "2"
            rows[row] = {}
        elif sent["command"] == "m":
            dim = numbers == "2"
        elif sent["letter"] == "\r":
            column = 0
        elif sent["letter"] == "\n":
            row, column = row + 1, 0
            rows += [{}] * (row == len(rows))
        elif sent["letter"]:
            rows[row][column] = (sent["letter"], dim)
            column += 1
    cells = [[line.get(column, (" ", False)) for column in range(max(line, default=-1) + 1)] for line in rows]
    shown = ["".join(letter for letter, _ in line) for line in cells]
    dimmed = ["".join(letter if faint else " " for letter, faint in line).rstrip() for line in cells]
    return Screen("\n".join(shown), "\n".join(dimmed))


def show(
    monkeypatch: pytest.MonkeyPatch, *pieces: str, thought_open: bool = False, columns: int = 200, pause_s: float = 0.0
) -> str:
    """What a terminal is sent for a text of these pieces; ``PAUSE`` stands where all pieces were there for a while."""
    with terminal(monkeypatch, "stdout", columns=columns) as written:
        output = TerminalText(
            lambda ids: "".join(pieces[number] for number in ids),
            thinking=thought_open,
            budget=64,
            memory_bytes=lambda: 3 * 2**20,
        )
        with output.shown():
            output.start("prompts", 0, 1)
            for number in range(len(pieces)):
                output.tokens([NewToken(Request("a", (1,), "a"), number, 7, 0)])
            time.sleep(pause_s)
            os.write(sys.stdout.fileno(), PAUSE.encode())
            output.sample(a_sample(id="a", text="".join(pieces)))
    return written[0]


@pytest.mark.parametrize(
    ("pieces", "thought_open", "thought"),
    [
        (["Well <th", "ink>deep", " down</thi", "nk>out"], False, "<think>deep down</think>"),
        (["deep", "</think>", "out"], True, "deep</think>"),
        (["a < b and ", "b <= c, <think or not"], False, ""),
        (["<think>", "never closed"], False, "<think>never closed"),
        (["<think>x</think>y<think>z</think>w"], False, "<think>x</think><think>z</think>"),
    ],
)
def test_a_thought_is_dimmed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str], thought_open: bool, thought: str
) -> None:
    written = show(monkeypatch, *pieces, thought_open=thought_open)
    assert screen(written).text.rstrip("\n") == "".join(pieces)
    assert "".join(screen(written).dim.split()) == "".join(thought.split())


def test_a_text_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = show(monkeypatch, "a\x1b]0;title\x07b\n", "<think>\x9b2J\u202ec\r</think>\td\x00\u200de")
    assert "a␛]0;title␇b" in written and not set("\x07\x9b\u202e\x00") & set(written) and "\x1b]" not in written
    assert "\\u{9b}2J\\u{202e}c␍" in written and "d␀\u200de" in written


def test_lines_stay_and_the_live_line_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()  # a second passes at every look
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    written = show(monkeypatch, "one\n", "<think>two\nthree", "\nfour</think>\n\n", "five")
    assert re.search(r"\x1b\[7m4 tokens, [\d,.]+ tokens/s, 7/64 cached, 0 cuts, 3\.0 MiB", written)
    assert screen(written).text.rstrip("\n") == "one\n<think>two\nthree\nfour</think>\n\nfive"
    assert screen(written).dim.rstrip("\n") == "\n<think>two\nthree\nfour</think>"


def test_of_a_line_longer_than_the_screen_the_end_is_shown_and_all_of_it_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [f"w{number} " for number in range(1500)]
    written = show(monkeypatch, *words, columns=40, pause_s=0.4)
    assert screen(written).text.replace("\n", "") == "".join(words)
    while_made = screen(written.partition(PAUSE)[0])
    assert "w1499" in while_made.text
    assert len(while_made.text.splitlines()) <= 24


def test_run_on_a_terminal(vase: Shell, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: tuple[Any, ...] = (
        "run", "--raw", "How much is 2+2? <think>", "--model", model_folder("qwen3"), "--temperature", "0",
        "--budget", "16", "--window", "4", "-o", "n_large=4", "--max-new-tokens", "40",
    )  # fmt: skip
    text = vase(*arguments).out
    with terminal(monkeypatch, "stdout") as written:
        outcome = vase(*arguments)
    assert outcome.code == 0
    shown = screen(written[0])
    assert shown.text.rstrip("\n") == text.rstrip("\n")
    # The prompt has opened the thought.
    thought, closed, _ = text.partition("</think>")
    assert "".join(shown.dim.split()) == "".join((thought + closed).split())
    assert re.search(r"\d+ tokens, [\d,.]+ tokens/s, \d+/16 cached, \d+ cuts, [\d,.]+ [MG]iB", written[0])
