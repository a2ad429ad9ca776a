"""``vase bench``: how fast decoding is on this machine, against the floor that its memory sets."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vase_cli.cli import options
from vase_cli.cli.output import echo, print_json, print_tables
from vase_cli.cli.startup import quick_imports
from vase_cli.config.catalog import Resolved
from vase_cli.config.resolve import check_option
from vase_cli.config.schema import SAMPLING_KEYS, SamplingParams
from vase_cli.config.yaml import parse_scalar
from vase_cli.errors import ConfigError, RunError, file_access, user_path

if TYPE_CHECKING:
    from vase_cli.bench.cells import Cell, Steps, WorkloadCell
    from vase_cli.bench.records import Bench
    from vase_cli.engine.factory import EngineFactory

_option = partial(typer.Option, rich_help_panel=options.BENCHMARK)
_SHAPE_HELP = "Zoo name: random weights of its size, nothing is downloaded."
_SLOTS_HELP = f"Sequences at a time: 16, or 1,16,64; {options.AUTO_SLOTS}, for a workload any that shorten it."
_CONTEXT_HELP = (
    "Tokens of text in every row as the steps begin: 8192, or 8192,32768; twice the largest budget if left out."
)
_PREFILL_HELP = "Time prefills of 32 prompts of half to all of so many tokens: 100,2048; 2048 if left out, 0 for none."
_WORKLOAD_HELP = (
    "Serve whole requests, all at once: short, reasoning, or a .jsonl file of prompt_tokens, new_tokens, count."
)
_TEXT_HELP = "Compare with full at equal memory, at the end of texts of these lengths in tokens: 8192,32768."


@options.with_overrides("think", "system_prompt", "method", "budget", "max_new_tokens", "max_total_tokens", "slots")
def bench(
    overrides: options.Overrides,
    shape: Annotated[str | None, typer.Option(help=_SHAPE_HELP)] = None,
    slots: Annotated[list[str] | None, _option(help=_SLOTS_HELP)] = None,
    context: Annotated[list[str] | None, _option(help=_CONTEXT_HELP)] = None,
    text: Annotated[list[str] | None, _option(help=_TEXT_HELP)] = None,
    steps: Annotated[int | None, _option(help="Measured steps, at least two windows.")] = None,
    warmup: Annotated[int | None, _option(help="Warm-up steps before them, at least one window.")] = None,
    prefill: Annotated[list[str] | None, _option(help=_PREFILL_HELP)] = None,
    workload: Annotated[str | None, _option(help=_WORKLOAD_HELP)] = None,
    repeat: Annotated[
        int | None, _option(min=1, help="Times that a workload runs, of which the median is taken.")
    ] = None,
    memory: Annotated[float | None, _option(help="Memory in GiB to plan with, in place of all that is free.")] = None,
    sampling: Annotated[str | None, _option(help="greedy, or model: what the recipe says. Greedy if left out.")] = None,
    out: Annotated[Path | None, _option(help="Also write the JSON lines to this new file.")] = None,
) -> None:
    """Measure decoding: every method at every budget, number of slots and length of text.

    Without --shape, a recipe or a model it takes the best recipe that fits the device, and says which. JSON lines go to
    stdout, one for each cell and a summary last; the table goes to stderr. The floor of a step is what it must read and
    compute, at the rates of memory and of matrix products that are measured first.

    --workload serves requests through the engine from the first to the last token, each with a random prompt and as
    many new tokens as it says: short has 256 of 100 to 1,000 tokens in and 2,048 out; reasoning has 64 of 200 in and
    2,048 to 32,768 out, distributed around the mean lengths of published reasoning texts.
    """
    if shape is not None and (named := overrides.recipe or overrides.model):
        raise ConfigError(f"--shape {shape} and {named}: random weights or a real model, leave one out")
    if text and (slots or context):
        raise ConfigError("--text measures all slots that fit, at the end of a text: leave --slots and --context out")
    steps_alone = {"--context": context, "--text": text, "--steps": steps, "--warmup": warmup, "--prefill": prefill}
    if workload is not None and (given := [name for name, value in steps_alone.items() if value is not None]):
        raise ConfigError(f"--workload says how long texts are and runs them whole: leave {' and '.join(given)} out")
    if workload is None and repeat is not None:
        raise ConfigError("--repeat is for a --workload: add one, or leave it out")
    if memory is not None and not 0 < memory < 2**20:
        raise ConfigError(f"--memory {memory:g}: must be a number of GiB above 0")
    if out is not None and os.path.lexists(out := user_path(out, ConfigError)):
        raise ConfigError(f"--out {out}: is there already; name another file")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: its folder is not there; make it first")
    lengths = _lengths("--text", text) if text else _lengths("--context", context)
    prompts = tuple(filter(None, _lengths("--prefill", prefill or ["2048"], least=0)))
    changes = overrides.changes() | _sampling(sampling, overrides)
    compared = _compared(overrides, changes, shape, with_full=bool(text))
    first = compared[0].recipe
    usual_slots = first.slots if workload is None else "auto"
    counts = [check_option("slots", parse_scalar(count)) for count in options.listed(slots)] or [usual_slots]

    with quick_imports(first.device):
        from vase_cli.bench.cells import make_cell, make_steps, make_workload_cell
        from vase_cli.bench.records import Bench
        from vase_cli.bench.workloads import make_workload

    cells: list[Cell | WorkloadCell] = []
    if workload is not None:
        served = make_workload(workload, first.seed)
        for factory in _factories(compared, served.longest_text, random=shape is not None):
            cells += [make_workload_cell(factory, count, served, repeat or 1) for count in counts]
    else:
        measured = make_steps(first.window, warmup, steps)
        lengths = lengths or [_usual_length(compared, measured, random=shape is not None)]
        for factory in _factories(compared, max(lengths) + measured.total, random=shape is not None):
            make = partial(make_cell, factory, steps=measured, prefill=prompts, of_text=bool(text))
            cells += [make(count, length) for count in counts for length in lengths]
    plan = cells[0].factory.plan
    memory_bytes = None if memory is None else int(memory * 2**30)
    with contextlib.nullcontext() if out is None else _open(out) as file:
        measures = Bench(plan.device.torch, plan.facts.torch_dtype, memory_bytes=memory_bytes)
        _say_rates(plan.device.name, plan.facts.dtype, measures)
        _run(measures, cells, file)


def _compared(
    overrides: options.Overrides, changes: dict[str, Any], shape: str | None, *, with_full: bool
) -> list[Resolved]:
    """A recipe for every method at every budget; ``with_full`` puts full first, named or not."""
    if shape is not None:
        catalog = overrides.catalog()
        if shape not in catalog.files("zoo") and (os.sep in shape or Path(shape).is_dir()):
            hint = "takes a zoo name (`vase zoo list`); for a model folder or hub id use --model"
            raise ConfigError(f"--shape {shape}: {hint}")
        catalog.find("zoo", shape)
        changes = {**changes, "model": shape}
    else:
        overrides = overrides.with_recipe()
    compared = overrides.compared(changes)
    if with_full:
        if all(recipe.method != "full" for recipe, _ in compared):
            only_full = dataclasses.replace(overrides, methods=["full"], budgets=None)
            compared += only_full.compared({**changes, "method_options": None})
        compared.sort(key=lambda resolved: resolved.recipe.method != "full")
    unlimited = partial(dataclasses.replace, max_new_tokens=None, max_total_tokens=None)  # limits are for tasks
    return [Resolved(unlimited(recipe), entry) for recipe, entry in compared]


def _usual_length(compared: list[Resolved], steps: "Steps", *, random: bool) -> int:
    """The length of text where none is given: with a model's own weights at most what it is configured for."""
    budgets = [recipe.budget for recipe, _ in compared if isinstance(recipe.budget, int)]
    length, configured = 2 * max(budgets) if budgets else 8192, compared[0].entry.configured_tokens
    return length if random or configured is None else max(1, min(length, configured - steps.total))


