"""Batch evaluation: tasks to problems, prompts, completions, grades, one stored line each, and a summary."""

import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vase_cli import plugins
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import GenerationLimits, RunPlan
from vase_cli.engine.requests import Completion, Event, NewToken, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, DataError
from vase_cli.evaluation.comparison import FinishedRun
from vase_cli.evaluation.regrade import graded
from vase_cli.evaluation.repetition import has_garbage_tail, has_repetition
from vase_cli.evaluation.writer import RunWriter
from vase_cli.models.describe import weights_digest
from vase_cli.runs.environment import environment
from vase_cli.runs.folder import RUN_FILE, RunFolder, config_hash, now, read_sessions, run_name
from vase_cli.runs.schema import FORMAT, Run, RunTask, Sample
from vase_cli.tasks.base import Problem, ProblemSet, Task


class Progress(Protocol):
    """Listener to a run."""

    def note(self, line: str) -> None:
        """Show one line to the user."""

    def start(self, task: str, finished: int, planned: int) -> None:
        """Begin a task, so many of whose planned samples are stored already."""

    def tokens(self, tokens: Sequence[NewToken]) -> None:
        """Take note of new tokens."""

    def sample(self, sample: Sample | None) -> None:
        """Count a sample that is graded and stored; None is a text that a calibration measured."""


@dataclass(frozen=True)
class EvalTask:
    """One task of an evaluation with its problems, how often each is sampled, and its resolved budget and limits."""

    task: Task
    problems: ProblemSet
    samples: int
    limits: GenerationLimits


class Job:
    """A task as requests to an engine.

    ``prompts`` is by problem id, ``longest`` the tokens of the longest of them. ``requests`` holds by id each request
    and its problem, all problems once, then again: a run that is stopped early has seen as many problems as it could.
    """

    def __init__(self, factory: EngineFactory, task: EvalTask, *, raw: bool = False) -> None:
        """Encode the prompts; a limit that leaves no room after any of them is a ConfigError."""
        self.task, problems = task, task.problems.problems
        self.prompts = {problem.id: factory.encode(problem.prompt, raw=raw) for problem in problems}
        tokens, limit = [len(prompt.token_ids) for prompt in self.prompts.values()], task.limits.max_total_tokens
        if min(tokens) >= limit:
            which = "the prompt has" if len(tokens) == 1 else f"the shortest prompt of {task.task.name} has"
            full = f"{which} {min(tokens):,} tokens, which leaves nothing of the limit of {limit:,}"
            raise ConfigError(f"{full}: shorten it, raise --max-total-tokens, or take a model with a longer context")
        self.longest = max(tokens)
        self.requests: dict[str, tuple[Request, Problem]] = {}
        for sample, problem in itertools.product(range(task.samples), problems):
            name = f"{task.task.name}/{problem.id}"
            request = Request(f"{name}/{sample}", self.prompts[problem.id].token_ids, name, sample)
            self.requests[request.id] = request, problem

    def missing(self, finished: Container[str]) -> list[Request]:
        """The requests whose ids are not among the finished ones."""
        return [request for request, _ in self.requests.values() if request.id not in finished]

    def planned_steps(self, slots: int) -> int:
        """Decode steps as if every text reached its limit, the same whether a run is new or goes on."""
        limit = self.task.limits.max_total_tokens - self.longest
        return len(self.requests) * min(limit, self.task.limits.max_new_tokens or limit) // slots


def prepare(
    plan: RunPlan, tasks: Sequence[Task], *, data: Path | None = None, skip_bad_rows: bool = False
) -> list[EvalTask]:
    """Load the problems and resolve budgets and limits; what cannot work is refused before a weight is read."""
    recipe, prepared = plan.recipe, []
    for task in tasks:
        limits = plan.limits(task.name, max_new_tokens=task.max_new_tokens, max_total_tokens=task.max_total_tokens)
        problems = task.problems(data=data, seed=recipe.seed, limit=recipe.limit, skip_bad_rows=skip_bad_rows)
        with plugins.make("graders", task.grader) as grader:
            for problem in problems.problems:
                try:
                    grader.parse_gold(problem.answer)  # no completion could match some
                except DataError as error:
                    raise DataError(f"{problems.source}: problem {problem.id} of {task.name}: {error}") from error
        prepared.append(EvalTask(task, problems, recipe.samples or task.samples, limits))
    return prepared


