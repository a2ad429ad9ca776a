"""``vase run`` as a user meets it."""

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.cli_examples import Shell, only_run, open_shell, poisoned, read_jsonl

from vase_cli.engine import factory
from vase_cli.runs.schema import SampleText

RUNS = Path("runs")
# What the chat template adds to a prompt: two tags and a line end, one token each.
ADDED = 3


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return open_shell(tmp_path, monkeypatch, capsys)


@pytest.fixture
def model(model_folder: Callable[..., Path]) -> Path:
    return model_folder("qwen3")


def options(model: Path, *more: object) -> tuple[object, ...]:
    """A small greedy run under a method that draws nothing; later options win."""
    small = ("--budget", "16", "--window", "4", "--max-new-tokens", "12", "--slots", "3")
    return ("--model", model, "--temperature", "0", "--method", "streaming", *small, *more)


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def texts(vase: Shell, model: Path, *prompts: str) -> list[str]:
    """The text of each prompt, one at a time."""
    return [json.loads(vase("run", prompt, *options(model, "--json")).out)["text"] for prompt in prompts]


# --- where prompts come from --------------------------------------------------------------------------------


def test_one_prompt_gives_its_text_and_nothing_else(vase: Shell, model: Path) -> None:
    (text,) = texts(vase, model, "hello")
    assert len(text) > 3
    outcome = vase("run", "hello", *options(model))
    assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("content", [b"hello", b"hello\n", b"hello\r\n", b"\xef\xbb\xbfhello\n"])
def test_stdin_gives_the_same_as_an_argument(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    stdin(monkeypatch, content)
    record = json.loads(vase("run", *options(model, "--json")).out)
    assert record["prompt_tokens"] == len("hello") + ADDED
    assert [record["text"]] == texts(vase, model, "hello")


def test_a_prompt_of_several_lines_is_one_prompt(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"one\n\ntwo\n\n")
    record = json.loads(vase("run", *options(model, "--json")).out)
    assert record["prompt_tokens"] == len("one\n\ntwo\n") + ADDED


PROMPTS = ["hello", "a much longer prompt about nothing at all", "x", "what is 1 + 1?", "(\\boxed{})"]


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(PROMPTS).encode(),
        ("\ufeff" + "\r\n".join(PROMPTS) + "\r\n").encode(),
        ("\n\n  \n" + "\n \n".join(PROMPTS) + "\n\n").encode(),
    ],
)
def test_texts_of_a_file_come_in_its_order(vase: Shell, model: Path, content: bytes) -> None:
    Path("prompts.txt").write_bytes(content)
    expected = texts(vase, model, *PROMPTS)
    assert len(set(expected)) == len(PROMPTS)
    lines = vase("run", "--input", "prompts.txt", *options(model, "--json")).lines()
    finished = [json.loads(line)["id"] for line in lines]
    assert finished != sorted(finished), "they finish in their order: nothing is put in order"
    outcome = vase("run", "--input", "prompts.txt", *options(model))
    assert outcome.out == "".join(text + "\n" for text in expected)


def test_only_a_line_end_ends_a_prompt(vase: Shell, model: Path) -> None:
    Path("prompts.txt").write_text("one\u2028two\x0cthree\x85four\nfive\n")
    records = [json.loads(line) for line in vase("run", "--input", "prompts.txt", *options(model, "--json")).lines()]
    assert sorted(record["prompt_tokens"] - ADDED for record in records) == [4, 18]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.json"])
def test_a_json_file_gives_the_prompts_of_its_objects(vase: Shell, model: Path, name: str) -> None:
    rows = [{"prompt": "one"}, {"question": "four"}, {"id": 7, "prompt": "line\nbreak", "question": "not this"}]
    lines = json.dumps(rows, indent=1) if name.endswith(".json") else "\r\n".join(map(json.dumps, rows))
    Path(name).write_bytes(b"\xef\xbb\xbf" + lines.encode())
    records = [json.loads(line) for line in vase("run", "--input", name, *options(model, "--json")).lines()]
    records.sort(key=lambda record: record["id"])
    assert [record["prompt_tokens"] - ADDED for record in records] == [3, 4, 10]


# --- what is printed and stored -----------------------------------------------------------------------------


def test_json_gives_one_record_for_each_prompt(vase: Shell, model: Path) -> None:
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    outcome = vase("run", "--input", "prompts.txt", *options(model, "--json", "--seed", "3"))
    records = [json.loads(line) for line in outcome.lines()]
    assert all(list(record) == list(SampleText.model_fields) for record in records)
    assert sorted(record["id"] for record in records) == [f"prompts/{index}/0" for index in range(5)]
    by_prompt = sorted(records, key=lambda record: record["id"])
    assert [record["prompt_tokens"] - ADDED for record in by_prompt] == [len(prompt) for prompt in PROMPTS]
    for record in records:
        assert (record["gold"], record["seed"]) == ("", 3)
        assert record["cached_tokens"] <= 20


