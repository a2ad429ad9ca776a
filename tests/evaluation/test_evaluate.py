"""What an evaluation stores and says, and how it goes on after it stopped."""

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import (
    SMALL,
    Shell,
    only_run,
    open_shell,
    poisoned,
    problem_rows,
    read_jsonl,
    read_samples,
    write_rows,
)
from helpers.engines import RowsOfAnyLength

from vase_cli.cli.progress import EvalProgress
from vase_cli.engine import factory
from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.evaluation.summary_table import summary_table
from vase_cli.models.compiled import CompiledForward
from vase_cli.models.tokenizer import ChatTokenizer
from vase_cli.runs.folder import RunFolder
from vase_cli.runs.schema import (
    SCHEMA,
    Metrics,
    Record,
    Run,
    RunTask,
    Sample,
    SampleGrade,
    SampleText,
    Session,
    Summary,
    described,
)

RUNS = Path("runs")


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    write_rows(Path("mine.jsonl"), problem_rows(6))
    return shell


@pytest.fixture
def model(model_folder: Callable[..., Path]) -> Path:
    return model_folder("qwen3")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every text end in an answer, or in none, as its tokens have it: a random model never gives one."""
    decode = ChatTokenizer.decode

    def decode_with_answer(self: ChatTokenizer, token_ids: Sequence[int]) -> str:
        answer = sum(token_ids) % 4
        return decode(self, token_ids) + (f" \\boxed{{{answer}}}" if answer < 3 else "")

    monkeypatch.setattr(ChatTokenizer, "decode", decode_with_answer)


def mine(model: Path, *more: object) -> tuple[object, ...]:
    """A small sampled evaluation of mine.jsonl; later options win."""
    return ("eval", "mine.jsonl", "--grader", "number", "--model", model, "--temperature", "1", *SMALL, *more)


def document(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def without_timing(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records sorted by id, less what differs between two runs of the same tokens."""
    timing = {key["name"] for key in described(SampleText) if key["timing"]}
    assert timing == {"latency_s"}
    kept = [{name: value for name, value in record.items() if name not in timing} for record in records]
    return sorted(kept, key=lambda record: record["id"])


def require(kind: type[Record], value: dict[str, Any]) -> None:
    assert kind(**value).model_dump() == value
    assert list(value) == list(kind.model_fields)


# --- records and summary ------------------------------------------------------------------------------------


def test_every_file_has_exactly_the_keys_of_the_schema(vase: Shell, model: Path) -> None:
    vase(*mine(model)).lines()
    folder = only_run(RUNS)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".lock", "run.json", "completions.jsonl", "grades.jsonl", "sessions.jsonl", "summary.json"]
    )
    run, summary = document(folder, "run.json"), document(folder, "summary.json")
    require(Run, run)
    for task in run["tasks"]:
        require(RunTask, task)
    records, (session,) = read_jsonl(folder / "completions.jsonl"), read_jsonl(folder / "sessions.jsonl")
    assert len(records) == 6
    for record in records:
        require(SampleText, record)
    grades = read_jsonl(folder / "grades.jsonl")
    assert {grade["id"] for grade in grades} == {record["id"] for record in records}
    for grade in grades:
        require(SampleGrade, grade)
    require(Session, session)
    require(Summary, summary)
    for metrics in (summary["overall"], *summary["tasks"].values()):
        require(Metrics, metrics)