def evaluate(
    factory: EngineFactory,
    tasks: Sequence[EvalTask],
    *,
    root: Path | None,
    command: Sequence[str],
    progress: Progress,
    raw: bool = False,
) -> FinishedRun:
    """Generate, grade and store every sample that the run's folder does not hold yet.

    Tasks come from :func:`prepare`; one without a grader is not graded. ``root`` is the folder of all runs, None stores
    nothing; ``command`` is kept for the record; ``raw`` gives prompts to the model without its chat template. On Ctrl-C
    and on a VaseError all finished samples are stored whole, and the summary says that it is of a part.
    """
    plan = factory.plan
    run = describe_run(plan, tasks, command, raw=raw)
    path = None if root is None else root / run.name
    jobs = [Job(factory, task, raw=raw) for task in tasks]
    needed = [(job.task.limits, job.longest) for job in jobs]
    memory = factory.memory(needed, sum(len(job.requests) for job in jobs), _max_num_seqs(plan, path))
    if path is None or not path.exists():
        factory.load()  # weights that cannot be loaded leave no folder behind
    with contextlib.nullcontext() if path is None else RunFolder(path, run) as folder:
        for line in (*plan.notes, *_budget_lines(tasks), *(folder.notes if folder else ()), memory.message()):
            progress.note(line)
        writer = RunWriter(plan, run, folder, memory.max_num_seqs)
        missing = [len(job.missing(writer.samples)) for job in jobs]
        try:
            if any(missing):
                decode_path = factory.decode_path(sum(job.planned_steps(memory.max_num_seqs) for job in jobs))
                progress.note(decode_path.message)
                plan.device.reset_peak()  # what loading took for a moment is not of the run
                compiled = decode_path.compiled
            for job, count in zip(jobs, missing, strict=True):
                planned = len(job.requests)
                progress.start(job.task.task.name, planned - count, planned)
                if count:
                    _generate(factory, job, writer, progress, compiled=compiled)
        finally:
            summary = writer.finish()
    budgets = {task.task.name: task.limits.budget_tokens for task in tasks}
    return FinishedRun(plan.method, budgets, summary, writer.samples, path)


def describe_run(plan: RunPlan, tasks: Sequence[EvalTask], command: Sequence[str], *, raw: bool) -> Run:
    """Make run.json of an evaluation; its ``config`` is what decides the tokens and grades."""
    recipe = plan.recipe
    config = {
        "model": plan.entry.hub_id or plan.entry.name,
        "revision": plan.entry.revision,
        "weights": weights_digest(plan.entry),
        "dtype": plan.facts.dtype,
        "attention": plan.backend.name,
        "device": plan.device.type,
        "compile": recipe.compile,
        "slots": recipe.slots,
        "method": plan.method,
        "method_options": dataclasses.asdict(plan.policy),
        "window": recipe.window,
        "sampling": dataclasses.asdict(recipe.sampling),
        "seed": recipe.seed,
        "think": recipe.think,
        "system_prompt": recipe.system_prompt,
        "raw": raw,
        "limit": recipe.limit,
        "tasks": {
            task.task.name: {
                "version": task.task.version,
                "problems": _problems_digest(task.problems),
                "grader": task.task.grader,
                "fallbacks": list(task.task.fallbacks),
                "samples": task.samples,
                "budget": task.limits.budget_tokens,
                "max_new_tokens": task.limits.max_new_tokens,
                "max_total_tokens": task.limits.max_total_tokens,
            }
            for task in tasks
        },
    }
    if plan.thresholds is not None:
        config["thresholds"] = plan.thresholds.digest
    digest = config_hash(config)
    names = "-".join(task.task.name for task in tasks)
    return Run(
        format=FORMAT,
        name=run_name(recipe.name, names, plan.method, str(recipe.budget or ""), config_hash=digest),
        config=config,
        config_hash=digest,
        options={"device": recipe.device, "recipe": recipe.name},
        origins=dict(recipe.origins),
        seeds={"tokens": recipe.seed, "eviction": recipe.seed, "options": recipe.seed},
        budgets={task.task.name: task.limits.budget.message if task.limits.budget else "full cache" for task in tasks},
        tasks=[
            RunTask(
                name=task.task.name,
                version=task.task.version,
                source=task.problems.source,
                problems=len(task.problems.problems),
                samples=task.samples,
                grader=task.task.grader,
                fallbacks=list(task.task.fallbacks),
                skipped_rows=list(task.problems.skipped_rows),
            )
            for task in tasks
        ],
        **environment(),
        started_at=now(),
        command=list(command),
    )