def test_out_stores_the_texts_and_prints_them_again_without_generating(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    first = vase("run", "--input", "prompts.txt", *options(model, "--out", "runs"))
    folder = only_run(RUNS)
    assert f"run folder: {folder}" in first.err
    records = read_jsonl(folder / "completions.jsonl")
    assert first.out == "".join(
        record["text"] + "\n" for record in sorted(records, key=lambda record: record["problem_id"])
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] and summary["overall"]["accuracy"] is None
    assert json.loads((folder / "run.json").read_text())["budgets"] == {"prompts": "16 tokens, as given"}

    monkeypatch.setattr(factory, "load", None)
    assert vase("run", "--input", "prompts.txt", *options(model, "--out", "runs")).out == first.out
    again = vase("run", "--input", "prompts.txt", *options(model, "--out", "runs", "--json"))
    assert sorted(json.loads(line)["id"] for line in again.lines()) == sorted(record["id"] for record in records)


def test_one_stored_text_is_printed_again(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = vase("run", "hello", *options(model, "--out", "runs"))
    monkeypatch.setattr(factory, "load", None)
    again = vase("run", "hello", *options(model, "--out", "runs"))
    assert (again.code, again.out) == (0, first.out)
    assert len(first.out) > 3


def test_a_stored_part_goes_on(vase: Shell, model: Path) -> None:
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    first = vase("run", "--input", "prompts.txt", *options(model, "--out", "runs"))
    path = only_run(RUNS) / "completions.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert vase("run", "--input", "prompts.txt", *options(model, "--out", "runs")).out == first.out


def test_raw_gives_the_prompt_as_it_is(vase: Shell, model: Path, tmp_path: Path) -> None:
    def prompt_tokens(folder: Path, *more: object) -> int:
        return int(json.loads(vase("run", "hello", *options(folder, "--json", *more)).out)["prompt_tokens"])

    assert prompt_tokens(model) == len("hello") + ADDED
    assert prompt_tokens(model, "--raw") == len("hello")
    assert prompt_tokens(model, "--system", "Be.") == len("hello") + ADDED + len("Be.") + 2
    assert prompt_tokens(model, "--no-think") == len("hello") + ADDED + len("\n\n\n\n") + 2

    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    assert prompt_tokens(bare, "--raw") == len("hello")


def test_a_model_without_a_template_is_refused_before_its_weights(vase: Shell, model: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(model, tmp_path / "bare")
    for file in ("chat_template.jinja", "model.safetensors"):
        (bare / file).unlink()
    refusal = "bare has no chat template: add --raw to give prompts as they are"
    assert vase.refused("run", "hello", *options(bare)) == refusal
    assert vase.refused("run", "hello", *options(bare, "--out", "runs", "--system", "Be brief.")) == refusal


def test_a_thought_that_the_prompt_opens_is_recorded(vase: Shell, model: Path) -> None:
    for prompt, opened in (("why? <think>", True), ("why?", False), ("<think>a</think>", False)):
        record = json.loads(vase("run", "--raw", prompt, *options(model, "--json")).out)
        assert record["thought_open"] == opened


def test_the_seed_decides_a_sampled_text(vase: Shell, model: Path) -> None:
    def text(seed: int) -> str:
        return vase("run", "hello", *options(model, "--temperature", "1", "--seed", seed)).out

    assert text(1) == text(1) != text(2)


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_a_prompt_that_fails_does_not_take_the_others_along(
    vase: Shell, model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    model = model_folder("qwen3", tie_word_embeddings=False)
    expected = texts(vase, model, "hello", "what is 1 + 1?")
    assert not any("~" in text for text in expected)
    broken = poisoned(model, tmp_path / "poisoned", "~")
    Path("prompts.txt").write_text("hello\n~~~\nwhat is 1 + 1?\n")
    outcome = vase("run", "--input", "prompts.txt", *options(broken))
    assert outcome.code == 1
    assert outcome.out.splitlines() == [expected[0], "", expected[1]]
    failure, verdict = outcome.err.splitlines()
    assert re.match(r"vase: prompts/1/0: keys or values of layer 0 are not finite after \d+ tokens", failure)
    assert verdict == "vase: 1 of 3 prompts failed"

    records = [
        json.loads(line) for line in vase("run", "--input", "prompts.txt", *options(broken, "--json")).out.splitlines()
    ]
    assert {record["id"]: record["finish_reason"] == "error" for record in records} == {
        "prompts/0/0": False, "prompts/1/0": True, "prompts/2/0": False,
    }  # fmt: skip


def test_a_failure_is_said_again_when_it_is_stored(
    vase: Shell, model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    broken = poisoned(model_folder("qwen3", tie_word_embeddings=False), tmp_path / "poisoned", "~")
    for _ in range(2):
        outcome = vase("run", "~~~", *options(broken, "--out", "runs"))
        assert outcome.code == 1
        assert outcome.err.splitlines()[-1] == "vase: 1 of 1 prompts failed"
    assert len(read_jsonl(only_run(RUNS) / "completions.jsonl")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the prompt is empty"),
        (["  \n"], "the prompt is empty"),
        (["hi", "--input", "prompts.txt"], "a prompt and --input are both given"),
        (["--input", "nowhere.txt"], "no such file: nowhere.txt; correct the path"),
        (["--input", "other.jsonl"], "no such file: other.jsonl; did you mean "),
        (["--input", "."], "cannot read .: Is a directory"),
        (["--input", "blank.txt"], "blank.txt holds no prompt: write one a line"),
        (["--input", "latin.txt"], "latin.txt:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (["--input", "broken.jsonl"], "broken.jsonl:2: no field 'prompt' (or 'question' or 'problem'); fix"),
        (["--input", "text.jsonl"], "text.jsonl:1: invalid JSON at column 1"),
        (["hi" * 40, "--max-total-tokens", "60"], "the prompt has 83 tokens, which leaves nothing of the limit of 60"),
        (
            ["hi", "--raw", "--system", "Be brief."],
            "--raw gives the prompt as it is, so there is no place for a system",
        ),
        (["caf\udce9"], "the prompt is not UTF-8 at character 4"),
        (["hi", "--system", "caf\udce9"], "--system: is not valid text (bad UTF-8 or half a surrogate pair)"),
        (["hi", "--budget", "0"], "--budget: 0 is not a positive number"),
        (["hi", "--budget", "4"], "budget 4: not above the window of 4 tokens"),
        (["hi", "--method", "vase-attnv", "-o", "n_large=13"], "n_large is 13"),
        (["hi", "--method", "ful"], "did you mean 'full'?"),
        (["hi", "--model", "qwen3-9b"], "did you mean 'qwen3-8b'?"),
        (["hi", "--device", "cuda"], "no CUDA device 0"),
        (["hi", "--top-p", "1.5"], "write 0.015 for 1.5 percent"),
        (["hi", "--samples", "2"], "No such option: --samples"),
        (["hi", "there"], "unexpected extra argument"),
    ],
)
def test_bad_input_is_refused_in_one_line(vase: Shell, model: Path, arguments: list[str], message: str) -> None:
    Path("prompts.txt").write_text("hello")
    Path("blank.txt").write_text("\n \n")
    Path("latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    Path("broken.jsonl").write_text('{"prompt": "hi"}\n{"text": "hi"}\n')
    Path("text.jsonl").write_text("hello\nthere\n")
    assert message in vase.refused("run", *options(model), "--out", "runs", *arguments)


def test_bad_stdin_is_refused(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in (
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"caf\xe9", "stdin:1: byte 0xe9 is not"),
    ):
        stdin(monkeypatch, content)
        assert message in vase.refused("run", *options(model))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "argv", ["/bin/vase", "run", "--recipe", "qwen3-8b", "--budget", "4x", ""])
    example = 'vase run --recipe qwen3-8b --budget 4x "How many primes are below 100?"'
    ways = f"write one, {example}, or give it on stdin, or with --input FILE"
    assert vase.refused("run", "--recipe", "qwen3-8b", "--budget", "4x") == f"no prompt: {ways}"
    assert vase.refused("run", "--recipe", "qwen3-8b", "--budget", "4x", "") == f"the prompt is empty: {ways}"


def test_a_model_without_thinking_is_refused(vase: Shell, model: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert "think: plain does not think" in vase.refused("run", "hi", *options(plain, "--think"))


def test_a_budget_above_the_limit_is_a_warning(vase: Shell, model: Path) -> None:
    outcome = vase("run", "hello", *options(model, "--budget", "9000"))
    assert outcome.code == 0 and len(outcome.out) > 3
    assert (
        outcome.err
        == "warning: budget 9,000: the limit is 8,192 tokens, so nothing will ever be evicted; lower the budget\n"
    )


def test_the_environment_names_the_recipe(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.yaml").write_text(
        f"model: {model}\nbudget: 16\nwindow: 4\nmethod: streaming\nmax_new_tokens: 12\nslots: 3\n"
        "sampling: {temperature: 0}\n"
    )
    monkeypatch.setenv("VASE_RECIPE", "own.yaml")
    assert vase("run", "hello").out == texts(vase, model, "hello")[0] + "\n"
