"""Batch evaluation: tasks to problems, prompts, completions, grades, one stored line each, and a summary."""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vase_cli import plugins
from vase_cli.engine.assembly import Assembly, Part, measured
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.device import gpu_names
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, EngineStats, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, DataError
from vase_cli.evaluation.comparison import FinishedRun
from vase_cli.evaluation.regrade import graded, store_summary
from vase_cli.evaluation.repetition import has_garbage_tail, has_repetition
from vase_cli.evaluation.summary import summarize
from vase_cli.graders.base import Grader
from vase_cli.models.describe import weights_digest
from vase_cli.models.tokenizer import Prompt
from vase_cli.runs.environment import environment
from vase_cli.runs.folder import RUN_FILE, RunFolder, config_hash, now, read_sessions, run_name
from vase_cli.runs.schema import FORMAT, Run, RunTask, Sample, Summary
from vase_cli.tasks.base import Problem, ProblemSet, Task

_SAMPLES_BETWEEN_SESSION_WRITES = 8


class Progress(Protocol):
    """Listener to a run."""

    def note(self, line: str) -> None:
        """Show one line to the user."""

    def start(self, task: str, finished: int, planned: int, engine: Engine | None) -> None:
        """Begin a task, so many of whose planned samples are stored already; no engine if that is all of them."""

    def tokens(self, tokens: Sequence[tuple[Request, int]]) -> None:
        """Take note of new tokens, (request, token id) each."""

    def sample(self, sample: Sample | None) -> None:
        """Count a sample that is graded and stored; None is a text that a calibration measured."""


@dataclass(frozen=True)
class TaskPart:
    """One task of an evaluation with its problems, how often each is sampled, and its resolved part."""

    task: Task
    problems: ProblemSet
    samples: int
    part: Part

    @property
    def planned(self) -> int:
        """Samples of all problems."""
        return len(self.problems.problems) * self.samples


