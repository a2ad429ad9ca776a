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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vase_cli import plugins
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry
from vase_cli.config.yaml import Fields, Rule, Scalar, read_mapping, text, whole
from vase_cli.errors import ConfigError, file_error
from vase_cli.runs.files import write_atomically

FORMAT = 1
SUFFIX = ".thresholds.yaml"
RULES = "quantile:0.95, mad:6 or share:0.25"


@dataclass(frozen=True)
class FitRule:
    """How a threshold is found from a head's ranges.

    Attributes:
        kind: "quantile" (the range that this share of the tokens does not exceed), "mad" (the median plus so many
            median absolute deviations) or "share" (the range that this share of the tokens exceeds).
        amount: the share, or how many deviations.
    """

    kind: str
    amount: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}"


@dataclass(frozen=True)
class ThresholdFacts:
    """What thresholds were made from.

    Attributes:
        numbers: the file of the numbers, beside this one.
        digest: of that file.
        model: the model's name.
        revision: the hub's commit; None for a folder.
        weights: digest of a folder's weights; None for the hub's.
        task: whose problems were solved.
        problems, tokens: texts and tokens measured.
        rule: how a threshold was found, such as "quantile:0.95".
        seed: of the texts.
        date: when, ISO 8601.
        layers, kv_heads: the numbers' shape.
        lines: the line of each key of the file.
    """

    numbers: str
    digest: str
    model: str
    revision: str | None
    weights: str | None
    task: str
    problems: int
    tokens: int
    rule: str
    seed: int
    date: str
    layers: int
    kv_heads: int
    lines: dict[str, int] = dataclasses.field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """The facts by key, without what was not said."""
        written = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "lines"}
        return {key: value for key, value in written.items() if value is not None}


def parse_rule(written: str) -> FitRule:
    """``quantile:Q``, ``mad:K`` or ``share:S``.

    Raises:
        ConfigError: another rule, or an amount out of range.
    """
    kind, colon, after = written.partition(":")
    if kind not in ("quantile", "mad", "share") or not colon:
        raise ConfigError(f"rule '{written}': write {RULES}")
    amount = math.nan
    with contextlib.suppress(ValueError):
        amount = float(after)
    if kind == "mad":
        if not (math.isfinite(amount) and amount > 0):
            raise ConfigError(f"rule '{written}': mad takes a number above 0, such as mad:6")
    elif not 0.0 < amount < 1.0:
        example = "quantile:0.95" if kind == "quantile" else "share:0.25"
        raise ConfigError(f"rule '{written}': {kind} takes a share between 0 and 1, such as {example}")
    return FitRule(kind, amount)


