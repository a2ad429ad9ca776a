"""Which source a task's problems come from, and the hub: facts asked of it, errors, the way out."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from vase_cli import plugins
from vase_cli.errors import DataError
from vase_cli.tasks.base import Task

FIXTURES = Path(__file__).parents[1] / "data" / "tasks"


@pytest.fixture(autouse=True)
def no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VASE_DATA", raising=False)


# --- which source -------------------------------------------------------------------------------------------


def one_row(path: Path, answer: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"question": "How many?", "answer": answer}))
    return path


def hub_rows(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Lets the hub give these rows; the list returned fills with what was asked of it."""
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, *, split: str, revision: str | None) -> Any:
        asked.append((path, name, split, revision))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def fail_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    import datasets

    def load_dataset(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_data_wins_over_the_variable_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = dataclasses.replace(plugins.load("tasks", "gsm8k"), count=1)
    hub_rows(monkeypatch, [{"question": "How many?", "answer": "#### 1"}])
    from_hub = task.problems()
    assert (from_hub.problems[0].answer, from_hub.source) == ("1", f"hub openai/gsm8k@{task.hub[0].revision}")

    variable = one_row(tmp_path / "variable" / "gsm8k.jsonl", "2")
    monkeypatch.setenv("VASE_DATA", str(variable.parent))
    from_variable = task.problems()
    assert (from_variable.problems[0].answer, from_variable.source) == ("2", str(variable))
    monkeypatch.setenv("VASE_DATA", str(variable))
    assert task.problems() == from_variable

    given = one_row(tmp_path / "given" / "gsm8k.json", "3")
    from_given = task.problems(data=given.parent)
    assert (from_given.problems[0].answer, from_given.source) == ("3", str(given))
    assert task.problems(data=given) == from_given


def test_a_task_the_variable_lacks_comes_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASE_DATA", str(tmp_path))
    hub_rows(monkeypatch, [{"question": "How many?", "answer": "#### 1"}])
    task = dataclasses.replace(plugins.load("tasks", "gsm8k"), count=1)
    assert task.problems().source.startswith("hub openai/gsm8k@")


def test_a_folder_given_that_lacks_the_task(tmp_path: Path) -> None:
    one_row(tmp_path / "math500.csv", "1")
    with pytest.raises(DataError, match=r"has no gsm8k\.jsonl\|\.json\|\.csv\|\.parquet; it has: math500\.csv"):
        plugins.load("tasks", "gsm8k").problems(data=tmp_path)


def test_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_row(tmp_path / "gsm8k.jsonl", "1")
    with pytest.raises(DataError, match=r"no such file: .*gsm8.jsonl; did you mean '.*gsm8k\.jsonl'"):
        plugins.load("tasks", "gsm8k").problems(data=tmp_path / "gsm8.jsonl")
    monkeypatch.setenv("VASE_DATA", str(tmp_path / "nowhere" / "here"))
    with pytest.raises(DataError, match=r"no such file: \$VASE_DATA \(.*here\) \(there is no folder"):
        plugins.load("tasks", "gsm8k").problems()


def test_a_file_named_after_another_task_is_refused(tmp_path: Path) -> None:
    path = one_row(tmp_path / "math500.jsonl", "1")
    with pytest.raises(DataError, match="is named after the task 'math500', not 'gsm8k'"):
        plugins.load("tasks", "gsm8k").problems(data=path)
    assert plugins.load("tasks", "gsm8k").problems(data=one_row(tmp_path / "some.jsonl", "1")).problems


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = one_row(tmp_path / "gsm8k.jsonl", "1")

    def read_bytes(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(DataError, match=r"gsm8k\.jsonl: Permission denied"):
        plugins.load("tasks", "gsm8k").problems(data=path)


def test_a_different_number_of_problems_is_said(tmp_path: Path) -> None:
    found = plugins.load("tasks", "gsm8k").problems(data=FIXTURES, limit=1)
    assert found.source == f"{FIXTURES / 'gsm8k.jsonl'} (3 problems; the whole gsm8k has 1,319)"
    whole = dataclasses.replace(plugins.load("tasks", "gsm8k"), count=3)
    assert whole.problems(data=FIXTURES).source == str(FIXTURES / "gsm8k.jsonl")


# --- the hub ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in plugins.names("tasks") if plugins.load("tasks", name).hub])
def test_hub_rows_read_like_local_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    facts = plugins.load("tasks", name)
    task = dataclasses.replace(facts, count=len(rows) * len(facts.hub))
    asked = hub_rows(monkeypatch, rows)
    found = task.problems(seed=1)
    assert asked == [(source.id, source.config, source.split, source.revision) for source in task.hub]
    assert found.source == "hub " + " + ".join(f"{source.id}@{source.revision}" for source in task.hub)
    if len(task.hub) == 1:
        assert found.problems == facts.problems(data=FIXTURES, seed=1).problems
    else:
        assert [problem.id for problem in found.problems] == ["feb-1", "feb-2", "nov-1", "nov-2"]


def test_hub_rows_without_ids_of_joined_datasets_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_rows(monkeypatch, [{"problem": "1?", "answer": "1"}])
    task = dataclasses.replace(plugins.load("tasks", "hmmt25"), count=2)
    assert [problem.id for problem in task.problems().problems] == ["feb-0", "nov-1"]


def test_bad_hub_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_rows(monkeypatch, [{"question": "1?", "answer": "#### 1"}, {"question": "2?", "answer": ""}])
    task = dataclasses.replace(plugins.load("tasks", "gsm8k"), count=2)
    with pytest.raises(DataError, match=r"^openai/gsm8k row 2: field 'answer' is empty"):
        task.problems()
    assert len(task.problems(skip_bad_rows=True).problems) == 1


def test_hub_with_another_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_rows(monkeypatch, [{"question": "1?", "answer": "#### 1"}])
    with pytest.raises(DataError, match=r"^hub openai/gsm8k@\w{40} gave 1 rows for gsm8k, which has 1,319 problems$"):
        plugins.load("tasks", "gsm8k").problems(limit=1)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub (LocalEntryNotFoundError)\nmore\nlines"),
        OSError("disk full"),
        RuntimeError(""),
    ],
)
def test_offline_is_one_line_with_the_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_hub(monkeypatch, error)
    with pytest.raises(DataError) as caught:
        plugins.load("tasks", "gsm8k").problems()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "openai/gsm8k" in message and type(error).__name__ in message
    assert "go online" in message and "--data gsm8k.jsonl" in message and "$VASE_DATA" in message
    assert "hf auth login" not in message


