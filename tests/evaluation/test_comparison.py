"""Runs side by side: the rows by hand, and the grid of methods and budgets on the command line."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.cli_examples import SMALL, Shell, open_shell, problem_rows, read_jsonl, write_rows
from helpers.run_examples import a_run, a_sample, a_task

from vase_cli.evaluation.comparison import READING, FinishedRun, comparison_tables
from vase_cli.evaluation.summary import summarize

MakeModel = Callable[..., Path]


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    shell = open_shell(tmp_path, monkeypatch, capsys)
    write_rows(Path("mine.jsonl"), problem_rows(4))
    return shell


def compared(method: str, budget: int | None, right: list[bool], **metrics: Any) -> FinishedRun:
    """A run of task t whose figures are written down, whatever its samples say."""
    samples = [a_sample(index, task="t", grade="correct" if one else "wrong") for index, one in enumerate(right)]
    summary = summarize(samples, a_run(a_task("t", problems=len(right), samples=1)))
    values = {
        "standard_error": 0.25,
        "mean_completion_tokens": 1234.4,
        "mean_cached_tokens": 99.6,
        "loop_share": 0.5,
        "truncated_share": 0.0,
    }
    figures = summary.tasks["t"].model_copy(update=values | metrics)
    summary = summary.model_copy(update={"tasks": {"t": figures}, "decode_tokens_per_s": 10.4})
    return FinishedRun(method, {"t": budget}, summary, {sample.id: sample for sample in samples})


def test_rows_by_hand() -> None:
    runs = [
        compared("random", 64, [True, False, False, False]),
        compared("full", None, [True, True, True, False]),
        compared("rkv", 1024, [True, True, True, False], standard_error=None),
    ]
    # random - full is 0, -1, -1, 0 problem by problem: mean -0.5, standard deviation sqrt(1/3), over sqrt(4).
    assert comparison_tables(runs)[0].rows == [
        ["random", "64", "25.0 ± 25.0", "-50.0 ± 28.9", "1,234", "100", "50%", "0%", "10"],
        ["full", "-", "75.0 ± 25.0", "-", "1,234", "100", "50%", "0%", "10"],
        ["rkv", "1,024", "75.0", "+0.0 ± 0.0", "1,234", "100", "50%", "0%", "10"],
    ]


def test_without_the_full_cache_there_is_nothing_to_compare_with() -> None:
    assert comparison_tables([compared("random", 64, [True, False])])[0].rows[0][3] == "-"


def test_lines_and_tables_say_the_same_and_how_to_read_it() -> None:
    from rich.console import Console

    runs = [compared("full", None, [True]), compared("random", 64, [False])]
    task, heading, *lines, reading = comparison_tables(runs)[0].lines()
    assert (task, reading) == ("t", READING) and heading.split()[:2] == ["method", "budget"]
    console = Console(width=120, record=True, file=io.StringIO())
    for table in comparison_tables(runs):
        console.print(table.rich())
    drawn = console.export_text()
    for line in lines:
        for cell in line.split():
            assert cell in drawn
    assert "standard error" in drawn


def test_no_figure_is_broken_on_a_terminal_of_80_columns() -> None:
    from rich.console import Console

    runs = [compared("full", None, [True, False]), compared("snapkv-sample", 4096, [True, True])]
    console = Console(width=80, record=True, file=io.StringIO())
    for table in comparison_tables(runs):
        console.print(table.rich())
    drawn = console.export_text()
    assert "50.0 ± 50.0" in drawn and "+50.0 ± 50.0" in drawn and "snapkv-sample" in drawn


def test_every_method_at_every_budget_and_full_once(vase: Shell, model_folder: MakeModel) -> None:
    grid = ("--method", "full", "--method", "snapkv", "--method", "random", "--budget", "16", "--budget", "24")
    small = ("--window", "4", "--max-new-tokens", "12", "--slots", "3")
    commas = ("--method", "full,snapkv,random", "--budget", "16, 24")
    call = ("eval", "mine.jsonl", "--grader", "number", "--model", model_folder("qwen3"), *grid, *small)
    lines = vase(*call).lines()
    assert [line.split()[:2] for line in lines[2:-1]] == [
        ["full", "-"], ["snapkv", "16"], ["random", "16"], ["snapkv", "24"], ["random", "24"],
    ]  # fmt: skip
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == 5
    budgets = sorted(
        (run["config"]["method"], run["config"]["tasks"]["mine"]["budget"] or 0)
        for run in (json.loads((folder / "run.json").read_text()) for folder in folders)
    )
    assert budgets == [("full", 0), ("random", 16), ("random", 24), ("snapkv", 16), ("snapkv", 24)]
    before = {folder: (folder / "completions.jsonl").read_bytes() for folder in folders}
    assert vase(*call).lines()[:-1] == lines[:-1], "again: nothing is generated, the same table"
    assert {folder: (folder / "completions.jsonl").read_bytes() for folder in Path("runs").iterdir()} == before
    assert vase(*call[:6], *commas, *small).lines()[:-1] == lines[:-1], "the same runs, written with commas"
    assert len(list(Path("runs").iterdir())) == 5
    summaries = [json.loads(line) for line in vase(*call, "--json").lines()]
    assert [len(summary["tasks"]) for summary in summaries] == [1] * 5


def test_a_run_of_a_comparison_has_the_tokens_it_has_alone(vase: Shell, model_folder: MakeModel) -> None:
    call = ("eval", "mine.jsonl", "--grader", "number", "--model", model_folder("qwen3"), *SMALL[:2])
    call = (*call, "--window", "4", "--max-new-tokens", "12", "--slots", "3")
    vase(*call, "--method", "full", "--method", "vase-attnv", "--out", "together").lines()
    vase(*call, "--method", "vase-attnv", "--out", "alone").lines()
    (alone,) = Path("alone").iterdir()
    texts = [
        {record["id"]: record["text"] for record in read_jsonl(folder / "completions.jsonl")}
        for folder in (alone, Path("together") / alone.name)
    ]
    assert texts[0] == texts[1]


def test_a_bad_one_among_several_is_refused_before_the_first_runs(vase: Shell, model_folder: MakeModel) -> None:
    call = ("eval", "mine.jsonl", "--grader", "number", "--model", model_folder("qwen3"), "--window", "4")
    assert "not above the window" in vase.refused(*call, "--method", "random", "--budget", "16", "--budget", "4")
    typo = vase.refused(*call, "--budget", "16", "--method", "random", "--method", "ramdom")
    assert "did you mean 'random'?" in typo


def test_each_method_gets_the_options_that_it_has(vase: Shell, model_folder: MakeModel) -> None:
    Path("own.yaml").write_text(
        f"model: {model_folder('qwen3')}\nwindow: 4\nmax_new_tokens: 4\nbudget: 16\ntasks: [./mine.jsonl]\n"
        "compare:\n  methods: [full, vase-attnv, random]\n"
    )
    call = ("eval", "--recipe", "own.yaml", "--grader", "number")
    outcome = vase(*call, "-o", "n_large=5", "-o", "protect_prompt=true")
    assert outcome.lines()
    assert "note: -o n_large is for vase-attnv; no such option: full, random\n" in outcome.err
    assert "protect_prompt is for" not in outcome.err
    configs = [json.loads((folder / "run.json").read_text())["config"] for folder in Path("runs").iterdir()]
    options = {config["method"]: config["method_options"] for config in configs}
    assert {name: own.get("n_large") for name, own in options.items()} == {
        "full": None, "vase-attnv": 5, "random": None,
    }  # fmt: skip
    assert all(own["protect_prompt"] for own in options.values())
    refusal = vase.refused(*call, "-o", "nlarge=5")
    assert refusal == "-o nlarge: unknown option of full, vase-attnv, random; did you mean 'n_large'?"
    assert vase.refused(*call, "-o", "n_large=5", "-m", "full").startswith("-o n_large: unknown option of full; ")
    assert "did you mean 'full'?" in vase.refused(*call, "-o", "n_large=5", "-m", "ful,random")


def test_a_recipe_says_what_is_compared_unless_the_command_line_does(vase: Shell, model_folder: MakeModel) -> None:
    Path("own.yaml").write_text(
        f"model: {model_folder('qwen3')}\nwindow: 4\nmax_new_tokens: 4\nbudget: 16\ntasks: [./mine.jsonl]\n"
        "compare:\n  methods: [full, random]\n  budgets: [16, 24]\n"
    )
    lines = vase("eval", "--recipe", "own.yaml", "--grader", "number").lines()
    assert [line.split()[0] for line in lines[2:-1]] == ["full", "random", "random"]
    one = vase("eval", "--recipe", "own.yaml", "--grader", "number", "--method", "snapkv", "--json").lines()
    assert len(one) == 1 and "snapkv" in json.loads(one[0])["name"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("compare: {methods: [full, ramdom]}", "own.yaml:3: compare.methods: 'ramdom'"),
        ("compare: {budgets: [0]}", "own.yaml:3: compare.budgets: "),
        ("compare: {method: [full]}", "own.yaml:3: compare.method: unknown key"),
        ("compare: {methods: []}", "own.yaml:3: compare.methods: must be a list with something in it"),
    ],
)
def test_what_a_recipe_compares_is_checked(vase: Shell, written: str, message: str) -> None:
    Path("own.yaml").write_text(f"model: qwen3-8b\nbudget: 4096\n{written}\n")
    assert message in vase.refused("eval", "gsm8k", "--recipe", "own.yaml")
