"""``vase methods``: eviction methods and their options."""

import dataclasses
import inspect
import re
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from vase_cli import plugins
from vase_cli.cli.output import AsJson, echo, print_columns, print_json, print_left_out, print_list
from vase_cli.errors import ConfigError

app = typer.Typer(help="List eviction methods, or show one's options.", no_args_is_help=True)


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """One row for each method: its name and what it keeps."""
    entries = []
    for name in plugins.names("eviction"):
        try:
            summary = plugins.summary("eviction", name)
        except ConfigError as error:
            print_left_out(error)
        else:
            entries.append(({"name": name, "summary": summary}, (name, summary)))
    print_list(("NAME", "WHAT IT DOES"), entries, as_json=as_json)


@app.command("show")
def show_method(name: Annotated[str, typer.Argument(help="Method name.")], as_json: AsJson = False) -> None:
    """What a method does and its options with their defaults; set one with -o name=value."""
    from vase_cli.cli.catalog_files import cell
    from vase_cli.config.method_options import option_types

    with plugins.blamed("eviction", name):
        method, summary = plugins.load("eviction", name), plugins.summary("eviction", name)
        about, defaults = _attributes(method), {field.name: field.default for field in dataclasses.fields(method)}
        options = [
            {"name": key, "type": _type_name(kind), "default": defaults[key], "about": about.get(key, "")}
            for key, kind in option_types(method).items()
        ]
    if as_json:
        print_json({"name": name, "summary": summary, "options": options})
        return
    echo(f"{name}: {summary}\n")
    print_columns(("OPTION", "TYPE", "DEFAULT", "ABOUT"), [[cell(value) for value in row.values()] for row in options])


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", None) or str(annotation).replace(" | None", "")


def _attributes(method: type) -> dict[str, str]:
    """The text on each option under "Attributes:" in the docstrings of a method and its bases."""
    about: dict[str, str] = {}
    for owner in reversed(method.__mro__):
        section = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, re.MULTILINE):
            about[name] = " ".join(text.split())
    return about
