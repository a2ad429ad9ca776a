"""Options of an eviction method: ``key=value`` on the command line, a mapping in a recipe, fields of a dataclass."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from vase_cli import plugins
from vase_cli.config.yaml import COMMAND_LINE, Scalar, must_be, not_known, parse_scalar
from vase_cli.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from vase_cli.config.schema import Recipe
    from vase_cli.eviction.base import EvictionPolicy

_LARGEST = 2**31 - 1  # of a number that reaches a device
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def parse_option(text: str) -> tuple[str, Scalar]:
    """Split ``key=value``, typed as in a file: ``alpha=0.5`` -> ("alpha", 0.5); ConfigError where a part is missing."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise ConfigError(f"option '{text}': write key=value, such as n_large=256")
    return key.replace("-", "_"), parse_scalar(value)


def option_types(method: "type[EvictionPolicy]") -> dict[str, Any]:
    """The options of a method class: name -> annotation."""
    hints = get_type_hints(method)
    return {field.name: hints[field.name] for field in dataclasses.fields(method)}


def make_method(recipe: "Recipe") -> "EvictionPolicy":
    """The recipe's method, imported with torch; ConfigError for an option that it does not have, or of another type."""
    method: type[EvictionPolicy] = plugins.load("eviction", recipe.method)
    with plugins.blamed("eviction", recipe.method):
        types = option_types(method)
    options: dict[str, Any] = {}
    for key, value in recipe.method_options.items():
        origin = recipe.origins.get(f"method_options.{key}", recipe.name)
        place = f"-o {key}" if origin == COMMAND_LINE else f"{origin}: {key}"
        if key not in types:
            hint = did_you_mean(key, types) if types else "it has none"
            raise ConfigError(f"{place}: unknown option of {recipe.method}; {hint}")
        try:
            options[key] = _coerce(types[key], value)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
    with plugins.blamed("eviction", recipe.method):
        return method(**options)


def share_out(methods: Sequence[str], options: Mapping[str, Scalar]) -> tuple[dict[str, dict[str, Scalar]], list[str]]:
    """Share options among methods: those that each has, and a note on each option that some lack.

    Imports the methods' modules, and with them torch. ConfigError for an option that none has, or no such method.
    """
    known = {name: option_types(plugins.load("eviction", name)) for name in methods}
    notes = []
    for key in options:
        having = [name for name in known if key in known[name]]
        if not having:
            hint = did_you_mean(key, {option for types in known.values() for option in types})
            raise ConfigError(f"-o {key}: unknown option of {', '.join(known)}; {hint}")
        if without := [name for name in known if name not in having]:
            notes.append(f"-o {key} is for {', '.join(having)}; no such option: {', '.join(without)}")
    return {name: {key: value for key, value in options.items() if key in known[name]} for name in known}, notes


def _coerce(annotation: Any, value: Scalar) -> Scalar:
    """Check a value against an annotation; only a whole number is converted, to ``float``."""
    if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"{value} is too large; write a number up to {_LARGEST}")
    kinds = get_args(annotation) or (annotation,)  # choices, or types with "|" between them
    if get_origin(annotation) is Literal:
        if value not in kinds:
            raise ValueError(not_known(value, list(map(str, kinds))))
        return value
    if type(value) in kinds:
        return value
    if float in kinds and type(value) is int:
        return float(value)
    raise ValueError(must_be(next((name for kind, name in _KINDS.items() if kind in kinds), "text"), value))