def prepare(
    assembly: Assembly, tasks: Sequence[Task], *, data: Path | None = None, skip_bad_rows: bool = False
) -> list[TaskPart]:
    """Load the problems and resolve budgets and limits; what cannot work is refused before a weight is read."""
    recipe, parts = assembly.recipe, []
    for task in tasks:
        part = assembly.part(task.name, max_new_tokens=task.max_new_tokens, max_total_tokens=task.max_total_tokens)
        problems = task.problems(data=data, seed=recipe.seed, limit=recipe.limit, skip_bad_rows=skip_bad_rows)
        with plugins.load("graders", task.grader)() as grader:
            for problem in problems.problems:
                try:
                    grader.parse_gold(problem.answer)  # no completion could match some
                except DataError as error:
                    raise DataError(f"{problems.source}: problem {problem.id} of {task.name}: {error}") from error
        parts.append(TaskPart(task, problems, recipe.samples or task.samples, part))
    return parts


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

    On Ctrl-C and on a VaseError all finished samples are stored whole, and the summary says that it is of a part.

    Args:
        parts: from :func:`prepare`; a task without a grader is not graded.
        root: the folder of all runs; None stores nothing.
        command: the command line, for the record.
        raw: give prompts to the model as they are, without its chat template.
    """
    run = describe_run(assembly, parts, command, raw=raw)
    path = None if root is None else root / run.name
    prompts = [
        {problem.id: encode_prompt(assembly, problem.prompt, raw=raw) for problem in task_part.problems.problems}
        for task_part in parts
    ]
    longest = list(map(longest_prompt, parts, prompts))
    needed = [(task_part.part, tokens) for task_part, tokens in zip(parts, longest, strict=True)]
    plan = assembly.plan(needed, sum(task_part.planned for task_part in parts), _slots(assembly, path))
    if path is None or not path.exists():
        assembly.load()  # weights that cannot be loaded leave no folder behind
    with contextlib.nullcontext() if path is None else RunFolder(path, run) as folder:
        for line in (*assembly.notes, *_budget_lines(parts), *(folder.notes if folder else ()), plan.message()):
            progress.note(line)
        session = _Session(assembly, run, folder, plan.max_num_seqs, planned_steps(parts, longest, plan.max_num_seqs))
        try:
            for task_part, of_task, tokens in zip(parts, prompts, longest, strict=True):
                _evaluate_task(session, task_part, of_task, tokens, progress)
        finally:
            summary = session.finish()
    budgets = {task_part.task.name: task_part.part.budget_tokens for task_part in parts}
    return FinishedRun(assembly.recipe.method, budgets, summary, session.samples, path)


def describe_run(assembly: Assembly, parts: Sequence[TaskPart], command: Sequence[str], *, raw: bool) -> Run:
    """Make run.json of an evaluation; its ``config`` is what decides the tokens and grades."""
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
            task_part.task.name: {
                "version": task_part.task.version,
                "problems": _problems_digest(task_part.problems),
                "grader": task_part.task.grader,
                "fallbacks": list(task_part.task.fallbacks),
                "samples": task_part.samples,
                "budget": task_part.part.budget_tokens,
                "max_new_tokens": task_part.part.max_new_tokens,
                "max_total_tokens": task_part.part.max_total_tokens,
            }
            for task_part in parts
        },
    }
    if assembly.thresholds is not None:
        config["thresholds"] = assembly.thresholds.digest
    digest = config_hash(config)
    names = "-".join(task_part.task.name for task_part in parts)
    return Run(
        format=FORMAT,
        name=run_name(recipe.name, names, recipe.method, str(recipe.budget or ""), config_hash=digest),
        config=config,
        config_hash=digest,
        options={"device": recipe.device, "recipe": recipe.name},
        origins=dict(recipe.origins),
        seeds={"tokens": recipe.seed, "eviction": recipe.seed, "options": recipe.seed},
        budgets={task.task.name: task.part.budget.message if task.part.budget else "full cache" for task in parts},
        tasks=[
            RunTask(
                name=task_part.task.name,
                version=task_part.task.version,
                source=task_part.problems.source,
                problems=len(task_part.problems.problems),
                samples=task_part.samples,
                grader=task_part.task.grader,
                fallbacks=list(task_part.task.fallbacks),
                skipped_rows=list(task_part.problems.skipped_rows),
            )
            for task_part in parts
        ],
        **environment(gpu_names()),
        started_at=now(),
        command=list(command),
    )


def _problems_digest(problems: ProblemSet) -> str:
    """Name prompts and right answers, so that an edited problem file is another run."""
    rows = [[problem.id, problem.prompt, problem.answer] for problem in problems.problems]
    return config_hash({"problems": rows})[:16]


class _Session:
    """This process's part of a run: the samples it stores, and the figures of its engines."""

    def __init__(self, assembly: Assembly, run: Run, folder: RunFolder | None, slots: int, planned_steps: int) -> None:
        self.assembly, self.slots = assembly, slots
        self.samples = {} if folder is None else folder.samples
        self._run, self._folder, self._planned_steps = run, folder, planned_steps
        self._stats: list[EngineStats] = []
        self._caches: list[CacheShape] = []
        self._finished = 0

    def engine(self, part: Part, longest_prompt_tokens: int, progress: Progress) -> Engine:
        """Make an engine, whose figures count from here on; the first one loads the model."""
        decoding = self.assembly.decode_through(self._planned_steps)
        if not self._stats:
            progress.note(decoding)
            self.assembly.hardware.reset_peak()  # what loading took for a moment is not of the run
        engine = self.assembly.engine(part, max_num_seqs=self.slots, longest_prompt_tokens=longest_prompt_tokens)
        self._stats.append(engine.stats)
        self._caches.append(engine.cache.shape)
        self._write()
        return engine

    def append(self, sample: Sample) -> None:
        """Store a sample, and now and then the figures."""
        if self._folder is not None:
            self._folder.append(sample)
        self.samples[sample.id] = sample
        self._finished += 1
        if self._finished % _SAMPLES_BETWEEN_SESSION_WRITES == 1:
            self._write()

    def finish(self) -> Summary:
        """Store the figures, and the summary of all samples."""
        self._write()
        return summarize(self.samples.values(), self._run) if self._folder is None else store_summary(self._folder)

    def _write(self) -> None:
        if self._folder is not None and self._stats:
            stats = sum(self._stats, EngineStats())
            cache = max(self._caches, key=lambda shape: shape.bytes)
            figures = measured(self.assembly, stats, max_num_seqs=self.slots, samples=self._finished, cache=cache)
            self._folder.record_session(figures)


def _evaluate_task(
    session: _Session, task_part: TaskPart, prompts: Mapping[str, Prompt], longest: int, progress: Progress
) -> None:
    task, requests = task_part.task, requests_of(task_part, prompts)
    missing = {request.id: (request, problem) for request, problem in requests if request.id not in session.samples}
    engine = session.engine(task_part.part, longest, progress) if missing else None
    progress.start(task.name, task_part.planned - len(missing), task_part.planned, engine)
    if engine is None:
        return
    grader: Grader | None = plugins.load("graders", task.grader)() if task.grader else None
    # Grading waits for other processes and generation for the device: one thread lets them overlap.
    with contextlib.nullcontext() if grader is None else grader, ThreadPoolExecutor(max_workers=1) as pool:
        grading: deque[Future[Sample]] = deque()

        def store_graded(*, wait: bool) -> None:
            while grading and (wait or grading[0].done()):
                sample = grading.popleft().result()
                session.append(sample)
                progress.sample(sample)

        try:
            for completion in completions(engine, (request for request, _ in missing.values()), progress):
                session.slots = engine.settings.max_num_seqs
                if completion is not None:
                    _, problem = missing[completion.request.id]
                    sample = _sample(session.assembly, task.name, problem, prompts[problem.id], completion)
                    grading.append(pool.submit(graded, grader, task.fallbacks, sample))
                store_graded(wait=False)
        finally:
            store_graded(wait=True)


