"""``vase bench``: how fast decoding is on this machine, against the floor that its memory sets."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vase_cli.cli import options
from vase_cli.cli.evaluate import DEFAULT_RECIPE
from vase_cli.cli.output import print_table
from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_given
from vase_cli.config.schema import SAMPLING_KEYS, ModelEntry, Recipe, SamplingParams
from vase_cli.errors import ConfigError, RunError
from vase_cli.reports.numbers import number, percent, rate, size
from vase_cli.reports.tables import Table

if TYPE_CHECKING:
    from vase_cli.bench.cells import Cell, Steps
    from vase_cli.bench.records import Bench

_BENCH = "Benchmark"
_DEFAULT_CONTEXT = 8192
_GIB = 2**30

SPEED_HEADINGS = (
    "method", "budget", "slots", "text", "step ms", "p95", "mean", "tokens/s", "floor", "ratio", "cuts",
)  # fmt: skip
SPEED_READING = (
    "Step ms: median, 95th percentile, and mean over the whole loop, cuts included. Floor: bytes of weights and live "
    "keys and values of a step over the copy bandwidth; ratio: mean over floor. Cuts: share of the time."
)
MEMORY_HEADINGS = ("method", "budget", "slots", "text", "prefill/s", "peak", "planned", "cache", "slots that fit")
MEMORY_READING = "Prefill/s: prompt tokens a second. Peak and planned: weights included."
TEXT_HEADINGS = (
    "method", "budget", "text", "slots", "tokens/s", "over text", "gain", "gain over text", "ratio", "peak",
)  # fmt: skip
TEXT_READING = (
    "All slots that the memory holds. Tokens/s: at the end of the text, and over the whole of it (slots over the mean "
    "step at 1/8, 3/8, 5/8 and 7/8). Gain: over full at the same text. Ratio: mean step over floor, at the end."
)


def bench(
    context: typer.Context,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="Zoo name: random weights of its size, nothing is downloaded."),
    ] = None,
    recipe: options.RecipeName = None,
    model: options.Model = None,
    zoo: options.Zoo = None,
    recipes: options.Recipes = None,
    method: options.Methods = None,
    budget: options.Budgets = None,
    option: options.MethodOptions = None,
    window: options.Window = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(
            "--slots", help=f"Sequences at a time: 16, or 1,16,64; {options.AUTO_SLOTS}.", rich_help_panel=_BENCH
        ),
    ] = None,
    text_context: Annotated[
        list[str] | None,
        typer.Option(
            "--context",
            help="Tokens of text in every row as the steps begin: 8192, or 8192,32768; twice the largest budget if "
            "left out.",
            rich_help_panel=_BENCH,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            help="Compare with full at equal memory, at the end of texts of so many tokens: 8192,16384,32768.",
            rich_help_panel=_BENCH,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Measured steps, at least two windows.", rich_help_panel=_BENCH),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option("--warmup", help="Steps before them, at least one window.", rich_help_panel=_BENCH),
    ] = None,
    prefill: Annotated[
        int,
        typer.Option(
            "--prefill", min=0, help="Tokens of the prompt whose prefill is timed; 0: none.", rich_help_panel=_BENCH
        ),
    ] = 2048,
    memory: Annotated[
        float | None,
        typer.Option("--memory", help="Plan with so many GiB, not with all that is free.", rich_help_panel=_BENCH),
    ] = None,
    sampling_mode: Annotated[
        str | None,
        typer.Option(
            "--sampling", help="greedy, or model: what the recipe says. Greedy if left out.", rich_help_panel=_BENCH
        ),
    ] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    dtype: options.DType = None,
    attention: options.AttentionName = None,
    compile_decode: options.Compile = None,
    device: options.Device = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the JSON lines to this new file.", rich_help_panel=_BENCH)
    ] = None,
) -> None:
    """Measure decoding: every method at every budget, number of slots and length of text.

    JSON lines go to stdout, one for each cell and a summary last; the table goes to stderr.
    """
    if shape is not None and (named := recipe or model):
        raise ConfigError(f"--shape {shape} and {named}: random weights or a real model, leave one out")
    if text and (slots or text_context):
        raise ConfigError("--text measures all slots that fit, at the end of a text: leave --slots and --context out")
    if memory is not None and not 0 < memory < 2**20:
        raise ConfigError(f"--memory {memory:g}: must be a number of GiB above 0")
    if out is not None and (out.exists() or not out.parent.is_dir()):
        what = "is there already; name another file" if out.exists() else "its folder is not there; make it first"
        raise ConfigError(f"--out {out}: {what}")
    lengths = _lengths("--text", text) if text else _lengths("--context", text_context)
    given = options.overrides({**context.params, "system": None, "slots": None}) | _sampling(
        sampling_mode, context.params
    )
    compared = _compared(shape, recipe, given, method, budget, zoo=zoo, recipes=recipes, with_full=bool(text))
    counts = [check_given("slots", options.slot_count(count)) for count in options.listed(slots)]
    counts = counts or [compared[0][0].slots]

    from vase_cli.bench.cells import make_steps
    from vase_cli.bench.records import Bench

    bench_steps = make_steps(compared[0][0].window, warmup, steps)
    cells = _cells(compared, bench_steps, counts, lengths, of_texts=bool(text), random=shape is not None)
    first = cells[0].assembly
    memory_bytes = None if memory is None else int(memory * _GIB)
    measured = Bench(first.device, bench_steps, prefill_tokens=prefill, memory_bytes=memory_bytes)
    typer.echo(f"{first.hardware.name}: copies move {measured.bandwidth / 1e9:,.0f} GB/s", err=True)
    _run(measured, cells, out)


def _compared(
    shape: str | None,
    recipe: str | None,
    given: Mapping[str, Any],
    methods: Sequence[str] | None,
    budgets: Sequence[str] | None,
    *,
    zoo: Path | None,
    recipes: Path | None,
    with_full: bool,
) -> list[tuple[Recipe, ModelEntry]]:
    """A recipe for every method at every budget; with ``full``, it comes first, named or not."""
    if shape is not None:
        catalog = Catalog.open(zoo=zoo, recipes=recipes)
        if shape not in catalog.files("zoo") and (os.sep in shape or Path(shape).is_dir()):
            raise ConfigError(
                f"--shape {shape}: takes a zoo name (`vase zoo list`); for a model folder or hub id use --model"
            )
        catalog.find("zoo", shape)
        given = {**given, "model": shape}
    elif recipe is None and given["model"] is None:
        recipe = os.environ.get("VASE_RECIPE") or DEFAULT_RECIPE
    compared = options.compared(recipe, given, methods=methods or [], budgets=budgets or [], zoo=zoo, recipes=recipes)
    if with_full and all(one.method != "full" for one, _ in compared):
        own = {**given, "method_options": None}
        compared += options.compared(recipe, own, methods=["full"], budgets=[], zoo=zoo, recipes=recipes)
    if with_full:
        compared.sort(key=lambda one: one[0].method != "full")
    # The limits of a recipe are for its tasks.
    return [(dataclasses.replace(one, max_new_tokens=None, max_total_tokens=None), entry) for one, entry in compared]


def _cells(
    compared: Sequence[tuple[Recipe, ModelEntry]],
    steps: "Steps",
    counts: Sequence[int | str],
    lengths: Sequence[int],
    *,
    of_texts: bool,
    random: bool,
) -> "list[Cell]":
    """Every cell in order, each checked; no weight is read."""
    from vase_cli.bench.cells import make_cell, make_text_cell
    from vase_cli.engine.assembly import Assembly
    from vase_cli.models.random_weights import RandomWeights

    first, entry = compared[0]
    if not lengths:
        budgets = [one.budget for one, _ in compared if isinstance(one.budget, int)]
        lengths = [2 * max(budgets) if budgets else _DEFAULT_CONTEXT]
        if not random and entry.configured_tokens is not None:
            lengths = [max(1, min(lengths[0], entry.configured_tokens - steps.total))]
    weights = RandomWeights(max(lengths) + steps.total, first.seed) if random else None
    cells: list[Cell] = []
    for one, _ in compared:
        assembly = Assembly(one, entry, beside=cells[0].assembly if cells else None, weights=weights)
        for line in assembly.notes:
            typer.echo(line, err=True)
        if of_texts:
            cells += [make_text_cell(assembly, length, steps) for length in lengths]
        else:
            cells += [make_cell(assembly, count, length, steps) for count in counts for length in lengths]
    return cells


def _run(measured: "Bench", cells: "Sequence[Cell]", out: Path | None) -> None:
    """Measure, one line of JSON for each cell as it is done and the summary last; the table goes to stderr."""
    records: list[dict[str, Any]] = []
    with contextlib.nullcontext() if out is None else out.open("x", encoding="utf-8") as file:

        def write(record: Mapping[str, Any]) -> None:
            line = json.dumps(record, ensure_ascii=False)
            typer.echo(line)
            sys.stdout.flush()
            if file is not None:
                file.write(f"{line}\n")
                file.flush()

        for number, cell in enumerate(cells, 1):
            typer.echo(f"{number} of {len(cells)}: {cell.title()}", err=True)
            record = measured.measure(cell)
            for line in (*(record["notices"] or ()), *([record["error"]] if record["error"] else ())):
                typer.echo(f"warning: {line}", err=True)
            records.append(record)
            write(record)
        summary = measured.summary(cells[0].assembly, records)
        _print_tables(records, summary)
        write(summary)
    if all(record["status"] != "ok" for record in records):
        raise RunError("nothing was measured, the warnings say why; try fewer --slots or a shorter --context or --text")


def _print_tables(records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """The cells on stderr: tables on a terminal, plain lines elsewhere."""
    weights = ", random weights" if summary["random_weights"] else ""
    title = f"{summary['model']}{weights}, {summary['dtype']}, {summary['attention']}, {summary['device']}"
    if records[0]["kind"] == "text":
        print_table(Table(TEXT_HEADINGS, [_text_row(record) for record in records], title, [TEXT_READING]), err=True)
    else:
        print_table(Table(SPEED_HEADINGS, [_speed_row(record) for record in records], title, [SPEED_READING]), err=True)
        print_table(
            Table(MEMORY_HEADINGS, [_memory_row(record) for record in records], title, [MEMORY_READING]), err=True
        )


def _cell(record: Mapping[str, Any]) -> list[str]:
    """Where the record was measured."""
    return [record["method"], number(record["budget"]), str(record["slots"]), number(record["context"])]


def _speed_row(record: Mapping[str, Any]) -> list[str]:
    return [
        *_cell(record),
        number(record["step_ms_median"], 2) if record["status"] == "ok" else record["status"],
        number(record["step_ms_p95"], 2),
        number(record["step_ms_mean"], 2),
        rate(record["tokens_per_s"]),
        number(record["floor_ms"], 2),
        number(record["ratio"], 2),
        percent(record["cut_share"]),
    ]


def _memory_row(record: Mapping[str, Any]) -> list[str]:
    return [
        *_cell(record),
        rate(record["prefill_tokens_per_s"]),
        *(size(record[key]) for key in ("peak_bytes", "planned_bytes", "cache_bytes")),
        number(record["slots_fit"]),
    ]


def _text_row(record: Mapping[str, Any]) -> list[str]:
    return [
        record["method"],
        number(record["budget"]),
        number(record["text"]),
        number(record["slots_fit"]),
        rate(record["tokens_per_s"]) if record["status"] == "ok" else record["status"],
        rate(record["text_tokens_per_s"]),
        number(record["gain"], 2, "x"),
        number(record["text_gain"], 2, "x"),
        number(record["ratio"], 2),
        size(record["peak_bytes"]),
    ]


def _sampling(asked: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--sampling`` sets: everything for greedy, nothing for the model's own or what other options say."""
    drawn = [key for key in SAMPLING_KEYS if parameters[key] is not None]
    if asked not in (None, "greedy", "model"):
        raise ConfigError(f"--sampling {asked}: write greedy or model")
    if asked == "greedy" and drawn:
        option = f"--{drawn[0].replace('_', '-')}"
        raise ConfigError(f"--sampling greedy and {option} are both given: leave one out")
    if asked == "greedy" or not (asked or drawn):
        return dataclasses.asdict(SamplingParams())
    return {}


def _lengths(option: str, values: Sequence[str] | None) -> list[int]:
    lengths = []
    for written in options.listed(values):
        if not (written.isascii() and written.isdigit() and 0 < int(written) < 2**31):
            raise ConfigError(f"{option} {written}: must be a whole number of tokens, at least 1")
        lengths.append(int(written))
    return lengths
