"""``vase methods``: the eviction methods there are, and the options of one."""

import dataclasses
import inspect
import json
import re
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from vase_cli import plugins
from vase_cli.cli.catalog_files import AsJson, cell
from vase_cli.cli.output import print_columns
from vase_cli.config.method_options import option_types

app = typer.Typer(help="List eviction methods, or show one's options.", no_args_is_help=True)


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """One row for each method: its name and what it keeps."""
    methods = [(name, _summary(plugins.load("eviction", name))) for name in plugins.names("eviction")]
    if not as_json:
        print_columns(("NAME", "WHAT IT DOES"), methods)
    for name, summary in methods if as_json else ():
        typer.echo(json.dumps({"name": name, "summary": summary}, ensure_ascii=False))


@app.command("show")
def show_method(name: Annotated[str, typer.Argument(help="Method name.")], as_json: AsJson = False) -> None:
    """What a method does and its options with their defaults; set one with -o name=value."""
    method = plugins.load("eviction", name)
    summary, about, types = _summary(method), _attributes(method), option_types(method)
    options = [
        {"name": key, "type": _type_name(types[key]), "default": default, "about": about.get(key, "")}
        for key, default in ((field.name, field.default) for field in dataclasses.fields(method))
    ]
    if as_json:
        typer.echo(json.dumps({"name": name, "summary": summary, "options": options}, ensure_ascii=False))
        return
    typer.echo(f"{name}: {summary}\n")
    print_columns(("OPTION", "TYPE", "DEFAULT", "ABOUT"), [[cell(value) for value in row.values()] for row in options])


def _summary(method: Any) -> str:
    return (inspect.cleandoc(method.__doc__ or "").splitlines() or [""])[0]


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
