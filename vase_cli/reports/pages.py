"""Pages: one HTML file that needs nothing else, made of the templates beside this module."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vase_cli.reports import figures, numbers
from vase_cli.reports.characters import visible

if TYPE_CHECKING:
    from jinja2 import Environment


def page(template: str, values: Mapping[str, Any], pictures: Mapping[str, figures.Picture]) -> bytes:
    """A page from ``templates/``, its pictures inside; texts are escaped, and show as :func:`visible`."""
    elements = {name: picture.inline(name) for name, picture in pictures.items()}
    return _environment().get_template(template).render(values, pictures=elements).encode()


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def flowing(text: str) -> Markup:
        """Running text, in which line breaks and tabs are themselves."""
        return escape("".join(sign if sign in "\n\t" else visible(sign) for sign in text))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )  # fmt: skip
    for function in (numbers.number, numbers.percent, numbers.points, numbers.short, figures.heat_ink, flowing):
        environment.filters[function.__name__] = function
    environment.globals["palette"] = figures.palette()
    return environment