def _problems_digest(problems: ProblemSet) -> str:
    """Name prompts and right answers, so that an edited problem file is another run."""
    rows = [[problem.id, problem.prompt, problem.answer] for problem in problems.problems]
    return config_hash({"problems": rows})[:16]


def _generate(factory: EngineFactory, job: Job, writer: RunWriter, progress: Progress, *, compiled: bool) -> None:
    task = job.task.task
    engine = factory.engine(
        job.task.limits, max_num_seqs=writer.max_num_seqs, longest_prompt_tokens=job.longest, compiled=compiled
    )
    writer.count(engine)
    judge = plugins.make("graders", task.grader) if task.grader else contextlib.nullcontext()
    # Grading waits for other processes and generation for the device: one thread lets them overlap.
    with judge as grader, ThreadPoolExecutor(max_workers=1) as pool:
        grading: deque[Future[Sample]] = deque()

        def store_graded(*, wait: bool) -> None:
            while grading and (wait or grading[0].done()):
                sample = grading.popleft().result()
                writer.append(sample)
                progress.sample(sample)

        try:
            for event in events(engine, job.missing(writer.samples), progress):
                writer.max_num_seqs = engine.settings.max_num_seqs
                if isinstance(event, Completion):
                    grading.append(pool.submit(graded, grader, task.fallbacks, _sample(factory, job, event)))
                store_graded(wait=False)
        finally:
            store_graded(wait=True)


def events(engine: Engine, requests: Iterable[Request], progress: Progress) -> Iterator[Event]:
    """Yield the events of an engine; the progress hears of tokens and warnings."""
    for event in engine.stream(requests):
        if isinstance(event, NewTokens):
            progress.tokens(event.tokens)
        elif isinstance(event, Notice):
            progress.note(f"warning: {event.message}")
        yield event


def _max_num_seqs(plan: RunPlan, path: Path | None) -> int | str:
    """Take the recipe's slots; "auto" goes on with those of the run's start, as the batch shape decides bits."""
    slots = plan.recipe.slots
    if slots == "auto" and path is not None and (path / RUN_FILE).is_file():
        return next((session.slots for session in read_sessions(path)), slots)
    return slots


def _budget_lines(tasks: Sequence[EvalTask]) -> Iterator[str]:
    for task in tasks:
        if (budget := task.limits.budget) is not None:
            yield f"{task.task.name}: {budget.message}"
            if budget.warning:
                yield f"warning: {budget.warning}"


def _sample(factory: EngineFactory, job: Job, completion: Completion) -> Sample:
    request, problem = job.requests[completion.request.id]
    text = factory.tokenizer.decode(completion.token_ids)
    return Sample(
        id=request.id,
        task=job.task.task.name,
        problem_id=problem.id,
        sample=request.sample,
        seed=factory.plan.recipe.seed,
        prompt_tokens=len(request.prompt_token_ids),
        completion_tokens=len(completion.token_ids),
        text=text,
        thought_open=job.prompts[problem.id].thought_open,
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