def test_running_out_of_memory_is_said_and_loses_nothing(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vase(*mine(model, "--out", "whole")).lines()
    step, calls = DecodeLoop.step, iter(range(1000))

    def step_until_full(self: DecodeLoop, longest: int) -> None:
        if next(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", step_until_full)
    outcome = vase(*mine(model, "--out", "short"))
    assert outcome.err.count("out of memory: going on with") == 1
    whole, short = only_run(Path("whole")), only_run(Path("short"))
    (before,), (after,) = (read_jsonl(folder / "sessions.jsonl") for folder in (whole, short))
    assert after["slots"] == before["slots"] * 3 // 4 < before["slots"]
    stored = [without_timing(read_jsonl(folder / "completions.jsonl")) for folder in (whole, short)]
    assert stored[0] == stored[1]


def test_a_compilation_that_fails_is_said(vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(CompiledForward, "__call__", fail)
    outcome = vase(*mine(model, "--compile", "on"))
    assert "decode steps run through torch.compile" in outcome.err
    assert outcome.err.count("torch.compile failed, going on without it: no compiler here") == 1
    assert document(only_run(RUNS), "run.json")["config"]["compile"] == "on"


def test_a_record_says_what_happened(vase: Shell, model: Path) -> None:
    vase(*mine(model, "--samples", 2, "--seed", 5)).lines()
    rows = {row["id"]: row for row in problem_rows(6)}
    records = read_samples(only_run(RUNS))
    assert {record["id"] for record in records} == {f"mine/{name}/{sample}" for name in rows for sample in (0, 1)}
    for record in records:
        row = rows[record["problem_id"]]
        # One token a character, and three tags and line ends around what the task says.
        asked = f"{row['question']}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
        assert record["prompt_tokens"] == len(asked) + 3
        assert record["id"] == f"mine/{row['id']}/{record['sample']}"
        assert (record["gold"], record["seed"], record["task"]) == (row["answer"], 5, "mine")
        assert record["finish_reason"] == "stop" or record["completion_tokens"] == 12
        assert record["cached_tokens"] <= 16 + 4 and record["cuts"] >= 1
        assert 1 <= record["completion_tokens"] <= 12
        assert record["error"] is None and record["grade"] in ("wrong", "no_answer")
        assert 0 < record["latency_s"] < 60
    texts = {record["id"]: record["text"] for record in records}
    assert texts["mine/p0/0"] != texts["mine/p0/1"]


@pytest.mark.usefixtures("answers")
def test_accuracy_and_its_error_by_hand(vase: Shell, model: Path) -> None:
    write_rows(Path("other.jsonl"), problem_rows(9)[4:])
    outcome = vase(
        "eval", "mine.jsonl", "other.jsonl", *mine(model, "--samples", 4, "--max-new-tokens", 5, "--json")[2:]
    )
    (line,) = outcome.lines()
    summary = json.loads(line)
    folder = only_run(RUNS)
    assert summary == document(folder, "summary.json")
    records = read_samples(folder)
    assert {record["grade"] for record in records} == {"correct", "wrong", "no_answer"}
    for record in records:
        _, _, rest = record["text"].rpartition("</think>")
        boxed = None if "<think>" in rest else re.search(r"\\boxed\{(.)\}", rest)
        expected = "no_answer" if boxed is None else "correct" if boxed[1] == record["gold"] else "wrong"
        assert (record["grade"], record["extracted"]) == (expected, boxed and boxed[1])
    for name, chosen in (("mine", ["mine"]), ("other", ["other"]), (None, ["mine", "other"])):
        shares = []
        of_problem: dict[tuple[str, str], list[bool]] = {}
        for record in records:
            if record["task"] in chosen:
                key = (record["task"], record["problem_id"])
                of_problem.setdefault(key, []).append(record["grade"] == "correct")
        assert all(len(right) == 4 for right in of_problem.values())
        shares = [sum(right) / 4 for right in of_problem.values()]
        metrics = summary["overall"] if name is None else summary["tasks"][name]
        assert metrics["accuracy"] == pytest.approx(sum(shares) / len(shares))
        assert metrics["standard_error"] == pytest.approx(statistics.stdev(shares) / math.sqrt(len(shares)))
        assert metrics["pass_at_k"]["4"] == pytest.approx(sum(map(any, of_problem.values())) / len(of_problem))
        assert list(metrics["pass_at_k"]) == ["1", "2", "4"]
        assert metrics["problems"] == len(shares) and metrics["samples"] == 4 * len(shares)
        of_tasks = [record for record in records if record["task"] in chosen]
        assert metrics["no_answer_share"] == pytest.approx(
            sum(record["grade"] == "no_answer" for record in of_tasks) / len(of_tasks)
        )
        assert metrics["mean_completion_tokens"] == pytest.approx(
            statistics.fmean(record["completion_tokens"] for record in of_tasks)
        )
    assert 0 < summary["overall"]["accuracy"] < 1
    assert summary["samples"] == summary["planned_samples"] == 44 and summary["complete"]


def test_speed_and_memory_are_of_what_was_computed(vase: Shell, model: Path) -> None:
    vase(*mine(model)).lines()
    folder = only_run(RUNS)
    records, (session,) = read_jsonl(folder / "completions.jsonl"), read_jsonl(folder / "sessions.jsonl")
    summary = document(folder, "summary.json")
    assert session["prefill_tokens"] == sum(record["prompt_tokens"] for record in records)
    # The first token of a text comes from its prefill.
    assert session["decode_tokens"] == sum(record["completion_tokens"] - 1 for record in records)
    assert session["samples"] == 6 and session["slots"] == 3 and session["closed"]
    assert summary["decode_tokens_per_s"] == pytest.approx(session["decode_tokens"] / session["decode_s"])
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values of 2 layers, 2 heads, head dim 16, in float32
    assert session["cache_bytes_per_token"] == per_token
    lengths = sorted(record["prompt_tokens"] + record["completion_tokens"] for record in records)
    assert summary["dense_cache_bytes"] == per_token * sum(lengths[-3:])
    assert 3 * 20 * per_token < session["cache_bytes"] < 3 * 20 * per_token * 2
    assert session["peak_bytes"] > session["weights_bytes"] > 20_000


def test_run_json_says_where_every_value_came_from(vase: Shell, model: Path) -> None:
    recipe = Path("own.yaml")
    recipe.write_text(
        f"model: {model}\ntasks: [./mine.jsonl]\nbudget: 4x\ndense_tokens: {{mine: 100}}\nwindow: 4\n"
        "method_options: {n_large: 4}\nsampling: {top_p: 0.9}\nmax_new_tokens: 2\n"
    )
    outcome = vase("eval", "--recipe", recipe, "--grader", "number", "--seed", 7, "--samples", 2)
    outcome.lines()
    folder = only_run(RUNS)
    run = document(folder, "run.json")
    sentence = "4x -> 28 tokens: 100 mean full-cache tokens of mine / 4, rounded up to 4s"
    assert run["budgets"] == {"mine": sentence}
    assert f"mine: {sentence}" in outcome.err.splitlines()
    assert run["config"]["tasks"]["mine"]["budget"] == 28
    assert folder.name == run["name"] == f"own-mine-vase-attnv-4x-{run['config_hash'][:8]}"
    origins = run["origins"]
    assert origins["seed"] == origins["samples"] == "command line"
    assert origins["budget"] == "recipe own (own.yaml:3)"
    assert origins["sampling.top_p"] == "recipe own (own.yaml:7)"
    assert origins["dense_tokens.mine"] == "recipe own (own.yaml:4)"
    assert origins["method"] == origins["sampling.temperature"] == "default"
    assert run["config"]["sampling"] == {"temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.0}
    options = {"protect_prompt": False, "n_large": 4, "outliers": "count", "sinks": 4, "smooth": False}
    assert run["config"]["method_options"] == options
    assert run["seeds"] == {"tokens": 7, "eviction": 7, "options": 7}
    (task,) = run["tasks"]
    assert (task["name"], task["problems"], task["samples"], task["grader"]) == ("mine", 6, 2, "number")
    assert task["source"] == "mine.jsonl"
    assert run["versions"]["torch"] and run["hardware"]["cores"] >= 1


def test_stdout_holds_the_table_and_nothing_else(vase: Shell, model: Path) -> None:
    outcome = vase(*mine(model))
    folder = only_run(RUNS)
    assert outcome.lines() == "\n".join(summary_table(Summary(**document(folder, "summary.json"))).lines()).splitlines()
    assert not re.search("[\x1b\r]", outcome.out + outcome.err)
    assert f"run folder: {folder}" in outcome.err.splitlines()
    assert any("cache of 3 slots" in line for line in outcome.err.splitlines())


def test_schema_is_printed_as_text_and_json(vase: Shell) -> None:
    text = "\n".join(vase("eval", "--schema").lines())
    keys = json.loads("\n".join(vase("eval", "--schema", "--json").lines()))
    assert list(keys) == list(SCHEMA)
    for title, record in SCHEMA.items():
        assert title in text
        assert keys[title] == described(record)
        assert all(key["meaning"] in text for key in keys[title])
    assert not RUNS.exists()


# --- going on -----------------------------------------------------------------------------------------------


def cut_off(folder: Path, whole_lines: int, *, torn: bool = False) -> None:
    """Leaves what a kill would have left after so many samples."""
    path = folder / "completions.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:whole_lines]) + (lines[whole_lines][:40] if torn else b""))


def test_a_finished_run_is_read_again_without_the_model(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = vase(*mine(model))
    before = (only_run(RUNS) / "completions.jsonl").read_bytes()
    monkeypatch.setattr(factory, "load", None)
    second = vase(*mine(model))
    assert second.lines()[:3] == first.lines()[:3]
    assert (only_run(RUNS) / "completions.jsonl").read_bytes() == before
    assert len(read_jsonl(only_run(RUNS) / "sessions.jsonl")) == 1
    assert "mine: 6 of 6 samples are stored already" in second.err


def test_stored_texts_without_a_grade_are_graded_without_the_model(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vase(*mine(model)).lines()
    folder = only_run(RUNS)
    before, path = read_samples(folder), folder / "grades.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    monkeypatch.setattr(factory, "load", None)
    assert "mine: 6 of 6 samples are stored already" in vase(*mine(model)).err
    assert read_samples(folder) == before
    assert document(folder, "summary.json")["complete"]


@pytest.mark.parametrize(("torn", "more"), [(False, ()), (True, ()), (False, ("--repetition-penalty", 1.3))])
def test_only_what_is_missing_is_computed_again(vase: Shell, model: Path, torn: bool, more: tuple[object, ...]) -> None:
    vase(*mine(model, "--samples", 2, *more)).lines()
    folder = only_run(RUNS)
    whole = read_jsonl(folder / "completions.jsonl")
    cut_off(folder, 5, torn=torn)
    outcome = vase(*mine(model, "--samples", 2, *more))
    outcome.lines()
    assert "mine: 5 of 12 samples are stored already" in outcome.err
    assert ("ended in a cut line (40 bytes), which is left out" in outcome.err) == torn
    again = read_jsonl(folder / "completions.jsonl")
    assert again[:5] == whole[:5]
    assert without_timing(again) == without_timing(whole)
    first, second = read_jsonl(folder / "sessions.jsonl")
    assert first["samples"] == 12 and second["samples"] == 7
    assert second["prefill_tokens"] == sum(record["prompt_tokens"] for record in whole[5:])
    summary = document(folder, "summary.json")
    assert summary["complete"] and summary["sessions"] == 2


def test_a_run_that_was_edited_by_hand_is_refused_by_line(vase: Shell, model: Path) -> None:
    vase(*mine(model)).lines()
    path = only_run(RUNS) / "completions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "half a line\n", *lines[2:]]))
    assert "completions.jsonl:2: not a JSON object" in vase.refused(*mine(model))


@pytest.mark.parametrize(
    "change",
    [
        ["--seed", "1"], ["--budget", "20"], ["--method", "range-topk"], ["-o", "sinks=2"], ["--temperature", "0.5"],
        ["--max-new-tokens", "3"], ["--samples", "2"], ["--limit", "3"], ["--slots", "2"], ["--no-think"],
        ["--system", "Be brief."], ["--window", "5"], ["--dtype", "bfloat16"], ["--grader", "integer"],
    ],
)  # fmt: skip
def test_a_changed_config_is_another_folder(vase: Shell, model: Path, change: list[str]) -> None:
    vase(*mine(model, "--max-new-tokens", "1")).lines()
    vase(*mine(model, "--max-new-tokens", "1", *change)).lines()
    assert len(list(RUNS.iterdir())) == 2


@pytest.mark.parametrize("key", ["question", "answer", "id"])
def test_an_edited_problem_file_is_another_folder(vase: Shell, model: Path, key: str) -> None:
    vase(*mine(model, "--max-new-tokens", "1")).lines()
    rows = problem_rows(6)
    rows[3][key] = "8"
    write_rows(Path("mine.jsonl"), rows)
    vase(*mine(model, "--max-new-tokens", "1")).lines()
    assert len(list(RUNS.iterdir())) == 2
    # What no prompt and no grade depends on is not an edit.
    write_rows(Path("mine.jsonl"), [{**row, "generation": "x"} for row in rows])
    vase(*mine(model, "--max-new-tokens", "1")).lines()
    assert len(list(RUNS.iterdir())) == 2


def test_a_folder_in_use_is_refused(vase: Shell, model: Path) -> None:
    vase(*mine(model)).lines()
    folder = only_run(RUNS)
    cut_off(folder, 3)
    with RunFolder(folder):
        refusal = vase.refused(*mine(model))
    assert re.search(r"is in use by process \d+ on .*; wait until it ends, or stop it", refusal)
    assert len(read_jsonl(folder / "completions.jsonl")) == 3


def test_slots_auto_goes_on_with_the_slots_it_started_with(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = mine(model, "--slots", "auto", "--samples", 2)
    monkeypatch.setattr("vase_cli.device.available_ram_bytes", lambda: 500_000)
    vase(*arguments).lines()
    folder = only_run(RUNS)
    (first,) = read_jsonl(folder / "sessions.jsonl")
    assert 1 < first["slots"] < 12
    cut_off(folder, 4)
    monkeypatch.setattr("vase_cli.device.available_ram_bytes", lambda: 2**40)
    vase(*arguments).lines()
    assert [session["slots"] for session in read_jsonl(folder / "sessions.jsonl")] == [first["slots"]] * 2
    vase(*arguments, "--seed", 1).lines()
    (new,) = [path for path in RUNS.iterdir() if path != folder]
    assert [session["slots"] for session in read_jsonl(new / "sessions.jsonl")] == [12]


def test_a_run_that_goes_on_has_rows_as_long_as_at_its_start(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[CacheShape] = []

    def watched(shape: CacheShape, *arguments: Any) -> StaticCache:
        shapes.append(shape)
        return StaticCache(shape, *arguments)

    monkeypatch.setattr("vase_cli.engine.plan._choose_backend", lambda *arguments: RowsOfAnyLength())
    monkeypatch.setattr("vase_cli.engine.engine.StaticCache", watched)
    arguments = ("eval", "mine.jsonl", "--grader", "number", "--model", model, "--method", "full", "--slots", 3)
    arguments = (*arguments, "--temperature", 1, "--max-new-tokens", 12)
    vase(*arguments).lines()
    folder = only_run(RUNS)
    whole = read_jsonl(folder / "completions.jsonl")
    assert sorted(record["id"] for record in whole[:3]) == ["mine/p2/0", "mine/p3/0", "mine/p4/0"]
    cut_off(folder, 4)
    vase(*arguments).lines()
    first, second = shapes
    longest = sorted((record["prompt_tokens"] + 12 for record in whole), reverse=True)[:3]
    assert first == second and first.row_tokens == tuple(longest) and len(set(longest)) == 3
    assert without_timing(read_jsonl(folder / "completions.jsonl")) == without_timing(whole)


def test_the_slots_are_on_disk_before_the_first_sample(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, seen = RunFolder.append, []

    def append_and_look(self: RunFolder, sample: Sample) -> None:
        if not self.samples:
            seen.extend(read_jsonl(self.path / "sessions.jsonl"))
        append(self, sample)

    monkeypatch.setattr(RunFolder, "append", append_and_look)
    vase(*mine(model)).lines()
    assert [(session["slots"], session["closed"]) for session in seen] == [(3, False)]


def test_ctrl_c_between_a_text_and_its_count_still_counts_it(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: EvalProgress, sample: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EvalProgress, "sample", interrupted)
    outcome = vase(*mine(model))
    assert outcome.code == 130
    assert len(read_jsonl(only_run(RUNS) / "completions.jsonl")) == 1
    assert outcome.err.splitlines()[-2].startswith("stopped at 1 of 6 samples of mine, all stored")


# --- samples that fail --------------------------------------------------------------------------------------


def test_states_that_are_not_finite_fail_one_sample_and_no_other(
    vase: Shell, model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    model = model_folder("qwen3", tie_word_embeddings=False)
    rows = problem_rows(4)
    rows[2]["question"] += " ~"
    write_rows(Path("mine.jsonl"), rows)
    greedy = ("--temperature", "0", "--max-new-tokens", "6")
    vase(*mine(model, *greedy, "--out", "clean")).lines()
    clean = {record["id"]: record for record in read_samples(only_run(Path("clean")))}
    assert not any("~" in record["text"] for record in clean.values())

    outcome = vase(*mine(poisoned(model, tmp_path / "poisoned", "~"), *greedy))
    assert "mine: 25.0% of the samples failed; see their 'error'" in outcome.lines()
    folder = only_run(RUNS)
    records = {record["id"]: record for record in read_samples(folder)}
    failed = records.pop("mine/p2/0")
    assert (failed["finish_reason"], failed["grade"], failed["extracted"]) == ("error", "error", None)
    assert re.match(r"mine/p2/0: keys or values of layer 0 are not finite after \d+ tokens of text", failed["error"])
    for name, record in records.items():
        assert without_timing([record]) == without_timing([clean[name]])
    metrics = document(folder, "summary.json")["overall"]
    assert metrics["error_share"] == 0.25 and metrics["samples"] == 4
    # A failed sample is a finished one: the same would happen again.
    again = vase(*mine(tmp_path / "poisoned", *greedy))
    assert "mine: 4 of 4 samples are stored already" in again.err


def test_one_prompt_too_long_for_the_limit_fails_alone(vase: Shell, model: Path) -> None:
    rows = problem_rows(3)
    rows[1]["question"] = "long " * 60
    write_rows(Path("mine.jsonl"), rows)
    vase(*mine(model, "--max-total-tokens", 200)).lines()
    records = {record["problem_id"]: record for record in read_jsonl(only_run(RUNS) / "completions.jsonl")}
    assert {name for name, record in records.items() if record["error"]} == {"p1"}
    assert "which leaves nothing of the limit of 200; raise --max-total-tokens" in records["p1"]["error"]


def test_a_failed_write_ends_the_run_and_keeps_what_is_whole(
    vase: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunFolder.append

    def append_three(self: RunFolder, sample: Sample) -> None:
        append(self, sample)
        if len(self.samples) == 3:
            shutil.copytree(self.path, "kept")
            shutil.rmtree(self.path)

    monkeypatch.setattr(RunFolder, "append", append_three)
    outcome = vase(*mine(model))
    assert outcome.code == 1 and outcome.out == ""
    assert "cannot write" in outcome.err.splitlines()[-1]
    assert len(read_jsonl(Path("kept") / "completions.jsonl")) == 3
