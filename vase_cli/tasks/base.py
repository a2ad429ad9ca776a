"""Tasks, their problems, and the tasks that names on the command line stand for.

A task is one file of facts that defines ``TASK`` and has its name. Its problems come from a local file if the user
names one, else from the hub at a pinned revision, or from the task's own generator.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import ConfigError, DataError, did_you_mean, user_path
from vase_cli.tasks._files import SUFFIXES, UNKNOWN_KIND, find_data, missing_file, read_rows
from vase_cli.tasks._hub import HubSource, read_hub
from vase_cli.tasks._rows import Fields, Row, RowError, RowReader, read_answer, read_choice

__all__ = [
    "BOXED_ANSWER", "BOXED_LETTER", "Fields", "HubSource", "Problem", "ProblemSet", "RowError", "RowReader", "Task",
    "example_problem", "resolve_tasks",
]  # fmt: skip

BOXED_ANSWER = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
BOXED_LETTER = "{question}\nPlease reason step by step, and put the letter of the correct option within \\boxed{}."


@dataclass(frozen=True)
class Problem:
    """One problem: ``prompt`` is the whole user message, ``answer`` the gold answer its grader compares with."""

    id: str
    prompt: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemSet:
    """A task's problems."""

    problems: tuple[Problem, ...]
    source: str
    skipped_rows: tuple[str, ...] = ()  # a message for each


@dataclass(frozen=True)
class Task:
    """A benchmark as facts."""

    name: str
    title: str
    grader: str
    hub: tuple[HubSource, ...] = ()  # empty where ``generate`` makes the problems
    count: int | None = None  # problems on the hub or generated; None for a user's own file
    license: str = ""
    url: str = ""  # its page; by default the dataset's on the hub
    samples: int = 1  # completions per problem by default
    version: int = 1  # rises with any change that moves results
    fallbacks: tuple[str, ...] = ()  # the grader's rules for an answer that is not in the last box, in their order
    prompt_format: str = BOXED_ANSWER  # holds ``{question}``
    groups: tuple[str, ...] = ()
    gated: bool = False
    max_new_tokens: int | None = None  # None: only ``max_total_tokens`` limits
    max_total_tokens: int = 32_768  # of prompt and completion
    note: str = ""
    generate: Callable[[], Iterable[Problem]] | None = field(default=None, repr=False)  # the same ones at each call
    read: RowReader = field(default=read_answer, repr=False)
    path: Path | None = None  # a user's own file, the only place its problems come from

    def __post_init__(self) -> None:
        if self.hub and not self.url:
            object.__setattr__(self, "url", f"https://huggingface.co/datasets/{self.hub[0].id}")

    def problems(
        self, *, data: Path | None = None, seed: int = 0, limit: int | None = None, skip_bad_rows: bool = False
    ) -> ProblemSet:
        """The problems, in the order of their source: ``data``, else ``$VASE_DATA``, else the generator or the hub.

        ``seed`` draws the order of options where there are any. ``limit``, 1 or more, is the number of first usable
        rows to keep; the whole source is checked all the same. DataError if it cannot be read, has bad rows (unless
        ``skip_bad_rows``), or no usable one.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be 1 or more, not {limit}")
        path = self.path or find_data(self.name, data)
        if path is not None:
            source, rows = str(path), list(read_rows(path))
        elif self.generate is not None:
            with plugins.blamed("tasks", self.name):
                return ProblemSet(tuple(self.generate())[:limit], f"generated (version {self.version})")
        else:
            source = "hub " + " + ".join(map(str, self.hub))
            rows = [row for part in self.hub for row in read_hub(self.name, part, gated=self.gated)]
            if len(rows) != self.count:
                # At a pinned revision this is a damaged cache or a changed loader, never a newer dataset.
                raise DataError(f"{source} gave {len(rows):,} rows for {self.name}, which has {self.count:,} problems")
        with plugins.blamed("tasks", self.name):
            problems, faults = self.parse(rows, seed=seed)
        if faults and not skip_bad_rows:
            more = f" (and {len(faults) - 1:,} more bad rows)" if len(faults) > 1 else ""
            raise DataError(f"{faults[0]}{more}; fix it, or skip such rows with --skip-bad-rows")
        if not problems:
            why = f"all {len(faults):,} rows are bad, the first: {faults[0]}" if faults else "it holds no rows"
            raise DataError(f"no usable problem in {source}: {why}")
        if path is not None and self.count is not None and len(problems) != self.count:
            source += f" ({len(problems):,} problems; the whole {self.name} has {self.count:,})"
        return ProblemSet(tuple(problems[:limit]), source, tuple(faults))

    def parse(self, rows: Iterable[Row], *, seed: int) -> tuple[list[Problem], list[str]]:
        """Problems of the usable rows, and a message for each other row: where it is and what is wrong."""
        problems: dict[str, Problem] = {}
        first_seen: dict[str, str] = {}
        faults = []
        for index, row in enumerate(rows):
            try:
                fields = row.fields()
                name = row.id_prefix + (fields.row_id() or str(index))
                question, answer, metadata = self.read(fields, name, seed)
                if name in problems:
                    raise RowError(f"duplicate id '{name}', first at {first_seen[name]}")
                problems[name] = Problem(name, self.prompt_format.replace("{question}", question), answer, metadata)
                first_seen[name] = row.where
            except RowError as fault:
                faults.append(f"{row.where}: {fault}")
        return list(problems.values()), faults


def example_problem(task: Task) -> Problem:
    """The first generated problem, or a made-up one; the bare format if the task's rows need fields of their own."""
    if task.generate is not None:
        return next(iter(task.generate()))
    options = {"Correct Answer": "4", "Incorrect Answer 1": "2", "Incorrect Answer 2": "3", "Incorrect Answer 3": "5"}
    problems, _ = task.parse([Row("example", {"question": "How much is 2 + 2?", "answer": "4", **options})], seed=0)
    return problems[0] if problems else Problem("example", task.prompt_format, "")


