"""``vase eval`` as a user meets it: what it refuses, prints and writes."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.cli_examples import (
    SMALL,
    Shell,
    help_words,
    only_run,
    open_shell,
    problem_rows,
    read_jsonl,
    write_rows,
)

from vase_cli import plugins
from vase_cli.engine import factory, plan

MakeModel = Callable[..., Path]


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    write_rows(Path("mine.jsonl"), problem_rows(4))
    return shell


@pytest.fixture
def model(model_folder: MakeModel) -> Path:
    return model_folder("qwen3")


def mine(model: Path, *more: object) -> tuple[object, ...]:
    """A small evaluation of mine.jsonl; later options win, but for the budget, which is taken from one place."""
    small = SMALL[2:] if any(str(option).startswith("--budget") for option in more) else SMALL
    return ("eval", "mine.jsonl", "--grader", "number", "--model", model, *small, *more)


def test_help_says_defaults_and_choices(vase: Shell) -> None:
    said = help_words(vase, "eval")
    defaults = ("runs", "(the recipe's, or 64)", "(the recipe's, or 0)", "(the recipe's, or vase-attnv)")
    for default in (*defaults, "(the recipe's, or the task's)"):
        assert f"[default: {default}]" in said
    graders = plugins.names("graders")
    assert f"graded: {', '.join(graders[:-1])} or {graders[-1]}." in said
    most = factory.MOST_NUM_SEQS
    for command in (said, help_words(vase, "bench"), help_words(vase, "run")):
        assert f"at most {most['cuda']} on a GPU and {most['cpu']} on a CPU" in command
    for command in (said, help_words(vase, "calibrate")):
        assert "JSONL, JSON, CSV or Parquet" in command


# --- bad input: one line, exit code 2, nothing written -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "0"], "--budget: 0 is not a positive number of tokens"),
        (["--budget=-4"], "--budget: -4 is not a positive number of tokens"),
        (["--budget", "plenty"], "--budget: 'plenty' is not a number of tokens nor a ratio; write 4096, or 4x"),
        (["--budget", "0.5x"], "N of 'Nx' must be at least 1"),
        (["--budget", "4"], "budget 4 for mine: not above the window of 4 tokens"),
        (["--budget", "4000x"], "budget 4 for mine (4000x -> 4 tokens"),
        (["-o", "n_large=13"], "n_large is 13"),
        (["--method", "full"], "method full evicts nothing and takes no budget"),
        (["--method", "vase-atnv"], "did you mean 'vase-attnv'?"),
        (["--model", "qwen3-9b"], "model 'qwen3-9b' is no zoo entry, folder or hub id; did you mean 'qwen3-8b'?"),
        (["--recipe", "qwen3-9b"], "no recipe 'qwen3-9b'; did you mean 'qwen3-8b'?"),
        (["--grader", "nummber"], "no grader 'nummber'; did you mean 'number'?"),
        (["-o", "n_large"], "option 'n_large': write key=value"),
        (["-o", "nlarge=4"], "-o nlarge: unknown option of vase-attnv; did you mean 'n_large'?"),
        (["-o", "n_large=many"], "-o n_large: must be a whole number, not 'many'"),
        (["-o", "smooth=1"], "-o smooth: "),
        (["--temperature=-1"], "temperature: -1.0 is not 0 (greedy) or a positive number"),
        (["--temperature", "nan"], "temperature: must be a number, not nan"),
        (["--temperature", "warm"], "Invalid value for '--temperature'"),
        (["--top-p", "95"], "write 0.95 for 95 percent"),
        (["--top-p", "0"], "--top-p: 0.0 is not in (0, 1]"),
        (["--top-k=-1"], "--top-k: must be a whole number of tokens, at least 0"),
        (["--min-p", "1"], "--min-p: 1.0 is not in [0, 1)"),
        (["--seed=-1"], "seed: must be a whole number, at least 0"),
        (["--samples", "0"], "samples: must be a whole number of samples per problem, at least 1"),
        (["--limit", "0"], "limit: must be a whole number of problems, at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens: must be a whole number of tokens, at least 1"),
        (["--max-total-tokens", "9000"], "is configured for 8,192 tokens of text; set it to 8,192 or less"),
        (["--max-total-tokens", "20"], "the shortest prompt of mine has 91 tokens, which leaves nothing of the limit"),
        (["--window", "0"], "window: must be a whole number of tokens, at least 1"),
        (["--slots", "0"], "--slots: must be a whole number of sequences, at least 1, or auto, not 0"),
        (["--slots", "-1"], "--slots: must be a whole number of sequences, at least 1, or auto, not -1"),
        (["--slots", "1.5"], "--slots: must be a whole number of sequences, at least 1, or auto, not 1.5"),
        (["--slots", "many"], "at least 1, or auto, not 'many'"),
        (["--dtype", "float8"], "dtype: "),
        (["--device", "tpu"], "'tpu' is not a device"),
        (["--device", "cuda"], "no CUDA device 0: PyTorch sees 0; use --device cpu or auto"),
        (["--attention", "flash"], "attention: "),
        (["--attention", "flash_attention_2"], "flash_attention_2 needs a CUDA device, not cpu"),
        (["--data", "more.jsonl"], "mine.jsonl is a problem file already; leave one out"),
        (["--recipes", "nowhere"], "--recipes nowhere: not a folder; name one with recipes in it, or leave it out"),
        (["--zoo", "nowhere"], "--zoo nowhere: not a folder; name one with zoo entries in it, or leave it out"),
        (["--bugdet", "16"], "No such option: --bugdet"),
        (["--budget"], "Option '--budget' requires an argument"),
    ],
)
def test_bad_options_are_refused_in_one_line(vase: Shell, model: Path, options: list[str], message: str) -> None:
    assert message in vase.refused(*mine(model, *options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gsm9k"], "no task 'gsm9k'; did you mean 'gsm8k'?"),
        (["mine.jsonl"], "mine.jsonl needs --grader, one of: choice, integer, math, number"),
        (["gsm8k", "--grader", "math"], "--grader math is for problem files"),
        (["mine.jsnol"], "no task 'mine.jsnol'"),
        (["gsm8k", "-o", "n_large", "64"], "option 'n_large': write key=value, such as n_large=256"),
        (["./other.csv", "--grader", "number"], "no such file: ./other.csv; correct the path"),
        (["./mine.jsnol", "--grader", "number"], "no such file: ./mine.jsnol; did you mean 'mine.jsonl'?"),
        (["gsm8k", "math500", "--data", "mine.jsonl"], "is one file, for one task, and 2 are named: give a folder"),
        (["gsm8k", "--data", "mine.json"], "no such file: mine.json; did you mean 'mine.jsonl'?"),
        (["gsm8k", "--data", "math500.jsonl"], "math500.jsonl is named after the task 'math500', not 'gsm8k'"),
    ],
)
def test_bad_tasks_and_data_are_refused(vase: Shell, model: Path, arguments: list[str], message: str) -> None:
    write_rows(Path("math500.jsonl"), problem_rows(2))
    assert message in vase.refused("eval", *arguments, "--model", model, *SMALL)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"question": "bad \xff byte?", "answer": "1"}', "mine.jsonl:2: bad UTF-8 at byte 19 of the line"),
        (b'{"question": "a\0b", "answer": "1"}', "mine.jsonl:2: holds a NUL byte"),
        (b'\xef\xbb\xbf{"question": "q", "answer": "1"}', "mine.jsonl:2: a byte-order mark inside the file"),
        (b'{"question": "no answer"}', "mine.jsonl:2: no field 'answer'"),
        (b'{"question": " ", "answer": "1"}', "mine.jsonl:2: field 'question' is empty"),
        (b'{"answer": "1"}', "mine.jsonl:2: no field 'question'"),
        (b'{"question": ["q"], "answer": "1"}', "mine.jsonl:2: field 'question' is a list, not text"),
        (b'{"question": "q", "answer": true}', "mine.jsonl:2: field 'answer' is true or false"),
        (b'{"id": "a", "question": "q", "answer": "1"}', "mine.jsonl:2: duplicate id 'a', first at mine.jsonl:1"),
        (b'["question", "answer"]', "mine.jsonl:2: not an object with fields"),
        (b'{"question": "q" "answer": "1"}', "mine.jsonl:2: invalid JSON at column 18"),
    ],
)
def test_a_broken_row_is_named_and_can_be_skipped(vase: Shell, model: Path, row: bytes, message: str) -> None:
    good = b'{"id": "%s", "question": "How much?", "answer": "2"}\n'
    Path("mine.jsonl").write_bytes(good % b"a" + row + b"\n" + good % b"b")
    refusal = vase.refused(*mine(model))
    assert message in refusal
    assert "--skip-bad-rows" in refusal

    outcome = vase(*mine(model, "--skip-bad-rows", "--max-new-tokens", "1"))
    assert "mine: rows of the problem file left out: 1" in outcome.lines()
    folder = only_run(Path("runs"))
    assert [record["problem_id"] for record in read_jsonl(folder / "completions.jsonl")] == ["a", "b"]
    assert message in json.loads((folder / "run.json").read_text())["tasks"][0]["skipped_rows"][0]
    assert json.loads((folder / "summary.json").read_text())["overall"]["skipped_rows"] == 1


def test_a_cut_last_row_is_named(vase: Shell, model: Path) -> None:
    path = Path("mine.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert "mine.jsonl:4: the last line is cut off in the middle of a row" in vase.refused(*mine(model))


def test_bom_and_windows_line_ends_are_read(vase: Shell, model: Path) -> None:
    path = Path("mine.jsonl")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    vase(*mine(model, "--max-new-tokens", "1")).lines()
    assert len(read_jsonl(only_run(Path("runs")) / "completions.jsonl")) == 4


def test_only_bad_rows_are_refused_even_when_they_may_be_skipped(vase: Shell, model: Path) -> None:
    Path("mine.jsonl").write_text('{"question": "q"}\n')
    assert "all 1 rows are bad" in vase.refused(*mine(model, "--skip-bad-rows"))


def test_a_gold_answer_that_nothing_could_match_is_refused(vase: Shell, model: Path) -> None:
    write_rows(Path("mine.jsonl"), [{"id": "x", "question": "q", "answer": "many"}])
    refusal = vase.refused(*mine(model))
    assert "problem x of mine: the gold answer 'many' is not a number" in refusal


def test_model_folders_that_cannot_be_loaded_are_refused(vase: Shell, model: Path, tmp_path: Path) -> None:
    assert "no such folder" in vase.refused(*mine(tmp_path / "nowhere" / "model"))
    (tmp_path / "empty").mkdir()
    assert "no config.json in it" in vase.refused(*mine(tmp_path / "empty"))

    without = shutil.copytree(model, tmp_path / "without")
    (without / "model.safetensors").unlink()
    refusal = vase.refused(*mine(without))
    assert str(without) in refusal and "model.safetensors" in refusal

    cut = shutil.copytree(model, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-500])
    refusal = vase.refused(*mine(cut))
    assert str(cut) in refusal and "check its files" in refusal

    other = shutil.copytree(model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3, "layer_types": None}))
    assert "the weights lack" in vase.refused(*mine(other))

    (cut / "config.json").write_text("{")
    assert "cannot be read as JSON" in vase.refused(*mine(cut))


def test_flash_attention_that_is_not_installed_says_how_to_install_it(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "resolve_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    refusal = vase.refused(*mine(model, "--attention", "flash_attention_2"))
    assert "pip install flash-attn --no-build-isolation, or use --attention sdpa" in refusal


def test_slots_that_cannot_fit_are_refused_with_the_figure(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vase_cli.device.available_ram_bytes", lambda: 1_000_000)
    refusal = vase.refused(*mine(model, "--slots", "400"))
    assert "400 slots do not fit: weights 97.9 KiB + cache of 400 slots" in refusal
    assert "of 976.6 KiB free" in refusal
    most = int(refusal.partition("use --slots ")[2].split()[0])
    assert 1 < most < 400
    assert f"use --slots {most} or less" in vase.refused(*mine(model, "--slots", most + 1))
    vase(*mine(model, "--slots", most, "--max-new-tokens", "1")).lines()

    monkeypatch.setattr("vase_cli.device.available_ram_bytes", lambda: 100_000)
    assert "this run does not fit" in vase.refused(*mine(model, "--slots", "auto", "--seed", "1"))


def test_thinking_that_a_model_lacks_is_refused(vase: Shell, model: Path, tmp_path: Path) -> None:
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert "think: plain does not think" in vase.refused(*mine(plain, "--think"))


def test_a_model_without_a_chat_template_needs_raw(vase: Shell, model: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    weights = (bare / "model.safetensors").read_bytes()
    (bare / "model.safetensors").unlink()  # it is refused before they are read
    assert vase.refused(*mine(bare)) == "bare has no chat template: add --raw to give prompts as they are"
    place = "--raw gives the prompt as it is, so there is no place for a system prompt: leave it out"
    assert vase.refused(*mine(bare, "--raw", "--system", "Be brief.")) == place
    (bare / "model.safetensors").write_bytes(weights)
    tokens = []
    for out, arguments in (("raw", mine(bare, "--raw")), ("chat", mine(model))):
        vase(*arguments, "--out", out).lines()
        run = only_run(Path(out))
        assert json.loads((run / "run.json").read_text())["config"]["raw"] is (out == "raw")
        tokens.append({sample["id"]: sample["prompt_tokens"] for sample in read_jsonl(run / "completions.jsonl")})
    raw, chat = tokens
    assert raw and chat == {name: count + 3 for name, count in raw.items()}, "two tags and a line end"


def test_an_output_folder_that_cannot_be_made_is_refused(vase: Shell, model: Path) -> None:
    Path("taken").write_text("a file")
    assert "cannot make the run folder" in vase.refused(*mine(model, "--out", "taken"))
    assert Path("taken").read_text() == "a file"


def test_a_budget_above_the_limit_is_a_warning(vase: Shell, model: Path) -> None:
    outcome = vase(*mine(model, "--budget", "9000", "--max-new-tokens", "2"))
    outcome.lines()
    assert "warning: budget 9,000 for mine: the limit is 8,192 tokens, so nothing will ever be evicted" in outcome.err
    assert all(record["cuts"] == 0 for record in read_jsonl(only_run(Path("runs")) / "completions.jsonl"))


# --- what is chosen when little is named --------------------------------------------------------------------


def test_one_file_in_the_environment_is_for_one_task(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASE_DATA", "mine.jsonl")
    refusal = vase.refused("eval", "gsm8k", "math500", "--model", model, *SMALL)
    assert refusal == "$VASE_DATA mine.jsonl is one file, for one task, and 2 are named: give a folder"


def test_the_environment_names_the_recipe(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Path("own.yaml")
    recipe.write_text(
        f"model: {model}\nbudget: 16\nwindow: 4\nmethod_options: {{n_large: 4}}\nmax_new_tokens: 1\n"
        "tasks: [./mine.jsonl]\n"
    )
    monkeypatch.setenv("VASE_RECIPE", str(recipe))
    vase("eval", "mine.jsonl", "--grader", "number").lines()
    run = json.loads((only_run(Path("runs")) / "run.json").read_text())
    assert run["options"]["recipe"] == "own"
    vase("eval", "--grader", "number").lines()
    assert len(list(Path("runs").iterdir())) == 1, "the recipe's own task is another run than the same task named"
