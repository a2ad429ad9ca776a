"""``vase tasks``: the benchmarks there are, and everything about one."""

import json
from typing import Annotated, Any

import typer

from vase_cli import plugins
from vase_cli.tasks.base import Task, example_problem

app = typer.Typer(help="List the benchmarks, or show one.", no_args_is_help=True)

_AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")]


@app.command("list")
def list_tasks(as_json: _AsJson = False) -> None:
    """One row for each task: name, problems, grader, samples, groups, source."""
    tasks: list[Task] = [plugins.load("tasks", name) for name in plugins.names("tasks")]
    if as_json:
        for task in tasks:
            typer.echo(json.dumps(_facts(task), ensure_ascii=False))
        return
    rows = [("NAME", "PROBLEMS", "GRADER", "SAMPLES", "GROUPS", "SOURCE")]
    for task in tasks:
        groups = ", ".join(task.groups) or "-"
        rows.append((task.name, _count(task), task.grader, str(task.samples), groups, task.hub_id or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command("show")
def show_task(name: Annotated[str, typer.Argument(help="Task name.")], as_json: _AsJson = False) -> None:
    """All facts of a task, its prompt on an example, and how its grader decides."""
    task: Task = plugins.load("tasks", name)
    policies: tuple[str, ...] = plugins.load("graders", task.grader).policies
    prompt = example_problem(task).prompt
    if as_json:
        facts = {**_facts(task), "example_prompt": prompt, "policies": list(policies)}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    typer.echo(f"{task.name}: {task.title}")
    for label, value in _lines(task):
        typer.echo(f"  {label + ':':<13} {value}")
    typer.echo("\nprompt, on a made-up problem:")
    typer.echo("\n".join(f"  {line}".rstrip() for line in prompt.splitlines()))
    typer.echo(f"\nhow the grader '{task.grader}' decides:")
    for policy in policies:
        typer.echo(f"  - {policy}")


def _lines(task: Task) -> list[tuple[str, str]]:
    lines = [("problems", _count(task))]
    for source in task.hub:
        config = f", config {source.config}" if source.config else ""
        lines.append(("hub", f"{source.id}{config}, split {source.split}"))
        lines.append(("revision", source.revision or "not pinned"))
    new_tokens = f"{task.max_new_tokens:,} new, " if task.max_new_tokens is not None else ""
    fallbacks = (
        f"the last \\boxed{{}}, else: {', '.join(task.fallbacks)}" if task.fallbacks else "the last \\boxed{} only"
    )
    lines += [
        ("access", "gated: accept its terms on its page, then `hf auth login`" if task.gated else "open"),
        ("license", task.license),
        ("page", task.url),
        ("grader", task.grader),
        ("answer", fallbacks),
        ("samples", f"{task.samples} per problem"),
        ("token limit", f"{new_tokens}{task.max_total_tokens:,} with the prompt"),
        ("groups", ", ".join(task.groups) or "-"),
        ("version", str(task.version)),
    ]
    if task.note:
        lines.append(("note", task.note))
    return lines


def _count(task: Task) -> str:
    return f"{task.count:,}" if task.count is not None else "-"


def _facts(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "version": task.version,
        "title": task.title,
        "problems": task.count,
        "hub": [
            {"id": source.id, "config": source.config, "split": source.split, "revision": source.revision}
            for source in task.hub
        ],
        "gated": task.gated,
        "license": task.license,
        "url": task.url,
        "grader": task.grader,
        "fallbacks": list(task.fallbacks),
        "prompt_format": task.prompt_format,
        "groups": list(task.groups),
        "samples": task.samples,
        "max_new_tokens": task.max_new_tokens,
        "max_total_tokens": task.max_total_tokens,
        "note": task.note,
    }
