"""``vase run``: prompts in, text out."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.output import AsJson, echo
from vase_cli.cli.startup import quick_imports
from vase_cli.config.default_recipe import PROMPTS
from vase_cli.errors import ConfigError, DataError, RunError, decode_text, file_access, user_path

if TYPE_CHECKING:
    from vase_cli.engine.plan import RunPlan
    from vase_cli.evaluation.evaluate import EvalTask

_EXAMPLE = '"How many primes are below 100?"'
_INPUT_HELP = "Prompts from a file: one a line, or JSONL with a field 'prompt'."


@options.with_overrides("methods", "budgets")
def run(
    overrides: options.Overrides,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; left out, it is read from stdin.")] = None,
    raw: options.Raw = False,
    input_file: Annotated[Path | None, typer.Option("--input", help=_INPUT_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="Also store a run folder here, as `vase eval` does.")] = None,
    as_json: AsJson = False,
) -> None:
    """Generate text for one prompt, or for each prompt of a file.

    Without a recipe or model it takes the best recipe that fits the device, and says which. On a terminal the text
    streams; in a pipe it is text only.
    """
    prompts, out = _read_prompts(prompt, input_file), out and user_path(out, ConfigError)
    recipe, entry = options.with_budget(overrides.with_recipe(PROMPTS, or_own=True).resolve(overrides.changes()))

    with quick_imports(recipe.device):
        from vase_cli.cli import streaming
        from vase_cli.engine.factory import EngineFactory
        from vase_cli.engine.plan import plan_run
        from vase_cli.evaluation.evaluate import evaluate

    factory = EngineFactory(plan_run(recipe, entry))
    task = _as_task(factory.plan, prompts, "command line" if input_file is None else str(input_file))
    ids = [f"{task.task.name}/{problem.id}/0" for problem in task.problems.problems]
    decode = factory.tokenizer.decode
    output: streaming.RunOutput
    if as_json:
        output = streaming.RunOutput()
    elif len(prompts) > 1:
        output = streaming.OrderedTexts(ids)
    elif not sys.stdout.isatty():
        output = streaming.StreamedText(decode)
    else:
        thinking, budget = factory.encode(prompts[0], raw=raw).thought_open, task.limits.budget_tokens
        memory = factory.plan.device.memory_bytes
        output = streaming.TerminalText(decode, thinking=thinking, budget=budget, memory_bytes=memory)
    with output.shown():
        finished = evaluate(factory, [task], root=out, command=sys.argv, progress=output, raw=raw)
        for stored in (identifier for identifier in ids if identifier not in output.printed):  # by an earlier run
            output.sample(finished.samples[stored])
    if finished.path is not None:
        echo(f"run folder: {finished.path}", err=True)
    if output.failed:
        raise RunError(f"{output.failed} of {len(prompts)} prompts failed")


def _as_task(plan: "RunPlan", prompts: list[str], source: str) -> "EvalTask":
    """Prompts as the problems of a task without a grader, so that they run and are stored as any others."""
    from vase_cli.evaluation.evaluate import EvalTask
    from vase_cli.tasks.base import Problem, ProblemSet, Task

    task = Task("prompts", "prompts of the user", hub=(), count=None, license="", url="", grader="", samples=1)
    problems = tuple(Problem(str(index), prompt, "") for index, prompt in enumerate(prompts))
    limits = plan.limits(None, max_new_tokens=None, max_total_tokens=task.max_total_tokens)
    return EvalTask(task, ProblemSet(problems, source), 1, limits)


def _read_prompts(prompt: str | None, input_file: Path | None) -> list[str]:
    if prompt is not None and input_file is not None:
        raise ConfigError("a prompt and --input are both given: leave one out")
    if input_file is not None:
        return _read_file(input_file)
    if prompt is None and not sys.stdin.isatty():
        prompt = decode_text(sys.stdin.buffer.read(), "stdin", DataError).removesuffix("\n").removesuffix("\r")
    if prompt is None or not prompt.strip():
        given = "no prompt" if prompt is None else "the prompt is empty"
        typed = shlex.join(["vase", *(argument for argument in sys.argv[1:] if argument.strip())])
        raise ConfigError(f"{given}: write one, {typed} {_EXAMPLE}, or give it on stdin, or with --input FILE")
    return [prompt]


def _read_file(path: Path) -> list[str]:
    """The prompt on each line that is not blank, or in each JSON object."""
    from vase_cli.tasks._files import missing_file, read_rows

    if path.suffix in (".jsonl", ".json"):
        from vase_cli.tasks._rows import QUESTION, RowError

        prompts = []
        for row in read_rows(path):
            try:
                prompts.append(row.fields().text(("prompt", *QUESTION)))
            except RowError as error:
                raise DataError(f"{row.where}: {error}; fix or remove the line") from error
    else:
        if not (path := user_path(path, DataError)).exists():
            raise DataError(missing_file(str(path), path))
        with file_access("read", path, DataError):
            content = path.read_bytes()
        lines = (line.removesuffix("\r") for line in decode_text(content, str(path), DataError).split("\n"))
        prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise DataError(f"{path} holds no prompt: write one a line")
    return prompts
