"""What a task is, its problems, and how names on the command line become tasks.

A task is one file of facts that defines ``TASK``; the file's name is the task's name. Its problems come
from a local file where one is given, else from the hub at a pinned revision, or from the task's own generator.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.errors import ConfigError, DataError, did_you_mean
from vase_cli.tasks._files import SUFFIXES, find_data, missing_file, read_rows
from vase_cli.tasks._hub import HubSource, read_hub
from vase_cli.tasks._rows import Fields, Row, RowError, RowReader, read_answer, read_choice

__all__ = [
    "BOXED_ANSWER",
    "BOXED_LETTER",
    "Fields",
    "HubSource",
    "Problem",
    "ProblemSet",
    "RowError",
    "RowReader",
    "Task",
    "example_problem",
    "resolve_tasks",
]

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
    """A task's problems, where they came from, and one line for each row that was skipped."""

    task: str
    problems: tuple[Problem, ...]
    source: str
    skipped_rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A benchmark as facts.

    ``hub`` is empty where ``generate`` makes the problems, the same ones at each call.
    ``fallbacks`` are the grader's rules for an answer that is not in the last ``\\boxed{}``, in the order
    they are tried. ``prompt_format`` holds ``{question}``. ``max_new_tokens`` None: only
    ``max_total_tokens`` (prompt and completion) limits. ``version`` rises with any change that moves results.
    """

    name: str
    title: str
    hub: tuple[HubSource, ...]
    count: int | None  # problems on the hub or generated; None for a user's own file
    license: str
    url: str
    grader: str
    samples: int  # completions per problem unless said otherwise
    version: int = 1
    fallbacks: tuple[str, ...] = ()
    prompt_format: str = BOXED_ANSWER
    groups: tuple[str, ...] = ()
    gated: bool = False
    max_new_tokens: int | None = None
    max_total_tokens: int = 32_768
    note: str = ""
    generate: Callable[[], Iterable[Problem]] | None = field(default=None, repr=False)
    read: RowReader = field(default=read_answer, repr=False)
    path: Path | None = None  # a user's own file, the only place its problems come from

    @property
    def hub_id(self) -> str | None:
        """Hub dataset, several joined by " + "; None for generated problems and a user's own file."""
        return " + ".join(source.id for source in self.hub) or None

    @property
    def hub_config(self) -> str | None:
        """Dataset configuration; None is the default one."""
        return self.hub[0].config if self.hub else None

    @property
    def split(self) -> str | None:
        """Dataset split; None without a dataset."""
        return self.hub[0].split if self.hub else None

    @property
    def revision(self) -> str | None:
        """Pinned commit hash, several joined by " + "; None where any is not pinned."""
        pinned = [source.revision for source in self.hub if source.revision]
        return " + ".join(pinned) if pinned and len(pinned) == len(self.hub) else None

    def problems(
        self, *, data: Path | None = None, seed: int = 0, limit: int | None = None, skip_bad_rows: bool = False
    ) -> ProblemSet:
        """The problems, in the order of their source: ``data``, else ``$VASE_DATA``, else the generator or the hub.

        ``seed`` draws the order of options where there are any. ``limit`` keeps the first so many usable
        rows; the whole source is checked all the same.

        Raises:
            ConfigError: ``limit`` below 1.
            DataError: the source cannot be read, has bad rows (unless ``skip_bad_rows``), or no usable one.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be 1 or more, not {limit}")
        path = self.path or find_data(self.name, data)
        if path is None and self.generate is not None:
            return ProblemSet(self.name, tuple(self.generate())[:limit], f"generated (version {self.version})")
        if path is not None:
            source = str(path)
            rows = list(read_rows(path))
        else:
            source = "hub " + " + ".join(str(part) for part in self.hub)
            rows = [row for part in self.hub for row in read_hub(self.name, part, gated=self.gated)]
            if len(rows) != self.count:
                # At a pinned revision this is a damaged cache or a changed loader, never a newer dataset.
                raise DataError(f"{source} gave {len(rows):,} rows for {self.name}, which has {self.count:,} problems")
        problems, faults = self.parse(rows, seed=seed)
        if faults and not skip_bad_rows:
            more = f" (and {len(faults) - 1:,} more bad rows)" if len(faults) > 1 else ""
            raise DataError(f"{faults[0]}{more}; mend it, or leave such rows out with --skip-bad-rows")
        if not problems:
            why = f"all {len(faults):,} rows are bad, the first: {faults[0]}" if faults else "it holds no rows"
            raise DataError(f"no usable problem in {source}: {why}")
        if path is not None and self.count is not None and len(problems) != self.count:
            source += f" ({len(problems):,} problems; the whole {self.name} has {self.count:,})"
        return ProblemSet(self.name, tuple(problems[:limit]), source, tuple(faults))

    def parse(self, rows: Iterable[Row], *, seed: int) -> tuple[list[Problem], list[str]]:
        """Problems of the usable rows, and one line for each other row: where it is and what is wrong."""
        problems: list[Problem] = []
        faults: list[str] = []
        first_seen: dict[str, str] = {}
        for index, row in enumerate(rows):
            try:
                if row.fields is None:
                    raise RowError(row.fault)
                fields = Fields(row.fields)
                own_id = fields.row_id()
                problem_id = row.id_prefix + (str(index) if own_id is None else own_id)
                question, answer, metadata = self.read(fields, problem_id, seed)
                if problem_id in first_seen:
                    raise RowError(f"duplicate id '{problem_id}', first at {first_seen[problem_id]}")
            except RowError as fault:
                faults.append(f"{row.where}: {fault}")
                continue
            first_seen[problem_id] = row.where
            problems.append(Problem(problem_id, self.prompt_format.replace("{question}", question), answer, metadata))
        return problems, faults


def example_problem(task: Task) -> Problem:
    """A made-up problem as the task would pose it; the bare format if its rows need fields of their own.

    A task that generates its problems gives the first.
    """
    if task.generate is not None:
        return next(iter(task.generate()))
    options = {"Correct Answer": "4", "Incorrect Answer 1": "2", "Incorrect Answer 2": "3", "Incorrect Answer 3": "5"}
    fields = {"question": "How much is 2 + 2?", "answer": "4", **options}
    problems, _ = task.parse([Row("example", fields)], seed=0)
    return problems[0] if problems else Problem("example", task.prompt_format, "")


def resolve_tasks(names: Sequence[str], grader: str | None = None) -> list[Task]:
    """The tasks that names stand for, each once: registered tasks, groups of them, and problem files.

    A file is a task of its own, named after its stem; ``grader`` says how it is graded.

    Raises:
        ConfigError: no such task or grader; a file without ``grader``, or ``grader`` without a file.
        DataError: no such file.
    """
    registered = plugins.names("tasks")
    found: dict[str, Task] = {}
    for name in names:
        if _is_path(name) and name not in registered:
            task = _file_task(name, grader)
            if task.name in found and found[task.name] != task:
                raise ConfigError(f"{name}: another task of this run is called '{task.name}'; rename the file")
            found[task.name] = task
        elif name in registered:
            found.setdefault(name, plugins.load("tasks", name))
        else:
            every = [plugins.load("tasks", each) for each in registered]
            members = [task for task in every if name in task.groups]
            if not members:
                groups = {group for task in every for group in task.groups}
                raise ConfigError(f"no task '{name}'; {did_you_mean(name, sorted({*registered, *groups}))}")
            for task in members:
                found.setdefault(task.name, task)
    if grader is not None and all(task.path is None for task in found.values()):
        raise ConfigError(f"--grader {grader} is for problem files; a registered task has its own grader")
    return list(found.values())


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or Path(name).suffix in SUFFIXES


def _file_task(name: str, grader: str | None) -> Task:
    path = Path(name).expanduser()
    if not path.is_file():
        raise DataError(missing_file(name, path) if not path.is_dir() else f"{name} is a folder; name a file in it")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{name}: unknown kind of file; give {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    graders = plugins.names("graders")
    if grader is None:
        own = f" (or run the task itself: {path.stem} --data {name})" if path.stem in plugins.names("tasks") else ""
        raise ConfigError(f"{name} needs --grader, one of: {', '.join(graders)}{own}")
    if grader not in graders:
        raise ConfigError(f"no grader '{grader}'; {did_you_mean(grader, graders)}")
    choice = grader == "choice"
    return Task(
        name=re.sub(r"[^\w.-]+", "-", path.stem).strip("-.") or "problems",
        title=f"problems of {path.name}",
        hub=(),
        count=None,
        license="",
        url="",
        grader=grader,
        samples=1,
        prompt_format=BOXED_LETTER if choice else BOXED_ANSWER,
        read=read_choice if choice else read_answer,
        path=path,
    )
