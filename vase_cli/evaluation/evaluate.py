"""Batch evaluation: tasks to problems, prompts, completions, grades, one stored line each, and a summary."""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vase_cli import plugins
from vase_cli.engine.assembly import Assembly, Part, measured
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.device import gpu_names
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, EngineStats, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, DataError
from vase_cli.evaluation.regrade import graded
from vase_cli.evaluation.repetition import has_garbage_tail, has_repetition
from vase_cli.evaluation.summary import summarize
from vase_cli.graders.base import Grader
from vase_cli.models.describe import weights_digest
from vase_cli.models.tokenizer import Prompt
from vase_cli.runs.environment import environment
from vase_cli.runs.folder import RunFolder, config_hash, now, run_name
from vase_cli.runs.schema import FORMAT
from vase_cli.runs.stored import load_run
from vase_cli.tasks.base import Problem, ProblemSet, Task

_SAMPLES_BETWEEN_SESSION_WRITES = 8


class Progress(Protocol):
    """Told what happens while a run goes on."""

    def note(self, line: str) -> None:
        """One line the user should read."""
        ...

    def start(self, task: str, finished: int, planned: int, engine: Engine | None) -> None:
        """A task begins, with so many of its planned samples stored already; no engine if that is all of them."""
        ...

    def tokens(self, tokens: Sequence[tuple[Request, int]]) -> None:
        """These tokens were generated, one for each of some requests."""
        ...

    def sample(self, record: Mapping[str, Any]) -> None:
        """A sample was finished, graded and stored."""
        ...


@dataclass(frozen=True)
class FinishedRun:
    """What an evaluation leaves: its folder (None if nothing is stored), summary, and every sample by id."""

    path: Path | None
    summary: dict[str, Any]
    records: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class TaskPart:
    """One task of an evaluation with its problems, how often each is sampled, and its resolved part."""

    task: Task
    problems: ProblemSet
    samples: int
    part: Part


def prepare(
    assembly: Assembly, tasks: Sequence[Task], *, data: Path | None = None, skip_bad_rows: bool = False
) -> list[TaskPart]:
    """Load the problems and resolve budgets and limits; no weight is read.

    Raises:
        ConfigError, DataError: one line.
    """
    recipe = assembly.recipe
    parts = []
    for task in tasks:
        part = assembly.part(task.name, max_new_tokens=task.max_new_tokens, max_total_tokens=task.max_total_tokens)
        problems = task.problems(data=data, seed=recipe.seed, limit=recipe.limit, skip_bad_rows=skip_bad_rows)
        _check_golds(task, problems)
        parts.append(TaskPart(task, problems, recipe.samples or task.samples, part))
    return parts


def _check_golds(task: Task, problems: ProblemSet) -> None:
    """Refuse a gold answer that no completion could match, before anything is generated for it."""
    with plugins.load("graders", task.grader)() as grader:
        for problem in problems.problems:
            try:
                grader.check_gold(problem.answer)
            except DataError as error:
                raise DataError(f"{problems.source}: problem {problem.id} of {task.name}: {error}") from error


def evaluate(
    assembly: Assembly,
    parts: Sequence[TaskPart],
    *,
    root: Path | None,
    command: Sequence[str],
    progress: Progress,
    raw: bool = False,
) -> FinishedRun:
    """Generate, grade and store every sample that the run's folder does not hold yet.

    On Ctrl-C and on an error what was finished is stored, and the summary says that it is of a part.

    Args:
        assembly: recipe and model.
        parts: from :func:`prepare`; a task without a grader is not graded.
        root: the folder of all runs; None stores nothing.
        command: the command line, for the record.
        progress: told what happens.
        raw: give prompts to the model as they are, without its chat template.

    Raises:
        VaseError: one line; what was stored is whole.
    """
    run = describe_run(assembly, parts, command, raw=raw)
    prompts = [
        {problem.id: encode_prompt(assembly, problem.prompt, raw=raw) for problem in task_part.problems.problems}
        for task_part in parts
    ]
    longest = [longest_prompt(task_part, of_task) for task_part, of_task in zip(parts, prompts, strict=True)]
    planned = sum(len(one.problems.problems) * one.samples for one in parts)
    slots = _slots(assembly, None if root is None else root / run["name"])
    plan = assembly.plan([(one.part, tokens) for one, tokens in zip(parts, longest, strict=True)], planned, slots)
    if root is None or not (root / run["name"]).exists():
        assembly.load()  # weights that cannot be loaded leave no folder behind
    folder = None if root is None else RunFolder.open(root, run["name"], run)
    with contextlib.nullcontext() if folder is None else folder:
        for line in (*assembly.notes, *_budget_lines(parts), *(folder.notes if folder else ()), plan.sentence()):
            progress.note(line)
        session = _Session(assembly, folder, plan.slots, planned_steps(parts, longest, plan.slots))
        try:
            for task_part, of_task, tokens in zip(parts, prompts, longest, strict=True):
                _evaluate_task(session, task_part, of_task, tokens, progress)
        finally:
            session.write()
            summary = session.summarize(run)
    return FinishedRun(None if folder is None else folder.path, summary, session.records())