def _factories(compared: list[Resolved], longest_text: int, *, random: bool) -> "Iterator[EngineFactory]":
    """Plan every method at every budget, in order; no weight is read."""
    from vase_cli.engine.factory import EngineFactory
    from vase_cli.engine.plan import plan_run
    from vase_cli.models.random_weights import RandomWeights

    first, entry = compared[0]
    weights = RandomWeights(longest_text, first.seed) if random else None
    factory = None
    for recipe, _ in compared:
        plan = plan_run(recipe, entry, weights=weights)
        for line in plan.notes:
            echo(line, err=True)
        factory = EngineFactory(plan, beside=factory)
        yield factory


def _say_rates(device: str, dtype: str, measures: "Bench") -> None:
    rates = measures.rates
    moved = f"copies move {rates.copy_bytes_per_s / 1e9:,.0f} GB/s, reads {rates.read_bytes_per_s / 1e9:,.0f} GB/s"
    echo(f"{device}: {moved}; products in {dtype} {rates.flops_per_s / 1e12:,.2f} TFLOP/s", err=True)


def _open(out: Path) -> TextIO:
    with file_access("write", out, ConfigError):
        return out.open("x", encoding="utf-8")


def _run(measures: "Bench", cells: "Sequence[Cell | WorkloadCell]", file: TextIO | None) -> None:
    """Measure, one line of JSON for each cell as it is done and the summary last; the table goes to stderr."""
    from vase_cli.bench.tables import bench_tables

    records: list[dict[str, Any]] = []

    def write(record: Mapping[str, Any]) -> None:
        print_json(record)
        sys.stdout.flush()
        if file is not None:
            print(json.dumps(record, ensure_ascii=False), file=file, flush=True)

    for place, cell in enumerate(cells, 1):
        echo(f"{place} of {len(cells)}: {cell.title()}", err=True)
        record = measures.measure(cell)
        for line in filter(None, (*(record["notices"] or ()), record["error"])):
            echo(f"warning: {line}", err=True)
        records.append(record)
        write(record)
    summary = measures.summary(cells[0], records)
    print_tables(bench_tables(records, summary), err=True)
    write(summary)
    if all(record["status"] != "ok" for record in records):
        raise RunError("nothing was measured, the warnings say why; try fewer --slots or shorter texts")


def _sampling(sampling: str | None, overrides: options.Overrides) -> dict[str, float]:
    """Every value for greedy; none where the model or other options say."""
    drawn = [key for key in SAMPLING_KEYS if getattr(overrides, key) is not None]
    if sampling not in (None, "greedy", "model"):
        raise ConfigError(f"--sampling {sampling}: write greedy or model")
    if sampling == "greedy" and drawn:
        raise ConfigError(f"--sampling greedy and --{drawn[0].replace('_', '-')} are both given: leave one out")
    return {} if sampling == "model" or drawn else dataclasses.asdict(SamplingParams())


def _lengths(option: str, values: Sequence[str] | None, least: int = 1) -> list[int]:
    lengths = []
    for length in options.listed(values):
        if not (length.isascii() and length.isdigit() and least <= int(length) < 2**31):
            raise ConfigError(f"{option} {length}: must be a whole number of tokens, at least {least}")
        lengths.append(int(length))
    return lengths