def resolve_tasks(names: Sequence[str], grader: str | None = None) -> list[Task]:
    """The tasks that names stand for, each once: registered tasks, groups of them, and problem files.

    A file is a task of its own, named after its stem; ``grader`` says how it is graded. ConfigError for no such task or
    grader, a file without ``grader``, or ``grader`` without a file; DataError for no such file.
    """
    tasks: dict[str, Task] = {}
    for name in names:
        for task in _tasks_of(name, grader):
            if tasks.setdefault(task.name, task) != task:
                raise ConfigError(f"{name}: another task of this run is called '{task.name}'; rename the file")
    if grader is not None and all(task.path is None for task in tasks.values()):
        raise ConfigError(f"--grader {grader} is for problem files; a registered task has its own grader")
    return list(tasks.values())


def _tasks_of(name: str, grader: str | None) -> list[Task]:
    registered = plugins.names("tasks")
    if name in registered:
        return [_registered(name)]
    if "/" in name or "\\" in name or Path(name).suffix in SUFFIXES:
        return [_file_task(name, grader)]
    tasks: list[Task] = []
    for known in registered:
        with contextlib.suppress(ConfigError):  # a broken plug-in matters to those who name it
            tasks.append(_registered(known))
    if members := [task for task in tasks if name in task.groups]:
        return members
    groups = {group for task in tasks for group in task.groups}
    raise ConfigError(f"no task '{name}'; {did_you_mean(name, {*registered, *groups})}")


def _registered(name: str) -> Task:
    with plugins.blamed("tasks", name):
        if not isinstance(task := plugins.load("tasks", name), Task):
            raise TypeError(f"it is of type {type(task).__name__}, not a Task")
        return task


def _file_task(name: str, grader: str | None) -> Task:
    path = user_path(name, DataError)
    if path.is_dir():
        raise DataError(f"{name} is a folder; name a file in it")
    if not path.exists():
        raise DataError(missing_file(name, path))
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{name}: {UNKNOWN_KIND}")
    if grader is None:
        own = f" (or run the task itself: {path.stem} --data {name})" if path.stem in plugins.names("tasks") else ""
        raise ConfigError(f"{name} needs --grader, one of: {', '.join(plugins.names('graders'))}{own}")
    plugins.load("graders", grader)
    task = re.sub(r"[^\w.-]+", "-", path.stem).strip("-.") or "problems"
    prompt_format, read = (BOXED_LETTER, read_choice) if grader == "choice" else (BOXED_ANSWER, read_answer)
    return Task(task, f"problems of {path.name}", grader, prompt_format=prompt_format, read=read, path=path)
