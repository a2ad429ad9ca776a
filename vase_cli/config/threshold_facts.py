"""The facts beside a model's thresholds, as a YAML file, and the zoo entry that names it.

A threshold is a value range for each layer and KV head, above which a token of that head is an outlier (the value
states of large range of arXiv 2606.03928). ``NAME.thresholds.yaml`` says what was measured and
``NAME.thresholds.safetensors`` beside it holds the numbers.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from vase_cli import plugins
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry
from vase_cli.config.types import Count, Problems, Seed, Text, Tokens, check_values, kind, partial, record
from vase_cli.config.yaml import Document, read_document
from vase_cli.errors import ConfigError, file_access

FORMAT = 1
SUFFIX = ".thresholds.yaml"
_RULES = {  # what the amount of a rule is, what it is less than, and an example
    "quantile": ("a share between 0 and 1", 1.0, "quantile:0.95"),
    "mad": ("a number above 0", math.inf, "mad:6"),
    "share": ("a share between 0 and 1", 1.0, "share:0.25"),
}


@dataclasses.dataclass(frozen=True)
class FitRule:
    """A head's threshold by its ranges.

    ``kind`` "quantile": the range that the share ``amount`` of the tokens does not exceed; "share": the one that it
    exceeds; "mad": the median plus ``amount`` median absolute deviations.
    """

    kind: str
    amount: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}"


def parse_rule(text: str) -> FitRule:
    """Parse ``quantile:Q``, ``mad:K`` or ``share:S``; ConfigError for another rule, or an amount out of range."""
    kind, colon, after = text.partition(":")
    if kind not in _RULES or not colon:
        raise ConfigError(f"rule '{text}': write quantile:0.95, mad:6 or share:0.25")
    takes, limit, example = _RULES[kind]
    amount = math.nan
    with contextlib.suppress(ValueError):
        amount = float(after)
    if not 0 < amount < limit:
        raise ConfigError(f"rule '{text}': {kind} takes {takes}, such as {example}")
    return FitRule(kind, amount)


def _rule(text: str) -> str:
    try:
        return str(parse_rule(text))
    except ConfigError as error:
        raise ValueError(str(error)) from None


# Empty until the numbers are written.
_FileName = Annotated[str, Field(pattern=r"^[^/\\]*$"), kind("text", "the name of a file beside this one")]
_HEX = Field(pattern="^([0-9a-f]{16})?$")
_Digest = Annotated[str, _HEX, kind("text", "16 hexadecimal digits; calibrate the model again")]


@record
class ThresholdFacts:
    """Origin of thresholds."""

    numbers: _FileName = Field(description="File of the numbers, beside this one.")
    digest: _Digest = Field(description="Digest of that file.")
    model: Text = Field(description="Name of the model.")
    revision: Text | None = Field(description="The hub's commit; none for a folder.")
    weights: _Digest | None = Field(description="Digest of a folder's weights; none for the hub's.")
    task: Text = Field(description="Task whose problems were solved.")
    problems: Problems = Field(description="Texts measured.")
    tokens: Tokens = Field(description="Tokens measured.")
    rule: Annotated[Text, AfterValidator(_rule)] = Field(description="How a threshold was found: quantile:0.95.")
    seed: Seed = Field(description="Seed of the texts.")
    date: Text = Field(description="When, ISO 8601.")
    layers: Count = Field(description="Layers of the numbers.")
    kv_heads: Count = Field(description="KV heads of the numbers.")
    lines: dict[str, int] = Field(default_factory=dict, description="Line of each key of the file.")

    def shown(self) -> dict[str, Any]:
        """The facts by key, without those that are None."""
        return {key: value for key, value in vars(self).items() if key != "lines" and value is not None}


_FileValues = partial(ThresholdFacts, "lines", format=Count)


def read_facts(path: Path) -> ThresholdFacts:
    """The facts of a ``.thresholds.yaml`` file; ConfigError, with file, line and key, if it breaks a rule."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: thresholds are named by their facts, a file NAME{SUFFIX}; see vase calibrate")
    document = read_document(path)
    values = {"revision": None, "weights": None} | check_values(_FileValues, document.values, document.error)
    if missing := [key for key in _FileValues.model_fields if key not in values]:
        raise document.error((), f"{missing[0]} is missing; calibrate the model again")
    if (version := values.pop("format")) != FORMAT:
        raise document.error(("format",), f"is {version}; this version of vase reads format {FORMAT}")
    return ThresholdFacts(**values, lines=document.key_lines())