def completions(engine: Engine, requests: Iterable[Request], progress: Progress) -> Iterator[Completion | None]:
    """Yield the completions of an engine, None for other events; tokens and warnings go to the progress."""
    for event in engine.stream(requests):
        if isinstance(event, NewTokens):
            progress.tokens(event.tokens)
        elif isinstance(event, Notice):
            progress.note(f"warning: {event.message}")
        yield event if isinstance(event, Completion) else None


def requests_of(task_part: TaskPart, prompts: Mapping[str, Prompt]) -> Iterator[tuple[Request, Problem]]:
    """Take all problems once, then again: a run that is stopped early has seen as many problems as it could."""
    for sample in range(task_part.samples):
        for problem in task_part.problems.problems:
            name = f"{task_part.task.name}/{problem.id}"
            yield Request(f"{name}/{sample}", prompts[problem.id].token_ids, name, sample), problem


def encode_prompt(assembly: Assembly, text: str, *, raw: bool) -> Prompt:
    """Encode a prompt, through the chat template where the model has one, unless ``raw``.

    Raises:
        ConfigError: a system prompt, and no template to hold it; or text that is not UTF-8.
        ModelError: the template refuses the messages.
    """
    recipe, tokenizer = assembly.recipe, assembly.tokenizer
    for what, content in (("prompt", text), ("system prompt", recipe.system_prompt or "")):
        try:
            content.encode()
        except UnicodeEncodeError as error:  # what Python makes of other bytes on the command line
            raise ConfigError(f"the {what} is not UTF-8 at character {error.start + 1}: write it again") from error
    if not raw and tokenizer.has_chat_template:
        return tokenizer.encode_chat(text, system=recipe.system_prompt, think=recipe.think)
    if recipe.system_prompt is not None:
        why = "--raw gives the prompt as it is" if raw else f"{assembly.entry.name} has no chat template"
        raise ConfigError(f"{why}, so there is no place for a system prompt: leave it out")
    return tokenizer.encode_text(text)


def longest_prompt(task_part: TaskPart, prompts: Mapping[str, Prompt]) -> int:
    """Count the tokens of the longest prompt; a limit that leaves no room after any of them is refused."""
    tokens = [len(prompt.token_ids) for prompt in prompts.values()]
    limit = task_part.part.max_total_tokens
    if min(tokens) >= limit:
        which = "the prompt has" if len(tokens) == 1 else f"the shortest prompt of {task_part.task.name} has"
        way_out = "shorten it, raise --max-total-tokens, or take a model with a longer context"
        raise ConfigError(f"{which} {min(tokens):,} tokens, which leaves nothing of the limit of {limit:,}: {way_out}")
    return max(tokens)


def planned_steps(parts: Sequence[TaskPart], longest: Sequence[int], slots: int) -> int:
    """Count decode steps as if every text reached its limit, the same whether a run is new or goes on."""
    steps = 0
    for task_part, prompt_tokens in zip(parts, longest, strict=True):
        limit = task_part.part.max_total_tokens - prompt_tokens
        steps += task_part.planned * min(limit, task_part.part.max_new_tokens or limit) // slots
    return steps


def _slots(assembly: Assembly, path: Path | None) -> int | str:
    """Take the recipe's slots; "auto" goes on with those of the run's start, as the batch shape decides bits."""
    slots = assembly.recipe.slots
    if slots == "auto" and path is not None and (path / RUN_FILE).is_file():
        return next((session.slots for session in read_sessions(path)), slots)
    return slots


def _budget_lines(parts: Sequence[TaskPart]) -> Iterator[str]:
    for task_part in parts:
        if (budget := task_part.part.budget) is not None:
            yield f"{task_part.task.name}: {budget.message}"
            if budget.warning:
                yield f"warning: {budget.warning}"


def _sample(assembly: Assembly, task: str, problem: Problem, prompt: Prompt, completion: Completion) -> Sample:
    text = assembly.tokenizer.decode(completion.token_ids)
    return Sample(
        id=completion.request.id,
        task=task,
        problem_id=problem.id,
        sample=completion.request.sample,
        seed=assembly.recipe.seed,
        prompt_tokens=len(prompt.token_ids),
        completion_tokens=len(completion.token_ids),
        text=text,
        thought_open=prompt.thought_open,
        finish_reason=completion.finish_reason,
        error=completion.error,
        grade="error" if completion.finish_reason == "error" else None,
        extracted=None,
        rule="",
        gold=problem.answer,
        cuts=completion.cuts,
        cached_tokens=completion.cached_tokens,
        repetition=has_repetition(text),
        garbage=has_garbage_tail(text),
        latency_s=round(completion.latency_s, 3),
        metadata=dict(problem.metadata),
    )
