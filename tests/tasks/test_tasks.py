"""Every registered task: its facts, its prompts, and its rows in the columns its source has."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest

from vase_cli import plugins
from vase_cli.errors import ConfigError, DataError
from vase_cli.tasks.base import Problem, Task, example_problem, resolve_tasks

FIXTURES = Path(__file__).parents[1] / "data" / "tasks"
NAMES = plugins.names("tasks")
GENERATED = [name for name in NAMES if plugins.load("tasks", name).generate is not None]
BENCHMARKS = [name for name in NAMES if name not in GENERATED]


def fixture_rows(name: str) -> list[dict[str, object]]:
    """A task's made-up rows; ``expected_id`` and ``expected_answer`` are what must come of each."""
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def shown_answer(problem: Problem) -> str:
    """The gold answer; of a letter, the text of the option that stands at it in the prompt."""
    if "option_order" not in problem.metadata:
        return problem.answer
    found = re.search(rf"^{problem.answer}\) (.*)$", problem.prompt, flags=re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture(autouse=True)
def no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VASE_DATA", raising=False)


def test_the_tasks_there_are() -> None:
    assert {
        "gsm8k", "math500", "aime24", "aime25", "aime26", "hmmt25", "gpqa", "amc23", "minerva", "olympiadbench",
    } <= set(NAMES)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_facts(name: str) -> None:
    task = plugins.load("tasks", name)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.title and task.license
    assert task.count is not None and task.count >= 1
    assert task.samples >= 1
    assert task.version >= 1
    assert task.path is None
    assert bool(task.hub) != (task.generate is not None)
    assert importlib.import_module(f"vase_cli.tasks.{name}").TASK is task


@pytest.mark.parametrize("name", BENCHMARKS)
def test_facts_of_a_benchmark(name: str) -> None:
    task = plugins.load("tasks", name)
    assert task.url.startswith("https://")
    assert task.max_total_tokens == 32_768
    for source in task.hub:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.id)
        assert source.revision is None or re.fullmatch(r"[0-9a-f]{40}", source.revision)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_problems(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = plugins.load("tasks", name)
    found = task.problems()
    assert len(found.problems) == task.count == len({problem.prompt for problem in found.problems})
    assert len({problem.id for problem in found.problems}) == task.count
    assert found.source == f"generated (version {task.version})"
    assert (found.skipped_rows, task.hub) == ((), ())
    assert task.problems(seed=1, limit=3).problems == found.problems[:3]
    monkeypatch.setenv("VASE_DATA", str(tmp_path))  # a folder without its file changes nothing
    assert task.problems() == found
    with plugins.load("graders", task.grader)() as grader:
        for problem in found.problems:
            assert grader.grade(problem.answer, f"\\boxed{{{problem.answer}}}").status == "correct"


@pytest.mark.parametrize("name", NAMES)
def test_grader_exists_and_knows_the_fallbacks(name: str) -> None:
    task = plugins.load("tasks", name)
    grader = plugins.load("graders", task.grader)
    assert set(task.fallbacks) <= set(grader.fallbacks_known)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_its_own_columns(name: str) -> None:
    task = plugins.load("tasks", name)
    rows = fixture_rows(name)
    problems = task.problems(data=FIXTURES).problems
    assert [problem.id for problem in problems] == [row["expected_id"] for row in rows]
    assert [shown_answer(problem) for problem in problems] == [row["expected_answer"] for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_suit_the_grader(name: str) -> None:
    task = plugins.load("tasks", name)
    with plugins.load("graders", task.grader)() as grader:
        for problem in task.problems(data=FIXTURES).problems:
            assert grader.grade(problem.answer, f"So it is \\boxed{{{problem.answer}}}.").status == "correct"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_prompt_is_the_question_and_one_line_of_instruction(name: str) -> None:
    task = plugins.load("tasks", name)
    for row, problem in zip(fixture_rows(name), task.problems(data=FIXTURES).problems, strict=True):
        question = str(row.get("question") or row.get("problem") or row.get("Question")).strip()
        body, _, instruction = problem.prompt.rpartition("\n")
        assert body.startswith(question)
        assert "step by step" in instruction and instruction.endswith("\\boxed{}.")
        if task.grader == "choice":
            assert re.search(r"\n\nA\) .+\nB\) .+\nC\) .+\nD\) .+$", body)
            assert "letter" in instruction
        else:
            assert body == question


@pytest.mark.parametrize("name", NAMES)
def test_only_the_fields_of_the_problem_are_used(name: str, tmp_path: Path) -> None:
    # A stored solution or generation next to the question must leave no trace.
    task = plugins.load("tasks", name)
    extra = {"generation": "LEAK", "solution": "LEAK", "Explanation": "LEAK", "completion": 7, "response": None}
    rows = [{**row, **extra} for row in fixture_rows(name)]
    (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert task.problems(data=tmp_path).problems == task.problems(data=FIXTURES).problems


@pytest.mark.parametrize("name", NAMES)
def test_records_are_json(name: str) -> None:
    for problem in plugins.load("tasks", name).problems(data=FIXTURES).problems:
        assert json.loads(json.dumps(dict(problem.metadata))) == problem.metadata


@pytest.mark.parametrize("name", BENCHMARKS)
def test_example_prompt(name: str) -> None:
    task = plugins.load("tasks", name)
    assert example_problem(task).prompt.startswith("How much is 2 + 2?")


@pytest.mark.parametrize("name", GENERATED)
def test_example_prompt_of_generated_problems(name: str) -> None:
    task = plugins.load("tasks", name)
    assert example_problem(task) == task.problems(limit=1).problems[0]


def test_samples_of_the_paper() -> None:
    expected = {"gsm8k": 4, "math500": 8, "gpqa": 8, "aime25": 16, "aime26": 16, "hmmt25": 16}
    assert {name: plugins.load("tasks", name).samples for name in expected} == expected


def test_counts() -> None:
    expected = {
        "gsm8k": 1319, "math500": 500, "aime24": 30, "aime25": 30, "aime26": 30, "hmmt25": 60,
        "gpqa": 198, "amc23": 40, "minerva": 272, "olympiadbench": 674,
    }  # fmt: skip
    assert {name: plugins.load("tasks", name).count for name in expected} == expected


def test_the_page_is_that_of_the_first_dataset_unless_said_otherwise() -> None:
    hmmt = plugins.load("tasks", "hmmt25")
    assert hmmt.url == "https://huggingface.co/datasets/MathArena/hmmt_feb_2025"
    assert dataclasses.replace(hmmt, url="https://example.org").url == "https://example.org"


# --- option order -------------------------------------------------------------------------------------------


def orders(**arguments: object) -> dict[str, list[int]]:
    problems = plugins.load("tasks", "gpqa").problems(data=FIXTURES, **arguments).problems
    return {problem.id: problem.metadata["option_order"] for problem in problems}


def test_option_order_is_of_seed_and_problem() -> None:
    assert orders(seed=3) == orders(seed=3)
    assert orders(seed=3) != orders(seed=4)
    assert len({tuple(order) for order in orders(seed=3).values()}) > 1
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders(seed=3).values())


def test_option_order_does_not_move_between_versions() -> None:
    # Stored runs rely on it: a change here is a new task version.
    assert orders(seed=0) == {
        "rec01": [1, 2, 3, 0],
        "rec02": [3, 2, 1, 0],
        "rec03": [0, 2, 1, 3],
        "rec04": [0, 2, 1, 3],
        "rec05": [0, 1, 3, 2],
    }


def test_option_order_ignores_limit_and_row_order(tmp_path: Path) -> None:
    whole = orders(seed=5)
    assert orders(seed=5, limit=2) == {name: whole[name] for name in ("rec01", "rec02")}
    rows = (FIXTURES / "gpqa.jsonl").read_text().splitlines()
    (tmp_path / "gpqa.jsonl").write_text("\n".join(reversed(rows)))
    problems = plugins.load("tasks", "gpqa").problems(data=tmp_path, seed=5).problems
    assert {problem.id: problem.metadata["option_order"] for problem in problems} == whole


def test_every_option_order_and_letter_comes_up() -> None:
    task = plugins.load("tasks", "gpqa")
    seen = [task.problems(data=FIXTURES, seed=seed).problems for seed in range(200)]
    assert len({tuple(problem.metadata["option_order"]) for problems in seen for problem in problems}) == 24
    letters = [problem.answer for problems in seen for problem in problems]
    assert all(0.2 < letters.count(letter) / len(letters) < 0.3 for letter in "ABCD")
    assert {shown_answer(problems[0]) for problems in seen} == {"neutron"}


# --- names to tasks -----------------------------------------------------------------------------------------


def test_group_and_names_each_once_in_order() -> None:
    names = [task.name for task in resolve_tasks(["gsm8k", "aime25", "aime", "gsm8k"])]
    assert names == ["gsm8k", "aime25", "aime24", "aime26"]


@pytest.mark.parametrize(("wrong", "hint"), [("gsm8", "gsm8k"), ("aim", "aime"), ("math50", "math500")])
def test_unknown_task_suggests(wrong: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^no task '{wrong}'; did you mean '{hint}'") as caught:
        resolve_tasks([wrong])
    assert "\n" not in str(caught.value)


def test_a_file_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "my problems (v2).jsonl"
    path.write_text('{"problem": "1 + 1?", "answer": 2}\n{"problem": "2 + 2?", "answer": 4}')
    (task,) = resolve_tasks([str(path)], grader="math")
    assert task.name == "my-problems-v2"
    assert (task.grader, task.samples, task.count, task.hub) == ("math", 1, None, ())
    found = task.problems()
    assert found.source == str(path)
    assert [(problem.id, problem.answer) for problem in found.problems] == [("0", "2"), ("1", "4")]


def test_a_file_keeps_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "1 + 1?", "answer": 2}')
    (task,) = resolve_tasks([str(path)], grader="math")
    monkeypatch.setenv("VASE_DATA", str(FIXTURES))
    assert len(task.problems(data=FIXTURES).problems) == 1


def test_a_choice_file_takes_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "quiz.jsonl"
    ready = {"question": "Which?\nA) x\nB) y", "answer": "B"}
    columns = {
        "question": "Which?", "correct_answer": "right", "incorrect_answer_1": "w1", "incorrect_answer_2": "w2",
        "incorrect_answer_3": "w3",
    }  # fmt: skip
    path.write_text(json.dumps(ready) + "\n" + json.dumps(columns))
    (task,) = resolve_tasks([str(path)], grader="choice")
    first, second = task.problems().problems
    assert (first.answer, dict(first.metadata)) == ("B", {})
    assert shown_answer(second) == "right"
    assert "letter" in first.prompt


def test_a_file_without_grader(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"problem": "1 + 1?", "answer": 2}')
    with pytest.raises(ConfigError, match=r"mine\.jsonl needs --grader, one of: .*math"):
        resolve_tasks([str(path)])
    with pytest.raises(ConfigError, match="no grader 'maths'; did you mean 'math'"):
        resolve_tasks([str(path)], grader="maths")
    own = tmp_path / "gsm8k.jsonl"
    own.write_text('{"problem": "1 + 1?", "answer": 2}')
    with pytest.raises(ConfigError, match=r"or run the task itself: gsm8k --data .*gsm8k\.jsonl"):
        resolve_tasks([str(own)])


def test_grader_without_a_file() -> None:
    with pytest.raises(ConfigError, match="--grader math is for problem files"):
        resolve_tasks(["gsm8k"], grader="math")


def test_missing_file_suggests_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"no such file: .*mine2\.jsonl; did you mean '.*/mine\.jsonl'\?"):
        resolve_tasks([str(tmp_path / "mine2.jsonl")], grader="math")
    with pytest.raises(DataError, match="there is no folder"):
        resolve_tasks([str(tmp_path / "nowhere" / "mine.jsonl")], grader="math")
    with pytest.raises(DataError, match="is a folder"):
        resolve_tasks([f"{tmp_path}/"], grader="math")


def test_unknown_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("hello")
    with pytest.raises(ConfigError, match=r"mine\.txt: unknown kind of file; give \.jsonl, \.json, \.csv or \.parquet"):
        resolve_tasks([str(path)], grader="math")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.jsonl").write_text('{"problem": "1 + 1?", "answer": 2}')
    names = [str(tmp_path / folder / "mine.jsonl") for folder in ("one", "two")]
    with pytest.raises(ConfigError, match="another task of this run is called 'mine'"):
        resolve_tasks(names, grader="math")
    assert len(resolve_tasks([names[0], names[0]], grader="math")) == 1


def test_third_party_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = dataclasses.replace(plugins.load("tasks", "aime24"), name="contest", groups=("aime", "theirs"), samples=2)

    class Entry:
        name = "contest"

        def load(self) -> Task:
            return theirs

    monkeypatch.setattr(plugins, "_third_party", lambda group: {"contest": Entry()} if group == "tasks" else {})
    assert "contest" in plugins.names("tasks")
    assert resolve_tasks(["contest"]) == [theirs]
    assert resolve_tasks(["theirs"]) == [theirs]
    assert [task.name for task in resolve_tasks(["aime"])] == ["aime24", "aime25", "aime26", "contest"]
    (tmp_path / "contest.jsonl").write_text('{"problem": "1 + 1?", "answer": 2}')
    assert len(theirs.problems(data=tmp_path).problems) == 1


def test_importing_the_tasks_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from vase_cli.tasks.base import resolve_tasks\n"
        "import vase_cli.cli.tasks\n"
        "resolve_tasks(['aime', 'gpqa'])\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
