"""``vase methods``: the eviction methods there are, and the options of one."""

import dataclasses
import inspect
import json
import re
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from vase_cli import plugins
from vase_cli.cli.output import AsJson, print_columns

app = typer.Typer(help="List eviction methods, or show one's options.", no_args_is_help=True)


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """One row for each method: its name and what it keeps."""
    summaries = {name: plugins.summary("eviction", name) for name in plugins.names("eviction")}
    if as_json:
        for name, summary in summaries.items():
            typer.echo(json.dumps({"name": name, "summary": summary}, ensure_ascii=False))
        return
    print_columns(("NAME", "WHAT IT DOES"), list(summaries.items()))


@app.command("show")
def show_method(name: Annotated[str, typer.Argument(help="Method name.")], as_json: AsJson = False) -> None:
    """What a method does and its options with their defaults; set one with -o name=value."""
    from vase_cli.cli.catalog_files import cell
    from vase_cli.config.method_options import option_types

    method, summary = plugins.load("eviction", name), plugins.summary("eviction", name)
    about, types = _attributes(method), option_types(method)
    options = [
        {"name": key, "type": _type_name(types[key]), "default": default, "about": about.get(key, "")}
        for key, default in ((field.name, field.default) for field in dataclasses.fields(method))
    ]
    if as_json:
        typer.echo(json.dumps({"name": name, "summary": summary, "options": options}, ensure_ascii=False))
        return
    typer.echo(f"{name}: {summary}\n")
    print_columns(("OPTION", "TYPE", "DEFAULT", "ABOUT"), [[cell(value) for value in row.values()] for row in options])


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", None) or str(annotation).replace(" | None", "")


def _attributes(method: Any) -> dict[str, str]:
    """What the docstrings of a method and its bases say of each option, under "Attributes:"."""
    about: dict[str, str] = {}
    for owner in reversed(method.__mro__):
        section = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, re.MULTILINE):
            about[name] = " ".join(text.split())
    return about