def read_facts(path: Path) -> ThresholdFacts:
    """The facts of a ``.thresholds.yaml`` file.

    Raises:
        ConfigError: the file breaks a rule, with file, line and key.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: thresholds are named by their facts, a file NAME{SUFFIX}; see vase calibrate")
    fields = read_mapping(path)
    known = ("format", *_FACT_RULES)
    fields.only(known)
    if missing := [key for key in known if key not in fields and key not in ("revision", "weights")]:
        raise fields.error(None, f"{missing[0]} is missing; calibrate the model again")
    if (found := fields.get("format", whole())) != FORMAT:
        raise fields.error("format", f"is {found}; this version of vase reads format {FORMAT}")
    values: dict[str, Any] = {key: fields.get(key, rule) for key, rule in _FACT_RULES.items() if key in fields}
    return ThresholdFacts(**{"revision": None, "weights": None} | values, lines=fields.lines())


def files_of(path: Path) -> list[Path]:
    """The files of some thresholds: the facts, and the numbers that they name.

    Raises:
        ConfigError: the facts break a rule, or the numbers are not there.
    """
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
    """The zoo file that will name a model's thresholds, and what it says so far.

    The user's own entry is changed in place; a model that has none, or a built-in one, gets one in ``folder``.

    Raises:
        ConfigError: another model's entry stands there.
    """
    if entry.source is not None and not built_in:
        return entry.source, entry
    name = entry.name.replace("/", "--")
    found = [path for path in (folder / f"{name}.yaml", folder / name / "entry.yaml") if path.exists()]
    if not found:
        return folder / f"{name}.yaml", entry
    there = load_entry(found[0], name)
    if _weights_of(there) != _weights_of(entry):
        raise ConfigError(
            f"{found[0]}: the entry of another model of this name; rename it, or name another folder with --zoo"
        )
    return found[0], there


def _weights_of(entry: ModelEntry) -> tuple[str | None, Path | None]:
    return entry.hub_id, None if entry.path is None else entry.path.resolve()


def entry_text(entry: ModelEntry, path: Path, thresholds: str, dense_tokens: tuple[str, float]) -> str:
    """A zoo file with everything that a model's own says, its thresholds, and the length of a task's texts if new.

    Args:
        entry: the model.
        path: where the file will be.
        thresholds: the file of the facts, relative to the zoo file.
        dense_tokens: a task and the mean length of its texts with the full cache, in tokens.
    """
    task, length = dense_tokens
    anew: dict[str, str] = {}
    if entry.path is not None and entry.source != path:
        anew["path"] = _written(str(entry.path.resolve()))
    if task not in entry.dense_tokens and task in plugins.names("tasks"):
        lengths = {**entry.dense_tokens, task: round(length, 1)}
        anew["dense_tokens"] = f"{{{', '.join(f'{name}: {mean}' for name, mean in lengths.items())}}}"
    anew["thresholds"] = _written(thresholds)
    if entry.source is not None:
        kept = _without(anew, read_mapping(entry.source), entry.source.read_text(encoding="utf-8").splitlines())
    else:
        kept = [] if entry.hub_id is None else [f"hub_id: {_written(entry.hub_id)}"]
    return "\n".join([*kept, *(f"{key}: {value}" for key, value in anew.items())]) + "\n"


def write_entry(path: Path, written: str) -> None:
    """Write a zoo file in one step, once it is known to load.

    Raises:
        ConfigError: it would not, or it cannot be written.
    """
    trial = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(trial, written.encode(), durable=False)
        load_entry(trial, path.stem)
        trial.replace(path)
    except OSError as error:
        raise file_error("write", path, error, ConfigError) from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


def _without(anew: Collection[str], fields: Fields, lines: list[str]) -> list[str]:
    """A zoo file's lines less those of the keys that are written anew; comments stay."""
    starts = sorted((_key_line(lines, node.line, key), key) for key, node in fields.nodes.items())
    dropped: set[int] = set()
    for (start, key), (following, _) in zip(starts, [*starts[1:], (len(lines) + 1, "")], strict=True):
        if key in anew:
            end = following - 1
            while end > start and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
                end -= 1
            dropped |= set(range(start, end + 1))
    return [line for number, line in enumerate(lines, 1) if number not in dropped]


def _key_line(lines: list[str], value_line: int, key: str) -> int:
    """The line of a key whose value starts at ``value_line``."""
    line = value_line
    while line > 1 and not re.match(rf"""["']?{re.escape(key)}["']?\s*:""", lines[line - 1]):
        line -= 1
    return line


def _written(value: str | int | float) -> str:
    """A scalar as YAML; quoted where it could read as something else."""
    if not isinstance(value, str):
        return str(value)
    plain = re.fullmatch(r"[A-Za-z_./][\w./+-]*(:[\w.+-]+)*", value)
    return value if plain else "'" + value.replace("'", "''") + "'"


def _file_name(written: Scalar) -> str:
    name = text(written)
    if Path(name).name != name:
        raise ValueError(f"'{name}' is not the name of a file beside this one")
    return name


def _digits(written: Scalar) -> str:
    value = str(written)
    if not re.fullmatch(r"[0-9a-f]{16}", value):
        raise ValueError(f"'{value}' is not 16 hexadecimal digits; calibrate the model again")
    return value


def _rule(written: Scalar) -> str:
    try:
        return str(parse_rule(str(written)))
    except ConfigError as error:
        raise ValueError(str(error)) from None


_FACT_RULES: dict[str, Rule[Any]] = {
    "numbers": _file_name,
    "digest": _digits,
    "model": text,
    "revision": text,
    "weights": _digits,
    "task": text,
    "problems": whole("problems"),
    "tokens": whole("tokens"),
    "rule": _rule,
    "seed": whole(minimum=0),
    "date": text,
    "layers": whole(),
    "kv_heads": whole(),
}
