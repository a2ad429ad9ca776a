"""``vase grade``: stored texts graded again."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.cli_examples import (
    SMALL,
    Shell,
    clean_environment,
    only_run,
    open_shell,
    problem_rows,
    read_jsonl,
    write_rows,
)
from helpers.run_examples import a_run, a_sample, a_task, open_run, store

from vase_cli.runs.folder import RunFolder
from vase_cli.runs.schema import Sample

RUNS = Path("runs")


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return open_shell(tmp_path, monkeypatch, capsys)


def stored_run(*samples: Sample) -> Path:
    """A run folder with these records; tasks gsm8k (number, last_number) and aime (integer)."""
    run = a_run(a_task(problems=4, samples=1), a_task("aime", problems=1, samples=1, grader="integer", fallbacks=[]))
    with open_run(RUNS, run) as folder:
        store(folder, *samples)
    return folder.path


WRONGLY_GRADED = [
    a_sample(0, text="\\boxed{5}", grade="wrong", extracted="50", rule="boxed"),
    a_sample(1, text="\\boxed{6}", grade="wrong", extracted="6", rule="boxed"),
    a_sample(2, text="so it is 5", grade="no_answer", extracted=None, rule=""),
    a_sample(3, text="", grade="error", finish_reason="error", error="layer 3 is not finite", extracted=None, rule=""),
    a_sample(0, task="aime", text="<think>\\boxed{5}", grade="correct", thought_open=False),
]


def test_changed_grades_keep_the_old_ones_beside(vase: Shell) -> None:
    folder = stored_run(*WRONGLY_GRADED)
    texts, before = (folder / "completions.jsonl").read_bytes(), (folder / "grades.jsonl").read_bytes()
    outcome = vase("grade", folder, "--json")
    (line,) = outcome.lines()
    assert outcome.err.splitlines() == [f"3 grades changed; the old ones are in {folder / 'grades.jsonl.1'}"]
    assert (folder / "grades.jsonl.1").read_bytes() == before
    assert (folder / "completions.jsonl").read_bytes() == texts
    records = read_jsonl(folder / "grades.jsonl")
    assert [(record["grade"], record["extracted"], record["rule"], record["published"]) for record in records] == [
        ("correct", "5", "boxed", "correct"),
        ("wrong", "6", "boxed", "wrong"),
        ("correct", "5", "last_number", "no_answer"),
        ("error", None, "", "error"),
        ("no_answer", None, "", "correct"),
    ]
    assert [record["id"] for record in records] == [sample.id for sample in WRONGLY_GRADED]
    summary = json.loads(line)
    assert summary == json.loads((folder / "summary.json").read_text())
    gsm8k, aime = summary["tasks"]["gsm8k"], summary["tasks"]["aime"]
    assert (gsm8k["accuracy"], gsm8k["published_accuracy"], gsm8k["verdicts_differ"]) == (0.5, 0.25, 1)
    assert (aime["accuracy"], aime["published_accuracy"], aime["verdicts_differ"]) == (0.0, 1.0, 1)
    assert gsm8k["fallback_rules"] == {"last_number": 1}

    again = vase("grade", folder)
    assert again.err.splitlines() == ["0 grades changed"]
    assert re.search(r"^gsm8k +50\.0% ± 28\.9 ", again.out, re.MULTILINE)
    published = "graded as published, by the last box anywhere, the thought included"
    assert f"aime: {published}: 100.0%, 1 sample otherwise" in again.lines()
    assert not (folder / "grades.jsonl.2").exists()


def test_no_model_is_needed(vase: Shell, model_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    write_rows(Path("mine.jsonl"), problem_rows(3))
    first = vase("eval", "mine.jsonl", "--grader", "number", "--model", model, *SMALL)
    shutil.rmtree(model)
    Path("mine.jsonl").unlink()
    folder = only_run(RUNS)
    again = vase("grade", folder)
    assert again.lines() == first.lines()
    assert again.err == "0 grades changed\n"


def test_neither_torch_nor_transformers_is_imported(vase: Shell, tmp_path: Path) -> None:
    folder = stored_run(*WRONGLY_GRADED)
    script = (
        "import sys\nfrom vase_cli.cli.app import main\n"
        f"try:\n    main(['grade', {str(folder)!r}])\n"
        "finally:\n    print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=clean_environment(tmp_path)
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "[]"
    assert done.stderr.startswith("3 grades changed")


def test_what_is_not_a_graded_run_is_refused(vase: Shell, model_folder: Callable[..., Path]) -> None:
    written = "name one that `vase eval` has written"
    assert vase.refused("grade", "nowhere") == f"no run folder at nowhere; {written}"
    assert vase.refused("grade", ".") == f". is not a run folder: it has no run.json; {written}"
    vase("run", "hello", "--model", model_folder("qwen3"), *SMALL, "--out", "runs").lines()
    refusal = f"{RUNS} is not a run folder: it has no run.json; name one of the 1 in it, such as {only_run(RUNS)}"
    assert vase.refused("grade", RUNS) == refusal
    assert "'prompts' has no right answers: it was made by `vase run`" in vase.refused("grade", only_run(RUNS))
    assert "Missing argument 'run' (see vase grade --help)" in vase.refused("grade")


def test_a_folder_in_use_is_refused_and_untouched(vase: Shell) -> None:
    folder = stored_run(*WRONGLY_GRADED)
    before = (folder / "grades.jsonl").read_bytes()
    with RunFolder(folder):
        assert "is in use by process" in vase.refused("grade", folder)
    assert (folder / "grades.jsonl").read_bytes() == before


def test_a_grader_that_is_gone_is_refused(vase: Shell) -> None:
    run = a_run(a_task(grader="chemistry"))
    with open_run(RUNS, run) as folder:
        store(folder, a_sample())
    assert "no grader 'chemistry'" in vase.refused("grade", folder.path)


def test_a_part_of_a_run_is_graded_and_says_so(vase: Shell) -> None:
    folder = stored_run(*WRONGLY_GRADED[:2])
    outcome = vase("grade", folder)
    assert "not complete: 2 of 5 samples" in outcome.lines()
