"""Options of an eviction method: ``key=value`` on the command line, a mapping in a recipe, fields of a dataclass."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vase_cli import plugins
from vase_cli.config.schema import COMMAND_LINE, Recipe
from vase_cli.config.yaml import choice, flag, number, parse_scalar, whole
from vase_cli.errors import ConfigError, did_you_mean


def parse_option(written: str) -> tuple[str, int | float | bool | str]:
    """One ``key=value`` of the command line, typed as in a file: ``alpha=0.5`` -> ("alpha", 0.5).

    Raises:
        ConfigError: no '=', or nothing before or after it.
    """
    key, equals, value = written.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(f"option '{written}': write key=value, such as n_large=256")
    return key.strip().replace("-", "_"), parse_scalar(value.strip())


def coerce_options(
    fields: Mapping[str, Any],
    options: Mapping[str, int | float | bool | str],
    where: str | Mapping[str, str],
    method: str = "the method",
) -> dict[str, int | float | bool | str]:
    """Options checked against a method's fields (name -> annotation, as ``typing.get_type_hints`` gives them).

    A whole number is taken for ``float``; nothing else is converted. ``where`` says where the options come from: one
    text, or one per option. ``method`` is named where it has no such option.

    Raises:
        ConfigError: an option that the method does not have, or of another type.
    """
    coerced: dict[str, int | float | bool | str] = {}
    for key, value in options.items():
        origin = where if isinstance(where, str) else where.get(key, "method options")
        place = f"-o {key}" if origin == COMMAND_LINE else f"{origin}: {key}"
        if key not in fields:
            hint = did_you_mean(key, fields) if fields else "it has none"
            raise ConfigError(f"{place}: unknown option of {method}; {hint}")
        try:
            coerced[key] = _coerce(fields[key], value)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from None
    return coerced


def option_types(method: Any) -> dict[str, Any]:
    """The options of a method class: name -> annotation."""
    hints = get_type_hints(method)
    return {one.name: hints[one.name] for one in dataclasses.fields(method)}


def make_method(recipe: Recipe) -> Any:
    """The recipe's method with its options; imports the method's module, and with it torch.

    Raises:
        ConfigError: an option that the method does not have, or of another type.
    """
    method = plugins.load("eviction", recipe.method)
    where = {key: recipe.origins.get(f"method_options.{key}", recipe.name) for key in recipe.method_options}
    return method(**coerce_options(option_types(method), recipe.method_options, where, recipe.method))


def share_out(
    methods: Sequence[str], options: Mapping[str, int | float | bool | str]
) -> tuple[dict[str, dict[str, int | float | bool | str]], list[str]]:
    """Options typed for several methods: those that each one has, and a note on each that some have not.

    Imports the methods' modules, and with them torch.

    Raises:
        ConfigError: an option that none of them has, or no such method.
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


def _coerce(annotation: Any, value: int | float | bool | str) -> int | float | bool | str:
    if get_origin(annotation) is Literal:
        return choice(*map(str, get_args(annotation)))(value)
    wanted = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    if type(value) in wanted:
        return value
    if float in wanted and type(value) is int:
        return float(value)
    for one, rule in ((bool, flag), (int, whole()), (float, number())):
        if one in wanted:
            rule(value)  # raises with what to write instead
    raise ValueError(f"must be text, not {value!r}")