def describe_run(assembly: Assembly, parts: Sequence[TaskPart], command: Sequence[str], *, raw: bool) -> dict[str, Any]:
    """What run.json says of an evaluation; ``config`` is what decides its tokens and grades."""
    recipe = assembly.recipe
    config = {
        "model": assembly.entry.hub_id or assembly.entry.name,
        "revision": assembly.entry.revision,
        "weights": weights_digest(assembly.entry),
        "dtype": assembly.facts.dtype,
        "attention": assembly.backend.name,
        "device": assembly.device.type,
        "compile": recipe.compile,
        "slots": recipe.slots,
        "method": recipe.method,
        "method_options": dataclasses.asdict(assembly.policy),
        "window": recipe.window,
        "sampling": dataclasses.asdict(recipe.sampling),
        "seed": recipe.seed,
        "think": recipe.think,
        "system_prompt": recipe.system_prompt,
        "raw": raw,
        "limit": recipe.limit,
        "tasks": {
            one.task.name: {
                "version": one.task.version,
                "problems": _problems_digest(one.problems),
                "grader": one.task.grader,
                "fallbacks": list(one.task.fallbacks),
                "samples": one.samples,
                "budget": None if one.part.budget is None else one.part.budget.tokens,
                "max_new_tokens": one.part.max_new_tokens,
                "max_total_tokens": one.part.max_total_tokens,
            }
            for one in parts
        },
    }
    if assembly.thresholds is not None:
        config["thresholds"] = assembly.thresholds.digest
    digest = config_hash(config)
    names = "-".join(one.task.name for one in parts)
    budget = "" if recipe.budget is None else str(recipe.budget)
    return {
        "format": FORMAT,
        "name": run_name(recipe.name, names, recipe.method, budget, config_hash=digest),
        "config": config,
        "config_hash": digest,
        "options": {"device": recipe.device, "recipe": recipe.name},
        "origins": dict(recipe.origins),
        "seeds": {"tokens": recipe.seed, "eviction": recipe.seed, "options": recipe.seed},
        "budgets": {
            one.task.name: "full cache" if one.part.budget is None else one.part.budget.sentence for one in parts
        },
        "tasks": [
            {
                "name": one.task.name,
                "version": one.task.version,
                "source": one.problems.source,
                "problems": len(one.problems.problems),
                "samples": one.samples,
                "grader": one.task.grader,
                "fallbacks": list(one.task.fallbacks),
                "skipped_rows": list(one.problems.skipped_rows),
            }
            for one in parts
        ],
        **environment(gpu_names()),
        "started_at": now(),
        "command": list(command),
    }


def _problems_digest(problems: ProblemSet) -> str:
    """Names what was asked and what is right, so that an edited problem file is another run."""
    return config_hash({"problems": [[one.id, one.prompt, one.answer] for one in problems.problems]})[:16]


