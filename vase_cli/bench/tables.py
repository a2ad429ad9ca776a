"""The records of a benchmark as tables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from vase_cli.reports.numbers import number, percent, rate, size
from vase_cli.reports.tables import Table

Record: TypeAlias = Mapping[str, Any]
# By heading: a key of the record, and the format of its value.
Columns: TypeAlias = dict[str, tuple[str, Callable[[Any], str]]]

_digits, _times = partial(number, digits=2), partial(number, digits=2, unit="x")


def _rates(rates: Sequence[float] | None) -> str:
    return ", ".join(map(rate, rates or [])) or "-"


_CELL: Columns = {"method": ("method", str), "budget": ("budget", number)}
_ROWS: Columns = _CELL | {"slots": ("slots", str), "text": ("context", number)}
SPEED: Columns = _ROWS | {
    "step ms": ("step_ms_median", _digits),
    "p95": ("step_ms_p95", _digits),
    "mean": ("step_ms_mean", _digits),
    "tokens/s": ("tokens_per_s", rate),
    "floor": ("floor_ms", _digits),
    "ratio": ("ratio", _digits),
    "cuts": ("cut_share", percent),
}
MEMORY: Columns = _ROWS | {
    "prefill/s": ("prefill_tokens_per_s", _rates),
    "peak": ("peak_bytes", size),
    "planned": ("planned_bytes", size),
    "cache": ("cache_bytes", size),
    "slots that fit": ("slots_fit", number),
}
TEXT: Columns = _CELL | {
    "text": ("text", number),
    "slots": ("slots_fit", number),
    "tokens/s": ("tokens_per_s", rate),
    "over text": ("text_tokens_per_s", rate),
    "gain": ("gain", _times),
    "gain over text": ("text_gain", _times),
    "ratio": ("ratio", _digits),
    "peak": ("peak_bytes", size),
}
WORKLOAD: Columns = _CELL | {
    "slots": ("slots", str),
    "wall s": ("wall_s", _digits),
    "tokens/s": ("tokens_per_s", rate),
    "first s": ("first_token_s_mean", _digits),
    "first p95": ("first_token_s_p95", _digits),
    "latency s": ("latency_s_p50", _digits),
    "latency p95": ("latency_s_p95", _digits),
    "rows": ("mean_rows", partial(number, digits=1)),
    "ratio": ("ratio", _digits),
}
PARTS: Columns = _CELL | {
    "slots": ("slots", str),
    "prefill": ("prefill_share", percent),
    "steps": ("steps_share", percent),
    "cuts": ("cuts_share", percent),
    "host": ("host_share", percent),
    "load s": ("load_s", _digits),
    "warm-up s": ("warm_up_s", _digits),
    "peak": ("peak_bytes", size),
    "planned": ("planned_bytes", size),
    "cache": ("cache_bytes", size),
}
_SPEED_NOTE = (
    "Step ms: median, 95th percentile, and mean over the whole loop, cuts included. Floor: what a step must read and "
    "compute at the device's rates, the longer of the two; ratio: mean over floor. Cuts: share of the time."
)
_MEMORY_NOTE = "Prefill/s: prompt tokens a second, many lengths. Peak and planned: weights included."
_WORKLOAD_NOTE = (
    "Wall: from the requests, all at once, to the last token. Tokens/s: new ones. First: the first token, mean and "
    "95th percentile; latency, to the last: median and 95th percentile. Rows: mean in a decode step. Ratio: wall over "
    "the floor of the decode steps."
)
_PARTS_NOTE = (
    "Shares of the wall: prefills, decode steps without cuts, cuts, and the rest, in which the device waits. Load and "
    "warm-up are not in it. Peak and planned: weights included."
)
_TEXT_NOTE = (
    "All slots that the memory holds. Tokens/s: at the end of the text, and over the whole of it (slots over the mean "
    "step at 1/8, 3/8, 5/8 and 7/8). Gain: over full at the same text. Ratio: mean step over floor, at the end."
)


def bench_tables(records: Sequence[Record], summary: Record) -> list[Table]:
    """Lay out a benchmark of texts to their end in one table, any other in two."""
    weights = ", random weights" if summary["random_weights"] else ""
    title = f"{summary['model']}{weights}, {summary['dtype']}, {summary['attention']}, {summary['device']}"
    if records[0]["kind"] == "text":
        return [_table(TEXT, records, title, _TEXT_NOTE, "tokens_per_s")]
    if records[0]["kind"] == "workload":
        title = f"workload {records[0]['workload']}, {records[0]['requests']:,} requests; {title}"
        wall = _table(WORKLOAD, records, title, _WORKLOAD_NOTE, "wall_s")
        return [wall, _table(PARTS, records, title, _PARTS_NOTE)]
    speed = _table(SPEED, records, title, _SPEED_NOTE, "step_ms_median")
    return [speed, _table(MEMORY, records, title, _MEMORY_NOTE)]


def _table(columns: Columns, records: Sequence[Record], title: str, note: str, status_in: str = "") -> Table:
    """One row a record; where a cell failed, its status stands in the column of the key ``status_in``."""
    rows = []
    for record in records:
        failed = "" if record["status"] == "ok" else status_in
        rows.append([record["status"] if key == failed else write(record[key]) for key, write in columns.values()])
    return Table(list(columns), rows, title, [note])