def files_of(path: Path) -> list[Path]:
    """The facts and the numbers that they name; ConfigError if the facts break a rule, or the numbers are gone."""
    numbers = path.parent / read_facts(path).numbers
    if not numbers.is_file():
        raise ConfigError(f"{numbers}: no such file, and {path.name} names it; restore it")
    return [path, numbers]


def facts_text(facts: ThresholdFacts) -> str:
    """The YAML file of these facts."""
    lines = [f"{key}: {_written(value)}" for key, value in facts.shown().items()]
    head = "# Written by vase calibrate: what the thresholds in the file under `numbers` were made from."
    return "\n".join([head, f"format: {FORMAT}", *lines]) + "\n"


def entry_to_write(entry: ModelEntry, folder: Path, *, built_in: bool) -> tuple[Path, ModelEntry]:
    """The zoo file that will name a model's thresholds, and its entry so far.

    The user's own entry is changed in place; a model that has none, or a built-in one, gets one in ``folder``, or a
    ConfigError where another model's entry stands there.
    """
    if entry.source is not None and not built_in:
        return entry.source, entry
    name = entry.name.replace("/", "--")
    single, in_folder = folder / f"{name}.yaml", folder / name / "entry.yaml"
    path = in_folder if in_folder.exists() and not single.exists() else single
    if not path.exists():
        return path, entry
    there = load_entry(path, name)
    same_folder = (there.path and there.path.resolve()) == (entry.path and entry.path.resolve())
    if there.hub_id != entry.hub_id or not same_folder:
        hint = "rename it, or name another folder with --zoo"
        raise ConfigError(f"{path}: the entry of another model of this name; {hint}")
    return path, there


def entry_text(entry: ModelEntry, path: Path, thresholds: str, dense_tokens: tuple[str, float]) -> str:
    """The zoo file for ``path``: the lines of the model's own, and the ``thresholds`` file, relative to ``path``.

    ``dense_tokens`` is a task and the mean tokens of its texts with the full cache, for an entry without such a mean.
    """
    task, length = dense_tokens
    replaced: dict[str, str] = {}
    if entry.path is not None and entry.source != path:
        replaced["path"] = _written(str(entry.path.resolve()))
    if task not in entry.dense_tokens and task in plugins.names("tasks"):
        lengths = {**entry.dense_tokens, task: round(length, 1)}
        replaced["dense_tokens"] = f"{{{', '.join(f'{name}: {mean}' for name, mean in lengths.items())}}}"
    replaced["thresholds"] = _written(thresholds)
    kept = [] if entry.hub_id is None else [f"hub_id: {_written(entry.hub_id)}"]
    if entry.source is not None:
        kept = _lines_without(read_document(entry.source), replaced)
    return "\n".join([*kept, *(f"{key}: {value}" for key, value in replaced.items())]) + "\n"


def write_entry(path: Path, text: str) -> None:
    """Write a zoo file in one step, after a trial load; ConfigError if it does not load, or cannot be written."""
    trial = path.with_name(f".{path.name}")
    try:
        with file_access("write", path, ConfigError):
            path.parent.mkdir(parents=True, exist_ok=True)
            trial.write_bytes(text.encode())
            load_entry(trial, path.stem)
            trial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


def _lines_without(document: Document, dropped: Collection[str]) -> list[str]:
    """The lines of a zoo file without those of the ``dropped`` keys; comments stay."""
    lines = document.path.read_text(encoding="utf-8").splitlines()
    starts = sorted((document.lines[key,] - 1, key) for key in document.values)
    for (start, key), (end, _) in reversed([*zip(starts, [*starts[1:], (len(lines), "")], strict=True)]):
        while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
            end -= 1
        if key in dropped:
            del lines[start:end]
    return lines


def _written(value: str | int | float) -> str:
    """A scalar as YAML; quoted where it could read as something else."""
    if not isinstance(value, str):
        return str(value)
    plain = re.fullmatch(r"[A-Za-z_./][\w./+-]*(:[\w.+-]+)*", value)
    return value if plain else "'" + value.replace("'", "''") + "'"
