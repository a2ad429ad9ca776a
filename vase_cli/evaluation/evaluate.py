"""Batch evaluation: tasks to problems, prompts, completions, grades, one stored line each, and a summary."""

import contextlib
import dataclasses
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vase_cli import plugins
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import Demand, GenerationLimits, RunPlan
from vase_cli.engine.requests import Completion, Event, NewToken, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, DataError
from vase_cli.evaluation.comparison import FinishedRun
from vase_cli.evaluation.earlier_runs import why_anew
from vase_cli.evaluation.grading import Grading
from vase_cli.evaluation.repetition import has_garbage_tail, has_repetition
from vase_cli.evaluation.writer import RunWriter
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
        """Count a text that is stored; None is one that a calibration measured."""

    def grade(self, sample: Sample) -> None:
        """Take note of the grade of a stored text."""

    def stopped(self, stored: int) -> None:
        """Take note, when a task ends early, of how many of its texts are stored."""


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
    and its problem, all problems once, then again: a run that is stopped early has seen as many problems as it could,
    but for an engine that takes the longest first. ``demand`` is what all of them ask of an engine.
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
        self.demand = Demand.of(task.limits, (request for request, _ in self.requests.values()))

    def missing(self, finished: Container[str]) -> list[Request]:
        """The requests whose ids are not among the finished ones."""
        return [request for request, _ in self.requests.values() if request.id not in finished]

    def ungraded(self, samples: Mapping[str, Sample]) -> list[Sample]:
        """The stored texts of the task that are still to be graded."""
        stored = (samples[name] for name in self.requests if name in samples) if self.task.task.grader else ()
        return [sample for sample in stored if sample.grade is None]

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
    """Generate, store and grade every sample that the run's folder does not hold yet, and grade those that it holds.

    Tasks come from :func:`prepare`; one without a grader is not graded. ``root`` is the folder of all runs, None stores
    nothing; ``command`` is kept for the record; ``raw`` gives prompts to the model without its chat template. A text is
    stored before it is graded. On Ctrl-C and on a VaseError what is finished stays, and the summary says that it is of
    a part.
    """
    plan = factory.plan
    run = describe_run(plan, tasks, command, raw=raw)
    path = None if root is None else root / run.name
    jobs = [Job(factory, task, raw=raw) for task in tasks]
    memory = factory.memory([job.demand for job in jobs], _max_num_seqs(plan, path))
    anew = () if root is None or (root / run.name).exists() else why_anew(root, run)
    if path is None or not path.exists():
        factory.load()  # weights that cannot be loaded leave no folder behind
    with contextlib.nullcontext() if path is None else RunFolder(path, run) as folder:
        for line in (*plan.notes, *_budget_lines(tasks), *anew, *(folder.notes if folder else ()), memory.message()):
            progress.note(line)
        writer = RunWriter(plan, run, folder, memory.max_num_seqs)
        missing, compiled = [len(job.missing(writer.samples)) for job in jobs], False
        try:
            if any(missing):
                decode_path = factory.decode_path(sum(job.planned_steps(memory.max_num_seqs) for job in jobs))
                progress.note(decode_path.message)
                plan.device.reset_peak()  # what loading took for a moment is not of the run
                compiled = decode_path.compiled
            for job, count in zip(jobs, missing, strict=True):
                planned = len(job.requests)
                progress.start(job.task.task.name, planned - count, planned)
                if count or job.ungraded(writer.samples):
                    try:
                        _finish_job(factory, job, writer, progress, compiled=compiled)
                    except KeyboardInterrupt:  # it may come between a text and its count
                        progress.stopped(planned - len(job.missing(writer.samples)))
                        raise
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
        **({"weights": None} if plan.files is None else {"files": plan.files}),  # None: as hub models always had it
        "dtype": plan.facts.dtype,
        "attention": plan.backend.name,
        "device": plan.device.type,
        "compile": recipe.compile,
        "slots": recipe.slots,
        "method": plan.method,
        "method_options": dataclasses.asdict(plan.policy),
        "window": recipe.window,
        "sampling": recipe.sampling.recorded(),
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
        tasks=[_run_task(task) for task in tasks],
        **environment(),
        started_at=now(),
        command=list(command),
    )


def _run_task(task: EvalTask) -> RunTask:
    return RunTask(
        name=task.task.name,
        version=task.task.version,
        source=task.problems.source,
        problems=len(task.problems.problems),
        samples=task.samples,
        grader=task.task.grader,
        fallbacks=list(task.task.fallbacks),
        skipped_rows=list(task.problems.skipped_rows),
    )


def _problems_digest(problems: ProblemSet) -> str:
    """Name prompts and right answers, so that an edited problem file is another run."""
    rows = [[problem.id, problem.prompt, problem.answer] for problem in problems.problems]
    return config_hash({"problems": rows})[:16]


def _finish_job(factory: EngineFactory, job: Job, writer: RunWriter, progress: Progress, *, compiled: bool) -> None:
    with Grading(_run_task(job.task)) as grading:
        for sample in job.ungraded(writer.samples):
            grading.submit(sample)
        if missing := job.missing(writer.samples):
            engine = factory.engine(job.demand, max_num_seqs=writer.max_num_seqs, compiled=compiled)
            writer.count(engine)
            for event in events(engine, missing, progress):
                writer.max_num_seqs = engine.settings.max_num_seqs
                if isinstance(event, Completion):
                    sample = _sample(factory, job, event)
                    writer.append(sample)
                    progress.sample(sample)
                    grading.submit(sample)
                for grade in grading.finished():
                    progress.grade(writer.append_grade(grade))
        for grade in grading.finished(all_of_them=True):
            progress.grade(writer.append_grade(grade))


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
        gold=problem.answer,
        cuts=completion.cuts,
        cached_tokens=completion.cached_tokens,
        repetition=has_repetition(text),
        garbage=has_garbage_tail(text),
        latency_s=round(completion.latency_s, 3),
        metadata=dict(problem.metadata),
    )
