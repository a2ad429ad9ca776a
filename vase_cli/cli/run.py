"""``vase run``: prompts in, text out."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli import options
from vase_cli.cli.evaluate import DEFAULT_RECIPE
from vase_cli.errors import ConfigError, DataError, RunError, decode_text

_TASK = "prompts"


def run(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; left out, it is read from stdin.")] = None,
    recipe: options.RecipeName = None,
    model: options.Model = None,
    think: options.Think = None,
    system: options.System = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw", help="Through the chat template, or the prompt as it is; chat where there is one."
        ),
    ] = None,
    zoo: options.Zoo = None,
    recipes: options.Recipes = None,
    method: options.Method = None,
    budget: options.Budget = None,
    option: options.MethodOptions = None,
    window: options.Window = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    max_new_tokens: options.MaxNewTokens = None,
    max_total_tokens: options.MaxTotalTokens = None,
    slots: options.Slots = None,
    dtype: options.DType = None,
    attention: options.AttentionName = None,
    compile_decode: options.Compile = None,
    device: options.Device = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Prompts from a file: one a line, or JSONL with a field 'prompt'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also store a run folder here, as `vase eval` does.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Generate text for one prompt, or for each prompt of a file.

    With nothing named it runs the embedded model. On a terminal the text streams; in a pipe it is text only.
    """
    prompts = _read_prompts(prompt, input_file)
    if recipe is None and model is None and not (recipe := os.environ.get("VASE_RECIPE")):
        recipe = DEFAULT_RECIPE
        typer.echo(
            f"no model named: {DEFAULT_RECIPE} answers, which solves one kind of problem only (`vase tasks show "
            "recurrence`); name another with --recipe or --model",
            err=True,
        )
    resolved, entry = options.resolve(recipe, options.overrides(context.params), zoo=zoo, recipes=recipes)
    assembly = options.assemble(resolved, entry)

    from vase_cli.cli.streaming import RunOutput
    from vase_cli.evaluation.evaluate import TaskPart, encode_prompt, evaluate
    from vase_cli.tasks.base import Problem, ProblemSet, Task

    task = Task(name=_TASK, title="prompts of the user", hub=(), count=None, license="", url="", grader="", samples=1)
    problems = tuple(Problem(str(index), text, "") for index, text in enumerate(prompts))
    source = "command line" if input_file is None else str(input_file)
    part = assembly.part(None, max_new_tokens=None, max_total_tokens=task.max_total_tokens)
    if chat and not assembly.tokenizer.has_chat_template:
        raise ConfigError(f"--chat: {entry.name} has no chat template; leave it out, the prompt is then given as it is")
    raw = not assembly.tokenizer.has_chat_template if chat is None else not chat
    ids = [f"{_TASK}/{problem.id}/0" for problem in problems]
    output = RunOutput(
        ids,
        assembly.tokenizer.decode,
        as_json=as_json,
        thought_open=encode_prompt(assembly, prompts[0], raw=raw).thought_open,
        memory_bytes=assembly.hardware.memory_bytes,
        budget=None if part.budget is None else part.budget.tokens,
    )
    with output:
        finished = evaluate(
            assembly,
            [TaskPart(task, ProblemSet(_TASK, problems, source), 1, part)],
            root=out,
            command=sys.argv,
            progress=output,
            raw=raw,
        )
        for identifier in output.unseen():
            output.stored(finished.records[identifier])
    if finished.path is not None:
        typer.echo(f"run folder: {finished.path}", err=True)
    if output.failed:
        raise RunError(f"{output.failed} of {len(prompts)} prompts failed")


def _read_prompts(prompt: str | None, input_file: Path | None) -> list[str]:
    """The prompts from the one place that was named: argument, file or stdin."""
    if prompt is not None and input_file is not None:
        raise ConfigError("a prompt and --input are both given: leave one out")
    if input_file is not None:
        return _read_file(input_file)
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError("no prompt: give it as an argument, on stdin, or with --input FILE")
        prompt = decode_text(sys.stdin.buffer.read(), "stdin", DataError).removesuffix("\n").removesuffix("\r")
    if not prompt.strip():
        raise ConfigError("the prompt is empty: write one")
    return [prompt]


def _read_file(path: Path) -> list[str]:
    """One prompt of each line that is not blank, or of each JSON object."""
    from vase_cli.tasks._files import missing_file, read_rows

    if path.suffix in (".jsonl", ".json"):
        from vase_cli.tasks._rows import QUESTION, Fields, RowError

        prompts = []
        for row in read_rows(path):
            try:
                if row.fields is None:
                    raise RowError(row.fault)
                prompts.append(Fields(row.fields).text(("prompt", *QUESTION)))
            except RowError as error:
                raise DataError(f"{row.where}: {error}; mend or remove the line") from error
    else:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise DataError(missing_file(str(path), path)) from None
        except OSError as error:
            raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
        lines = (line.removesuffix("\r") for line in decode_text(content, str(path), DataError).split("\n"))
        prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise DataError(f"{path} holds no prompt: write one a line")
    return prompts