def test_gated_names_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.exceptions import DatasetNotFoundError

    fail_hub(monkeypatch, DatasetNotFoundError("Dataset 'Idavidrein/gpqa' is a gated dataset on the Hub."))
    with pytest.raises(DataError) as caught:
        plugins.load("tasks", "gpqa").problems()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert (
        "it is gated" in message
        and "`hf auth login`" in message
        and "https://huggingface.co/datasets/Idavidrein/gpqa" in message
    )
    assert "--data gpqa.jsonl" in message


def test_interrupt_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(KeyboardInterrupt):
        plugins.load("tasks", "gsm8k").problems()


def test_retries_of_the_client_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import datasets

    client_log = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(client_log, "level", logging.INFO)

    def load_dataset(*arguments: object, **named: object) -> None:
        logging.getLogger("huggingface_hub").warning("Retrying in 8s [Retry 5/5].")
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError):
        plugins.load("tasks", "gsm8k").problems()
    assert not caplog.records
    assert client_log.level == logging.INFO


def test_problem_sets_are_plain_values() -> None:
    task: Task = plugins.load("tasks", "gpqa")
    assert task.problems(data=FIXTURES, seed=2) == task.problems(data=FIXTURES, seed=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.problems(data=FIXTURES).problems[0].answer = "B"  # type: ignore[misc]
