"""Types of the schema's values, and the messages for values that pydantic refuses.

A value comes from a file, from the command line or from Python. An unquoted scalar of a file
(:class:`~vase_cli.config.yaml.Plain`) is read as its type wants it; else only a whole number becomes a float, a list a
tuple and a mapping a record.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_type_hints

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, WrapValidator
from pydantic_core import ErrorDetails

from vase_cli import plugins
from vase_cli.config.yaml import Place, Plain, dotted, must_be, not_known, parse_scalar
from vase_cli.errors import ConfigError, did_you_mean

T = TypeVar("T")

HUB_ID = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_-][A-Za-z0-9_.-]*$"
_STRICT_KEYS = pydantic.ConfigDict(extra="forbid")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_BOUNDS = {
    "greater_than_equal": ", at least {ge}",
    "less_than_equal": ", at most {le}",
    "greater_than": " above {gt:g}",
}
_COLLECTIONS: dict[type, str] = {list: "is a list; write one value", dict: "is a mapping; write one value"}
_NOT_A_LIST = "must be a list with something in it; write [first, second]"


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields pydantic checks; made in Python, a value that it refuses is a ``ConfigError``."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=_STRICT_KEYS)(cls)
    check = made.__init__

    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            check(self, *values, **named)
        except ValidationError as refusal:
            place, message = _explain(refusal, made)
            raise ConfigError(f"{dotted(place) or made.__name__}: {message}") from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def partial(of: type, *without: str, **changes: Any) -> type[BaseModel]:
    """A model for a mapping with any of a record's fields, as a file or the command line has them."""
    hints = {**get_type_hints(of, include_extras=True), **changes}
    fields: dict[str, Any] = {name: (hint, None) for name, hint in hints.items() if name not in without}
    return pydantic.create_model(of.__name__, __config__=_STRICT_KEYS, **fields)


def check_values(
    model: type[BaseModel], values: Mapping[str, Any], error: Callable[[Place, str], ConfigError]
) -> dict[str, Any]:
    """Convert ``values`` to a :func:`partial` model's types, or raise the ``error`` of a place and its message."""
    for place in _places_of_no_text(values):
        raise error(place, "is not valid text (bad UTF-8 or half a surrogate pair); write it again")
    try:
        return _set_values(model.model_validate(values))
    except ValidationError as refusal:
        raise error(*_explain(refusal, model)) from None


