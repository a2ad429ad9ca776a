"""``vase bench`` as a user meets it: what it refuses, prints and writes."""

import gc
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import Shell, open_shell, read_jsonl, terminal

from vase_cli.bench import records as bench
from vase_cli.bench.rates import Rates
from vase_cli.bench.tables import MEMORY, PARTS, SPEED, TEXT, WORKLOAD
from vase_cli.engine.engine import StaticCache

ENTRY = """\
hub_id: nobody/nothing
shape: {layers: 2, heads: 4, kv_heads: 2, head_dim: 16}
architecture: {family: qwen3, hidden: 32, mlp: 48, vocabulary: 101, tied: true}
sampling:
  plain: {temperature: 0.5, top_k: 7}
"""
QUICK = ("--device", "cpu", "--window", "4", "--steps", "8", "--warmup", "4", "--prefill", "0")


@pytest.fixture(autouse=True)
def _little_garbage() -> Iterator[None]:
    """Every cell is measured after a full collection, which would search all that torch and the tests have made."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    Path("zoo").mkdir()
    Path("zoo/little.yaml").write_text(ENTRY)
    Path("zoo/bare.yaml").write_text("hub_id: nobody/nothing\n")
    monkeypatch.setattr(bench, "measure_rates", lambda device, dtype: Rates(2e9, 1e9, 3e12))
    return shell


def little(*more: object) -> tuple[object, ...]:
    return ("bench", "--zoo", "zoo", "--shape", "little", *QUICK, *more)


def served(*more: object) -> tuple[object, ...]:
    return ("bench", "--zoo", "zoo", "--shape", "little", "--device", "cpu", "--window", "4", *more)


def records(lines: list[str]) -> list[dict[str, Any]]:
    """The cells, after a look at the last line, which is the summary."""
    *cells, summary = map(json.loads, lines)
    assert summary["kind"] == "summary" and len(summary["cells"]) == len(cells)
    assert all(cell["kind"] in ("cell", "text", "workload") for cell in cells)
    return cells


# --- bad input: one line, exit code 2, nothing written ----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slots", "0"], "--slots: must be a whole number of sequences, at least 1, or auto, not 0"),
        (["--slots", "2,many"], "must be a whole number of sequences, at least 1, or auto, not 'many'"),
        (["--shape", "litle"], "no zoo entry 'litle'; did you mean 'little'?"),
        (["--shape", "./zoo"], "--shape ./zoo: takes a zoo name (`vase zoo list`); for a model folder or hub id use"),
        (["--shape", "zoo"], "--shape zoo: takes a zoo name"),
        (["--shape", "bare"], "zoo entry bare does not say its shape and architecture"),
        (["--method", "randm"], "'randm' is not known; did you mean 'random'?"),
        (["--budget", "4"], "budget 4: not above the window of 4 tokens"),
        (["--budget", "0"], "--budget: 0 is not a positive number of tokens"),
        (["--context", "12"], "a text of 12 tokens is too short: vase-attnv needs 20 to be cut"),
        (["--context", "2k"], "--context 2k: must be a whole number of tokens, at least 1"),
        (["--context", "0"], "--context 0: must be a whole number of tokens, at least 1"),
        (["--text", "30"], "a text of 30 tokens is too short: vase-attnv needs 36"),
        (["--text", "100", "--slots", "2"], "leave --slots and --context out"),
        (["--text", "100", "--context", "200"], "leave --slots and --context out"),
        (["--workload", "short", "--context", "200"], "runs them whole: leave --context out"),
        (["--workload", "short", "--text", "200"], "runs them whole: leave --text out"),
        (["--workload", "shrt"], "--workload shrt: no such workload; give short, reasoning or a file"),
        (["--workload", "none.jsonl"], "no such file: none.jsonl"),
        (["--workload", "bad.jsonl"], "bad.jsonl:2: no field 'new_tokens'; fix or remove the line"),
        (["--repeat", "2"], "--repeat is for a --workload: add one, or leave it out"),
        (["--prefill", "2k"], "--prefill 2k: must be a whole number of tokens, at least 0"),
        (["--steps", "7"], "--steps 7: must be at least 8, two windows, so that every row is cut twice"),
        (["--warmup", "3"], "--warmup 3: must be at least 4, one window"),
        (["--prefill=-1"], "--prefill -1: must be a whole number of tokens, at least 0"),
        (["--memory", "0"], "--memory 0: must be a number of GiB above 0"),
        (["--memory", "nan"], "--memory nan: must be a number of GiB above 0"),
        (["--model", "qwen3-8b"], "--shape little and qwen3-8b: random weights or a real model, leave one out"),
        (["--recipe", "qwen3-8b"], "--shape little and qwen3-8b: random weights or a real model, leave one out"),
        (["--sampling", "cold"], "--sampling cold: write greedy or model"),
        (["--sampling", "greedy", "--top-k", "3"], "--sampling greedy and --top-k are both given: leave one out"),
        (["--temperature=-1"], "temperature: -1.0 is not 0 (greedy) or a positive number"),
        (["--device", "cuda"], "no CUDA device 0: PyTorch sees 0"),
        (["-o", "n_large=90"], "n_large is 90"),
        (["--out", "zoo"], "--out zoo: is there already; name another file"),
        (["--out", "nowhere/o.jsonl"], "--out nowhere/o.jsonl: its folder is not there"),
        (["--out", "o" * 300], f"cannot look at {'o' * 300}: File name too long"),
    ],
)
def test_bad_options_are_refused_in_one_line(vase: Shell, options: list[str], message: str) -> None:
    budget = () if options[0] == "--budget" else ("--budget", "16")
    method = () if options[0] in ("--method", "-o") else ("--method", "vase-attnv", "-o", "n_large=4")
    Path("bad.jsonl").write_text('{"prompt_tokens": 7, "new_tokens": 3}\n{"prompt_tokens": 7}\n')
    command = served if "--workload" in options else little
    assert message in vase.refused(*command(*budget, *method, *options))


@pytest.mark.parametrize("option", ["--steps=8", "--warmup=4", "--prefill=0"])
def test_a_workload_has_no_steps_and_prefills_of_its_own(vase: Shell, option: str) -> None:
    refusal = vase.refused(*served("--workload", "short", "--budget", "16", option))
    assert f"--workload says how long texts are and runs them whole: leave {option.partition('=')[0]} out" in refusal


def test_an_evicting_method_needs_a_budget(vase: Shell) -> None:
    assert "no budget; give tokens or a ratio" in vase.refused(*little())


def test_a_real_model_is_not_asked_for_longer_texts_than_it_knows(vase: Shell) -> None:
    refusal = vase.refused("bench", "--recipe", "tiny-reasoner", *QUICK, "--budget", "64", "--context", "4096")
    assert "tiny-reasoner is configured for 2,048; give a shorter --context or --text" in refusal


# --- cells ------------------------------------------------------------------------------------------------


def test_every_cell_in_order_and_the_summary_last(vase: Shell) -> None:
    outcome = vase(
        *little("--method", "random", "--method", "streaming", "--budget", "16", "--budget", "24"),
        *("--slots", "2", "--slots", "1", "--context", "60,40", "--seed", "5", "--out", "cells.jsonl"),
    )
    cells = records(outcome.lines())
    assert [(cell["budget"], cell["method"], cell["slots"], cell["context"]) for cell in cells] == [
        (budget, method, slots, context)
        for budget in (16, 24)
        for method in ("random", "streaming")
        for slots in (2, 1)
        for context in (60, 40)
    ]
    for cell in cells:
        assert cell["status"] == "ok"
        assert cell["tokens_per_s"] == pytest.approx(1000 * cell["slots"] / cell["step_ms_mean"], rel=1e-4)
        assert cell["ratio"] == pytest.approx(cell["step_ms_mean"] / cell["floor_ms"], rel=1e-4)
    assert [json.loads(line) for line in outcome.lines()] == read_jsonl(Path("cells.jsonl"))
    summary = json.loads(outcome.lines()[-1])
    assert (summary["model"], summary["random_weights"], summary["seed"]) == ("little", True, 5)
    assert (summary["warmup"], summary["steps"], summary["out_of_memory"]) == (4, 8, 0)
    assert summary["versions"]["torch"] == torch.__version__

    # A second run would need another file.
    refused = vase(*little("--method", "random", "--budget", "16", "--out", "cells.jsonl"))
    assert refused.code == 2 and refused.out == ""
    assert "--out cells.jsonl: is there already; name another file" in refused.err
    assert len(read_jsonl(Path("cells.jsonl"))) == len(cells) + 1


def test_the_table_and_what_is_going_on_are_on_stderr(vase: Shell) -> None:
    outcome = vase(*little("--method", "random", "--method", "full", "--budget", "16", "--slots", "2"))
    assert len(records(outcome.lines())) == 2
    lines = outcome.err.splitlines()
    assert lines[:3] == [
        "cpu: copies move 2 GB/s, reads 1 GB/s; products in float32 3.00 TFLOP/s",
        "1 of 2: random, budget 16, 2 slots, text of 32 tokens",
        "2 of 2: full, 2 slots, text of 32 tokens",
    ]
    for start, headings in ((3, SPEED), (8, MEMORY)):
        assert lines[start] == "little, random weights, float32, sdpa, cpu"
        assert re.split(r"  +", lines[start + 1]) == list(headings)
        assert lines[start + 2].split()[:4] == ["random", "16", "2", "32"]
        assert lines[start + 3].split()[:4] == ["full", "-", "2", "32"]
    assert lines[7].startswith("Step ms: median") and lines[12].startswith("Prefill/s: ")


def test_nothing_that_could_be_measured_is_a_failure(vase: Shell) -> None:
    outcome = vase(*little("--method", "random", "--budget", "16", "--slots", "800,900", "--memory", "0.002"))
    assert outcome.code == 1
    assert [json.loads(line)["kind"] for line in outcome.out.splitlines()] == ["cell", "cell", "summary"]
    assert outcome.err.splitlines()[-1].startswith("vase: nothing was measured, the warnings say why; try fewer")


def test_an_option_goes_to_the_methods_that_have_it(vase: Shell) -> None:
    outcome = vase(*little("--method", "full,vase-attnv", "--budget", "16", "-o", "n_large=5", "--slots", "1"))
    options = {cell["method"]: cell["method_options"] for cell in records(outcome.lines())}
    assert options["vase-attnv"]["n_large"] == 5 and "n_large" not in options["full"]
    assert "note: -o n_large is for vase-attnv; no such option: full\n" in outcome.err


@pytest.mark.parametrize("columns", [45, 80])
def test_tables_for_a_terminal(vase: Shell, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, "stderr") as written:
        monkeypatch.setenv("COLUMNS", str(columns))
        outcome = vase(*little("--method", "random", "--budget", "16", "--slots", "2"))
    assert len(records(outcome.lines())) == 1
    (screen,) = written
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert plain.count("─" * 40) >= 2
    assert columns < 80 or re.search(" +".join(map(re.escape, SPEED)), plain)
    assert "…" not in plain  # no figure is cut off
    assert max(map(len, plain.partition("tokens\n")[2].splitlines())) <= columns


def test_a_shape_needs_no_files_and_no_network(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", refuse)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", refuse)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    assert records(vase(*little("--budget", "16", "-o", "n_large=4", "--slots", "1")).lines())[0]["status"] == "ok"


def test_greedy_unless_something_else_is_said(vase: Shell) -> None:
    def sampling(*options: str) -> dict[str, float]:
        run = vase(*little("--method", "random", "--budget", "16", "--slots", "1", *options))
        drawn: dict[str, float] = records(run.lines())[0]["sampling"]
        return drawn

    greedy = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert sampling() == sampling("--sampling", "greedy") == greedy
    assert sampling("--sampling", "model") == greedy | {"temperature": 0.5, "top_k": 7}
    assert sampling("--temperature", "0.9", "--top-p", "0.8") == greedy | {
        "temperature": 0.9, "top_k": 7, "top_p": 0.8,
    }  # fmt: skip


def test_a_recipe_is_measured_with_its_own_weights_and_settings(vase: Shell, model_folder: Callable[..., Path]) -> None:
    Path("mine.yaml").write_text(
        f"model: {model_folder('qwen3')}\nmethod: random\nbudget: 2x\nslots: 2\nwindow: 4\nmax_total_tokens: 30\n"
    )
    (cell,) = records(vase("bench", "--recipe", "mine.yaml", *QUICK, "--context", "64").lines())
    assert (cell["method"], cell["budget"], cell["slots"], cell["random_weights"]) == ("random", 32, 2, False)
    assert (cell["status"], cell["context"]) == ("ok", 64)


def test_a_recipe_that_compares_is_measured_side_by_side(vase: Shell) -> None:
    cells = records(vase("bench", "--recipe", "tiny-reasoner", *QUICK, "--slots", "1", "--context", "200").lines())
    compared = {(cell["method"], cell["budget"]) for cell in cells}
    assert {("full", None), ("random", 100), ("random", 52), ("vase-attnv", 100)} <= compared


def test_memory_that_does_not_suffice_is_a_result(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache(shape: Any, *arguments: Any) -> StaticCache:
        if shape.max_num_seqs == 2:
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 2 GiB.")
        return StaticCache(shape, *arguments)

    monkeypatch.setattr("vase_cli.engine.engine.StaticCache", cache)
    outcome = vase(
        *little("--method", "random", "--budget", "16", "--slots", "2,1,900", "--memory", "0.002", "--out", "o.jsonl")
    )
    cells = records(outcome.lines())
    assert [cell["status"] for cell in cells] == ["out of memory", "ok", "out of memory"]
    shortage = "out of memory for a cache of 2 slots (out of memory. Tried to allocate 2 GiB)"
    assert cells[0]["error"].startswith(shortage)
    assert "900 slots do not fit" in cells[2]["error"]
    assert json.loads(outcome.lines()[-1])["out_of_memory"] == 2
    assert f"warning: {shortage}" in outcome.err
    assert next(row.split()[:7] for row in outcome.err.splitlines() if row.startswith("random ")) == [
        "random", "16", "2", "32", "out", "of", "memory",
    ]  # fmt: skip
    assert len(read_jsonl(Path("o.jsonl"))) == 4


def test_what_was_measured_stays_when_it_is_stopped(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    run_loop, calls = bench.run_loop, []

    def stop(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            assert len(read_jsonl(Path("o.jsonl"))) == 1  # written before the next cell starts
            raise KeyboardInterrupt
        return run_loop(*arguments)

    monkeypatch.setattr(bench, "run_loop", stop)
    outcome = vase(*little("--method", "random", "--budget", "16", "--slots", "1,2", "--out", "o.jsonl"))
    assert outcome.code == 130
    assert [json.loads(line)["slots"] for line in outcome.out.splitlines()] == [1]
    assert [record["slots"] for record in read_jsonl(Path("o.jsonl"))] == [1]


# --- whole texts ------------------------------------------------------------------------------------------


def test_texts_are_compared_with_full_at_equal_memory(vase: Shell) -> None:
    outcome = vase(
        *little("--method", "random", "--budget", "16", "--text", "100", "--text", "200,300", "--memory", "0.002")
    )
    cells = records(outcome.lines())
    assert [(cell["kind"], cell["method"], cell["text"]) for cell in cells] == [
        ("text", method, text) for method in ("full", "random") for text in (100, 200, 300)
    ]
    assert all(cell["status"] == "ok" and cell["slots"] == cell["slots_fit"] for cell in cells)
    for full, other in zip(cells[:3], cells[3:], strict=True):
        assert (full["gain"], full["text_gain"]) == (1.0, 1.0)
        assert other["slots"] > full["slots"]
        assert other["gain"] == pytest.approx(other["tokens_per_s"] / full["tokens_per_s"], rel=1e-4)
        over_text = other["text_tokens_per_s"] / full["text_tokens_per_s"]
        assert other["text_gain"] == pytest.approx(over_text, rel=1e-4)
    heading = next(line for line in outcome.err.splitlines() if line.startswith("method"))
    assert [name for name in TEXT if name not in heading] == []


def test_full_is_compared_with_though_options_are_for_another_method(vase: Shell) -> None:
    outcome = vase(*little("--budget", "16", "-o", "n_large=4", "--text", "100", "--memory", "0.001"))
    assert [cell["method"] for cell in records(outcome.lines())] == ["full", "vase-attnv"]
    named = vase(
        *little("--method", "random", "--method", "full", "--budget", "16", "--text", "100", "--memory", ".001")
    )
    assert [cell["method"] for cell in records(named.lines())] == ["full", "random"]


def test_thresholds_that_drawn_weights_do_not_have_are_said(vase: Shell) -> None:
    outcome = vase(*little("--method", "vase-attnv", "--budget", "16", "-o", "outliers=threshold"))
    assert "has no thresholds, so outliers are told by their count" in outcome.err
    (cell,) = records(outcome.lines())
    assert cell["status"] == "ok" and cell["method_options"]["outliers"] == "count"


# --- workloads --------------------------------------------------------------------------------------------


def test_a_workload_is_served_by_every_method_with_every_number_of_slots(vase: Shell) -> None:
    Path("mine.jsonl").write_text(
        '{"prompt_tokens": 9, "new_tokens": 12, "count": 3}\n{"prompt_tokens": 25, "new_tokens": 30}\n'
    )
    outcome = vase(
        *served("--workload", "mine.jsonl", "--method", "random,full", "--budget", "16,20", "--slots", "1,auto"),
        *("--repeat", "2", "--temperature", "0.6", "--top-p", "0.95"),
    )
    cells = records(outcome.lines())
    assert [(cell["budget"], cell["method"], cell["slots"]) for cell in cells] == [
        (budget, method, slots)
        for budget, method in ((16, "random"), (None, "full"), (20, "random"))
        for slots in (1, 3)  # two texts of 12 tokens, one behind the other, end before that of 30
    ]
    for cell in cells:
        assert (cell["kind"], cell["status"], cell["requests"]) == ("workload", "ok", 4)
        assert (cell["prompt_tokens"], cell["new_tokens"], cell["longest_text"]) == (52, 66, 55)
        assert len(cell["walls_s"]) == 2 and cell["sampling"]["temperature"] == 0.6
        assert cell["decode_steps"] == (62 if cell["slots"] == 1 else 29)
        assert (cell["cuts"] > 0) == (cell["method"] == "random")
    summary = json.loads(outcome.lines()[-1])
    assert (summary["workload"], summary["repeats"]) == ("mine.jsonl", 2) and "steps" not in summary
    assert [cell["wall_s"] for cell in summary["cells"]] == [cell["wall_s"] for cell in cells]
    lines = outcome.err.splitlines()
    assert lines[1] == "1 of 6: random, budget 16, 1 slots, workload mine.jsonl"
    assert lines[2] == "2 of 6: random, budget 16, auto slots, workload mine.jsonl"
    titles = [place for place, line in enumerate(lines) if line.startswith("workload mine.jsonl, 4 requests; little")]
    for title, headings in zip(titles, (WORKLOAD, PARTS), strict=True):
        assert re.split(r"  +", lines[title + 1]) == list(headings)
        assert lines[title + 2].split()[:3] == ["random", "16", "1"]


def test_a_workload_takes_all_slots_that_fit_whatever_the_recipe_says(
    vase: Shell, model_folder: Callable[..., Path]
) -> None:
    Path("mine.yaml").write_text(f"model: {model_folder('qwen3')}\nmethod: random\nbudget: 16\nslots: 2\nwindow: 4\n")
    Path("mine.jsonl").write_text('{"prompt_tokens": 9, "new_tokens": 20, "count": 3}\n')
    (cell,) = records(vase("bench", "--recipe", "mine.yaml", "--device", "cpu", "--workload", "mine.jsonl").lines())
    assert (cell["status"], cell["slots"], cell["random_weights"], cell["decode_steps"]) == ("ok", 3, False, 19)


def test_prefills_of_several_lengths_are_measured(vase: Shell) -> None:
    (cell,) = records(
        vase(*little("--method", "random", "--budget", "16", "--slots", "1", "--prefill", "10,0,25,900")).lines()
    )
    assert cell["prefill_tokens"] == [10, 25, 32] and len(cell["prefill_tokens_per_s"]) == 3