class _Session:
    """What this process does in a run's folder: engines, figures, and the lines of sessions.jsonl."""

    def __init__(self, assembly: Assembly, folder: RunFolder | None, slots: int, planned_steps: int) -> None:
        self.assembly = assembly
        self.slots = slots
        self._planned_steps = planned_steps
        self._folder = folder
        self._unstored: list[Mapping[str, Any]] = []
        self._stats = EngineStats()
        self._current = EngineStats()
        self._cache: CacheShape | None = None
        self._samples = 0
        assembly.hardware.reset_peak()

    def engine(self, part: Part, longest_prompt_tokens: int, progress: Progress) -> Engine:
        """An engine for a part, whose figures are taken from here on; the first one loads the model."""
        decoding = self.assembly.decode_through(self._planned_steps)
        if self._cache is None:
            progress.note(decoding)
        engine = self.assembly.engine(part, slots=self.slots, longest_prompt_tokens=longest_prompt_tokens)
        self._stats += self._current
        self._current = engine.stats
        if self._cache is None or engine.cache.shape.bytes > self._cache.bytes:
            self._cache = engine.cache.shape
        self.write()
        return engine

    def take_slots(self, engine: Engine) -> None:
        """Note the slots that an engine goes on with; the next one starts with them."""
        self.slots = engine.settings.slots

    def records(self) -> dict[str, Mapping[str, Any]]:
        """The finished samples by id, those of earlier processes included."""
        return dict(self._folder.completed()) if self._folder else {one["id"]: one for one in self._unstored}

    def store(self, record: Mapping[str, Any]) -> None:
        """Append a record, and now and then the session's line."""
        if self._folder is None:
            self._unstored.append(record)
        else:
            self._folder.append(record)
        self._samples += 1
        if self._samples % _SAMPLES_BETWEEN_SESSION_WRITES == 1:
            self.write()

    def write(self) -> None:
        """Write the session's line, if anything was computed."""
        if self._folder is not None and self._cache is not None:
            stats = self._stats + self._current
            self._folder.record_session(
                measured(self.assembly, stats, slots=self.slots, samples=self._samples, cache=self._cache)
            )

    def summarize(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The summary of what is stored, written into the folder if there is one."""
        if self._folder is None:
            return summarize(self._unstored, run)
        summary = summarize(self._folder.completed().values(), self._folder.run, self._folder.sessions())
        self._folder.write_summary(summary)
        return summary


def _evaluate_task(
    session: _Session, task_part: TaskPart, prompts: Mapping[str, Prompt], longest: int, progress: Progress
) -> None:
    task, problems = task_part.task, task_part.problems.problems
    finished = session.records().keys()
    requests = {
        request.id: (request, problem)
        for request, problem in requests_of(task_part, prompts)
        if request.id not in finished
    }
    planned = len(problems) * task_part.samples
    if not requests:
        progress.start(task.name, planned, planned, None)
        return
    engine = session.engine(task_part.part, longest, progress)
    progress.start(task.name, planned - len(requests), planned, engine)
    grader: Grader | None = plugins.load("graders", task.grader)() if task.grader else None
    # Grading waits for other processes and generation for the device: one thread lets them overlap.
    with contextlib.nullcontext() if grader is None else grader, ThreadPoolExecutor(max_workers=1) as pool:
        grading: deque[Future[dict[str, Any]]] = deque()

        def store_graded(*, wait: bool) -> None:
            while grading and (wait or grading[0].done()):
                record = grading.popleft().result()
                session.store(record)
                progress.sample(record)

        try:
            for event in engine.stream(request for request, _ in requests.values()):
                if isinstance(event, NewTokens):
                    progress.tokens(event.tokens)
                elif isinstance(event, Notice):
                    progress.note(f"warning: {event.sentence}")
                    session.take_slots(engine)
                else:
                    problem = requests[event.request.id][1]
                    record = _record(session.assembly, task.name, problem, prompts[problem.id], event)
                    grading.append(pool.submit(graded, grader, task.fallbacks, record))
                store_graded(wait=False)
        finally:
            store_graded(wait=True)


def requests_of(task_part: TaskPart, prompts: Mapping[str, Prompt]) -> Iterator[tuple[Request, Problem]]:
    """All problems once, then again: a run that is stopped early has seen as many problems as it could."""
    for sample in range(task_part.samples):
        for problem in task_part.problems.problems:
            name = f"{task_part.task.name}/{problem.id}"
            yield Request(f"{name}/{sample}", prompts[problem.id].token_ids, name, sample), problem


def encode_prompt(assembly: Assembly, text: str, *, raw: bool) -> Prompt:
    """A prompt through the chat template where the model has one, unless ``raw``.

    Raises:
        ConfigError: a system prompt, and no template to hold it; or text that is not UTF-8.
        ModelError: the template refuses the messages.
    """
    recipe, tokenizer = assembly.recipe, assembly.tokenizer
    for what, written in (("prompt", text), ("system prompt", recipe.system_prompt or "")):
        try:
            written.encode()
        except UnicodeEncodeError as error:  # what Python makes of other bytes on the command line
            raise ConfigError(f"the {what} is not UTF-8 at character {error.start + 1}: write it again") from error
    if not raw and tokenizer.has_chat_template:
        return tokenizer.encode_chat(text, system=recipe.system_prompt, think=recipe.think)
    if recipe.system_prompt is not None:
        why = "--raw gives the prompt as it is" if raw else f"{assembly.entry.name} has no chat template"
        raise ConfigError(f"{why}, so there is no place for a system prompt: leave it out")
    return tokenizer.encode_text(text)


def longest_prompt(task_part: TaskPart, prompts: Mapping[str, Prompt]) -> int:
    """Tokens of the longest prompt; a limit that leaves no room after any of them is refused."""
    tokens = [len(prompt.token_ids) for prompt in prompts.values()]
    limit = task_part.part.max_total_tokens
    if min(tokens) >= limit:
        which = "the prompt has" if len(tokens) == 1 else f"the shortest prompt of {task_part.task.name} has"
        raise ConfigError(
            f"{which} {min(tokens):,} tokens, which leaves nothing of the limit of {limit:,}: shorten it, raise "
            "--max-total-tokens, or take a model with a longer context"
        )
    return max(tokens)


def planned_steps(parts: Sequence[TaskPart], longest: Sequence[int], slots: int) -> int:
    """Decode steps if every text reaches its limit; the same whether a run is new or goes on."""
    steps = 0
    for one, prompt_tokens in zip(parts, longest, strict=True):
        limit = one.part.max_total_tokens - prompt_tokens
        new_tokens = limit if one.part.max_new_tokens is None else min(limit, one.part.max_new_tokens)
        steps += len(one.problems.problems) * one.samples * new_tokens // slots
    return steps


def _slots(assembly: Assembly, path: Path | None) -> int | str:
    """The slots asked for; "auto" goes on with those the run was started with, as the batch shape decides bits."""
    if assembly.recipe.slots != "auto" or path is None or not (path / "run.json").is_file():
        return assembly.recipe.slots
    sessions = load_run(path).sessions
    return int(sessions[0]["slots"]) if sessions else "auto"


def _budget_lines(parts: Sequence[TaskPart]) -> Iterator[str]:
    for one in parts:
        if one.part.budget is not None:
            yield f"{one.task.name}: {one.part.budget.sentence}"
            if one.part.budget.warning:
                yield f"warning: {one.part.budget.warning}"


def _record(assembly: Assembly, task: str, problem: Problem, prompt: Prompt, completion: Completion) -> dict[str, Any]:
    """A line of completions.jsonl, its grade not yet filled in."""
    text = assembly.tokenizer.decode(completion.token_ids)
    return {
        "id": completion.request.id,
        "task": task,
        "problem_id": problem.id,
        "sample": completion.request.sample,
        "seed": assembly.recipe.seed,
        "prompt_tokens": len(prompt.token_ids),
        "completion_tokens": len(completion.token_ids),
        "text": text,
        "thought_open": prompt.thought_open,
        "finish_reason": completion.finish_reason,
        "error": completion.error,
        "grade": "error" if completion.finish_reason == "error" else None,
        "extracted": None,
        "rule": "",
        "gold": problem.answer,
        "cuts": completion.cuts,
        "cached_tokens": completion.cached_tokens,
        "repetition": has_repetition(text),
        "garbage": has_garbage_tail(text),
        "latency_s": round(completion.latency_s, 3),
        "metadata": dict(problem.metadata),
    }