def _places_of_no_text(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where a mapping holds text, as key or value, that no file can hold: pydantic cannot even refuse it."""
    if isinstance(value, str) and not value.isascii() and re.search("[\ud800-\udfff]", value):
        yield place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places_of_no_text(str(key), place)
            yield from _places_of_no_text(item, (*place, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places_of_no_text(item, (*place, index))


def _set_values(values: BaseModel) -> dict[str, Any]:
    present = ((name, value) for name, value in values if name in values.model_fields_set)
    return {name: _set_values(value) if isinstance(value, BaseModel) else value for name, value in present}


def _explain(refusal: ValidationError, model: Any) -> tuple[Place, str]:
    """Place and message of the first refusal, or of an unknown key, which explains the others."""
    errors = refusal.errors(include_url=False)
    error = next((error for error in errors if error["type"] in _UNKNOWN_KEY), errors[0])
    place = error["loc"]
    if place and place[-1] == "[key]":  # of a mapping with fixed keys
        return place[:-1], f"unknown key; {did_you_mean(error['input'], _choices(error))}"
    for key in place[:-1]:
        hint = get_type_hints(model).get(str(key))
        model = next((kind for kind in (hint, *get_args(hint)) if hasattr(kind, "__pydantic_fields__")), model)
    if error["type"] in _UNKNOWN_KEY:
        return place, f"unknown key; {did_you_mean(str(place[-1]), model.__pydantic_fields__)}"
    if error["type"] == "missing":
        needed = [name for name, field in model.__pydantic_fields__.items() if field.is_required()]
        return place[:-1], f"{place[-1]} is missing; this {[model.__name__, *place][-2]} is {', '.join(needed)}"
    if place and isinstance(place[-1], int) and isinstance(error["input"], list | dict):
        return place, "an item of the list is not a single value"
    return place, _message(error)


def _choices(error: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", error["ctx"]["expected"])


def _message(error: ErrorDetails, kind: str = "text", outside: str = "") -> str:
    """The message for one error of pydantic's: a value is not of a ``kind``, or ``outside`` a range or a pattern."""
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "dataclass_type" | "dict_type" | "mapping_type" | "model_type":
            return "must be a mapping; write 'key: value' lines, indented, under it"
        case "tuple_type":
            return _NOT_A_LIST
        case _ if type(value) in _COLLECTIONS:
            return _COLLECTIONS[type(value)]
        case "literal_error":
            return not_known(value, _choices(error))
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than" if outside:
            percent = error["type"] == "less_than_equal" and value <= 100
            hint = f"; write {value / 100:g} for {value:g} percent" if percent else ""
            return f"{float(value)} is not {outside}{hint}"
        case "string_pattern_mismatch":
            return f"'{value}' is not {outside}"
        case "greater_than_equal" | "less_than_equal" | "greater_than" as bound:
            return f"must be {kind}{_BOUNDS[bound].format(**context)}, not {value}"
    return must_be(kind, value)


def scalar(value: Any) -> Any:
    """Read an unquoted scalar of a file; a list or a mapping is a ValueError."""
    if type(value) in _COLLECTIONS:
        raise ValueError(_COLLECTIONS[type(value)])
    return parse_scalar(value) if isinstance(value, Plain) else value


def kind(noun: str, outside: str = "") -> WrapValidator:
    """Read an unquoted scalar; a refused value must be a ``noun``, or is ``outside`` a range or a pattern."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value if noun == "text" else scalar(value))
        except ValidationError as refusal:
            raise ValueError(_message(refusal.errors(include_url=False)[0], noun, outside)) from None

    return WrapValidator(check)


def _registered(group: str, *more: str) -> AfterValidator:
    """Refuse a name that is not registered; looked up late, so that other packages' plug-ins count."""

    def check(name: str) -> str:
        if name not in (known := [*plugins.names(group), *more]):
            raise ValueError(not_known(name, known))
        return name

    return AfterValidator(check)


def needs(key: str, hint: str) -> BeforeValidator:
    """Refuse a mapping of a file without ``key``, which Python may leave to its default."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and key not in value:
            raise ValueError(f"{key} is missing; {hint}")
        return value

    return BeforeValidator(check)


def _text(value: Any) -> Any:
    """Text without the blanks around it; not empty. ``1e10`` is text here, not a number."""
    if not isinstance(value, str):
        return scalar(value)
    if not value.strip():
        raise ValueError("is empty; write something, or leave the line out")
    return str(value).strip()


def _items(value: Any) -> Any:
    if value == []:
        raise ValueError(_NOT_A_LIST)
    return value


def _slots(value: Any) -> Any:
    value = scalar(value)
    if value == "auto" or (type(value) is int and 0 < value < 2**31):
        return value
    if type(value) is int and value > 0:
        raise ValueError(f"{value} sequences are more than any machine holds; write auto")
    raise ValueError(must_be("a whole number of sequences, at least 1, or auto", value))


def _far_from_zero(value: float) -> float:
    """Refuse a temperature by which a device, which computes in float32, cannot divide."""
    if 0 < value < 1e-6:
        raise ValueError(f"{value} is not {_TEMPERATURES}; write 0")
    return value


_PENALTIES = "a positive number from 1e-6 to 1e6, 1 being off"
_TEMPERATURES = "0 (greedy) or a positive number from 1e-6 to 1e6"
_STRICT, _NUMBER = Field(strict=True), Field(strict=True, allow_inf_nan=False)
_POSITIVE, _COUNT = Field(strict=True, ge=1), Field(strict=True, ge=1, le=2**31 - 1)  # a count has room on a device

AsText, NotEmpty = BeforeValidator(_text), BeforeValidator(_items)
Text = Annotated[str, _STRICT, AsText]
Flag = Annotated[bool, _STRICT, kind("true or false")]
Count = Annotated[int, _COUNT, kind("a whole number")]
Tokens = Annotated[int, _COUNT, kind("a whole number of tokens")]
Problems = Annotated[int, _COUNT, kind("a whole number of problems")]
Samples = Annotated[int, _COUNT, kind("a whole number of samples per problem")]
Parameters = Annotated[int, _POSITIVE, kind("a whole number of parameters")]
Seed = Annotated[int, _STRICT, Field(ge=0, le=2**63 - 1), kind("a whole number")]
Length = Annotated[float, _NUMBER, Field(gt=0, le=2**31 - 1), kind("a number of tokens")]
Lengths = Mapping[str, Length]
_NEAR_ZERO = AfterValidator(_far_from_zero)
Temperature = Annotated[float, _NUMBER, Field(ge=0, le=1e6), _NEAR_ZERO, kind("a number", _TEMPERATURES)]
TopK = Annotated[int, _STRICT, Field(ge=0, le=2**31 - 1), kind("a whole number of tokens")]
TopP = Annotated[float, _NUMBER, Field(gt=0, le=1), kind("a number", "in (0, 1], 1 being off")]
MinP = Annotated[float, _NUMBER, Field(ge=0, lt=1), kind("a number", "in [0, 1), 0 being off")]
Penalty = Annotated[float, _NUMBER, Field(ge=1e-6, le=1e6), kind("a number", _PENALTIES)]
Slots = Annotated[int | str, PlainValidator(_slots)]
Option = Annotated[bool | int | float | str, BeforeValidator(scalar)]
Method = Annotated[str, _STRICT, _registered("eviction")]
Attention = Annotated[str, _STRICT, _registered("attention", "auto")]
_DEVICE, _HUB_ID = (Field(strict=True, pattern=text) for text in ("^(auto|cpu|cuda(:[0-9]{1,3})?|mps)$", HUB_ID))
Device = Annotated[str, _DEVICE, kind("text", "a device; write auto, cpu, cuda, cuda:0 or mps")]
HubId = Annotated[str, _HUB_ID, kind("text", "a hub id; write organization/name")]
DType = Literal["auto", "bfloat16", "float16", "float32"]
