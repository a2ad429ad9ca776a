"""The page of a calibration: one HTML file that needs nothing else, and its charts as PNGs."""

import html
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vase_cli.errors import RunError, file_error
from vase_cli.reports import calibration_words as words
from vase_cli.reports.axes import short_number
from vase_cli.reports.calibration_charts import (
    CHARTS,
    Calibration,
    Record,
    drawings,
    flat,
    median,
    ratio_of,
    visible,
    visible_character,
)
from vase_cli.reports.charts import heat_share, percent_with_error
from vase_cli.reports.drawing import Drawing, heat_colour, heat_ink, png, svg
from vase_cli.runs.files import write_atomically

PAGE_FILE = "calibration.html"


def read(folder: Path) -> Calibration:
    """Reads a calibration folder.

    Raises:
        VaseError: a file in it is missing or broken.
    """
    from vase_cli.calibration.folder import read_calibration

    facts, tensors, validated = read_calibration(folder)
    return Calibration(facts, {name: tensor.tolist() for name, tensor in tensors.items()}, validated)


def write_page(folder: Path) -> list[Path]:
    """Writes the page and the pictures of a calibration folder into it; pictures without data are removed.

    Returns:
        The files, the page first.

    Raises:
        VaseError: a file in the folder is missing or broken, or it cannot be written.
    """
    calibration = read(folder)
    drawn = drawings(calibration)
    contents = {PAGE_FILE: page(calibration, drawn).encode()}
    contents |= {f"{name}.png": png(drawing) for name, drawing in drawn.items()}
    try:
        for name in CHARTS:
            if name not in drawn:
                (folder / f"{name}.png").unlink(missing_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise file_error("write", folder / PAGE_FILE, error, RunError) from error
    return [folder / name for name in contents]


def page(calibration: Calibration, drawn: Mapping[str, Drawing]) -> str:
    """The page as HTML; it refers to nothing outside itself.

    Args:
        drawn: see :func:`drawings`.
    """
    facts = calibration.facts
    title = _plain(f"{facts['model']}: range of its value states")
    sections = [
        _section("Tail weight of every head", _figure(drawn, "tail-weight"), _words(words.TAIL)),
        _section("Distribution in every layer", _figure(drawn, "range-by-layer"), _words(words.LAYERS)),
        _section("The first 8 positions", _figure(drawn, "first-positions"), _words(words.FIRST)),
        _section("Prompt and completion", _segments(calibration), _words(words.SEGMENTS)),
        _section("Along one text", _figure(drawn, "thought"), _words(words.THOUGHT), _text(calibration)),
        _section("The largest outlier tokens", _outlier_tokens(facts), _outliers(facts)),
        _section("Length with the full cache", _lengths(facts), _words(words.LENGTHS)),
        _section("Does the model need its outliers?", _validation_part(calibration, drawn)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{words.styles()}</style></head>\n<body><main>"
        f"<h1>{title}</h1>\n{_summary(calibration)}{_facts(facts)}\n{''.join(sections)}"
        f"<footer>vase {_plain(facts['vase_version'])}, {_plain(facts['date'])}</footer></main></body></html>\n"
    )


def _plain(text: object) -> str:
    return html.escape(visible(str(text)))


def _token(text: str) -> str:
    """A token in a table: its spaces show too."""
    return f"<code>{html.escape(visible(text).replace(' ', '·'))}</code>" if text else "<code>(empty)</code>"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>\n{''.join(parts)}</section>\n"


def _words(text: str) -> str:
    return f'<p class="words">{text}</p>\n'


def _figure(drawn: Mapping[str, Drawing], name: str) -> str:
    if name not in drawn:
        return '<p class="words">No data.</p>'
    return f'<figure id="{name}">{svg(drawn[name])}</figure>\n'


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table of cells that are HTML already; the first ``left`` columns hold text, the others numbers."""

    def row(tag: str, cells: Sequence[str]) -> str:
        sides = ("" if number < left else ' class="number"' for number in range(len(cells)))
        return (
            "<tr>" + "".join(f"<{tag}{side}>{cell}</{tag}>" for side, cell in zip(sides, cells, strict=True)) + "</tr>"
        )

    body = "".join(f"{row('td', cells)}\n" for cells in rows)
    return f'<div class="wide"><table><thead>{row("th", headings)}</thead>\n<tbody>{body}</tbody></table></div>\n'


def _summary(calibration: Calibration) -> str:
    """What the numbers say, in one paragraph."""
    upper, largest = map(flat, calibration.tail_weight())
    if not largest:
        return _words("No head has a median above 0: there is nothing to compare with.")
    grid = calibration.tail_weight()[1]
    peak = max(largest)
    layer, head = next((one, row.index(peak)) for one, row in enumerate(grid) if peak in row)
    heavy = sum(value >= words.HEAVY_RATIO for value in largest)
    light = sum(value < words.LIGHT_RATIO for value in largest)
    medians = [statistics.median(row) for row in calibration.quantile(0.5)]
    growth = ratio_of(medians[-1], medians[0])
    if heavy:
        verdict = f"Heads with a heavy tail: {heavy:,} of {len(largest):,}"
    elif light == len(largest):
        verdict = "No head has a heavy tail"
    else:
        verdict = f"No head has a heavy tail; in between: {len(largest) - light:,} of {len(largest):,}"
    sentences = [
        f"<strong>{verdict}</strong> (max/p50 of at least {words.HEAVY_RATIO:g} is heavy, "
        f"under {words.LIGHT_RATIO:g} is not).",
        f"Over the heads, the median max/p50 is {short_number(median(largest))} and the median p99/p50 "
        f"{short_number(median(upper))}; the largest max/p50 is {short_number(peak)}, "
        f"in layer {layer}, KV head {head}.",
    ]
    if growth is not None and len(medians) > 1:
        sentences.append(f"The median range of the last layer is {short_number(growth)} times that of the first.")
    if first := calibration.first_ratios(0):
        times = short_number(median(first))
        sentences.append(f"At position 0 the range is {times} times the median of the rest (median over heads).")
    return f'<p class="summary">{" ".join(sentences)}</p>\n'


def _facts(facts: Record) -> str:
    shape, sampling = facts["shape"], facts["sampling"]
    revision = facts["revision"] or (f"weights {facts['weights']}" if facts["weights"] else "-")
    texts = f"{facts['texts']:,} texts of {facts['problems']:,} problems asked for"
    ends = [
        f"{facts[key]:,} {said}"
        for key, said in (("truncated", "cut at the limit"), ("failed", "failed"))
        if facts[key]
    ]
    rows = {
        "model": facts["model"]
        if facts["hub_id"] in (None, facts["model"])
        else f"{facts['model']} ({facts['hub_id']})",
        "revision": revision,
        "shape": f"{shape['layers']} layers, {shape['heads']} heads, {shape['kv_heads']} KV heads, "
        f"head dim {shape['head_dim']}",
        "task": facts["task"],
        "problems": ", ".join([texts, *ends]),
        "tokens": f"{facts['tokens']:,}: {facts['counts']['first']:,} at the first 8 positions, then "
        f"{facts['counts']['prompt']:,} of prompts and {facts['counts']['completion']:,} of completions",
        "sampling": ", ".join(f"{name} {value:g}" for name, value in sampling.items()),
        "seed": facts["seed"],
        "rule": f"{facts['rule']}: {_rule_words(facts['rule'])}",
        "date": facts["date"],
        "device": f"{facts['device']}, {facts['dtype']}",
    }
    body = "".join(f"<dt>{name}</dt><dd>{_plain(value)}</dd>" for name, value in rows.items())
    return f'<dl class="facts">{body}</dl>'


def _rule_words(rule: str) -> str:
    kind, _, number = rule.partition(":")
    return {
        "quantile": f"a token is an outlier where its range is over this quantile ({number}) of its head",
        "mad": f"a token is an outlier where its range is over the median plus {number} median absolute deviations",
        "share": f"the tokens with the largest ranges, a share of {number}, are outliers",
    }.get(kind, "the threshold of every head")


def _segments(calibration: Calibration) -> str:
    names = {
        "first": "first 8 positions",
        "prompt": "prompt",
        "completion": "completion",
        "rest": "prompt + completion",
    }
    rows = []
    for metric in calibration.facts["metrics"]:
        for segment, name in names.items():
            count = calibration.facts["counts"][segment]
            p50 = flat(calibration.quantile(0.5, segment=segment, metric=metric)) if count else []
            ratios = calibration.tail_weight(segment=segment, metric=metric) if count else ([], [])
            cells = [median(p50), *(median(flat(grid)) for grid in ratios), max(flat(ratios[1]), default=None)]
            rows.append([_plain(metric), name, f"{count:,}", *map(short_number, cells)])
    headings = ["measure", "part of the text", "tokens", "p50", "p99/p50", "max/p50", "largest max/p50"]
    return _table(headings, rows, left=2)


def _text(calibration: Calibration) -> str:
    """The example's text with its outlier tokens marked."""
    example = calibration.facts["example"]
    if example is None or not example["tokens"]:
        return ""
    ranges, top = calibration.numbers["example.range"], calibration.heat_top()
    heads = list(zip(example["heads"], example["thresholds"], example["medians"], ranges, strict=True))
    pieces = []
    for position, token in enumerate(example["tokens"]):
        if position == example["prompt_tokens"]:
            pieces.append('<span class="turn">completion</span>')
        over = [
            (ratio_of(values[position], p50), layer, head, values[position])
            for (layer, head), threshold, p50, values in heads
            if values[position] > threshold
        ]
        pieces.append(_marked(token, position, over, top) if over else _flowing(token))
    shown, whole = len(example["tokens"]), example["text_tokens"]
    length = f"all {whole:,} tokens" if shown >= whole else f"its first {shown:,} of {whole:,} tokens"
    head = f"Problem {_plain(example['problem'])}, {length}."
    return f'<p class="words">{head}</p>\n<div class="text" dir="auto">{"".join(pieces)}</div>\n'


def _marked(token: str, position: int, over: Sequence[tuple[float | None, int, int, float]], top: float) -> str:
    said = [f"position {position}"]
    for ratio, layer, head, value in over:
        times = "" if ratio is None else f" ({short_number(ratio)} times the median)"
        said.append(f"layer {layer}, KV head {head}: {short_number(value)}{times}")
    share = heat_share(max([1.0, *(ratio for ratio, *_ in over if ratio is not None)]), top)
    shown = html.escape(visible(token)) or "(empty)"
    mark = f'<mark class="f-{heat_colour(share)} {heat_ink(share)}" title="{"&#10;".join(said)}">{shown}</mark>'
    return mark + "\n" * token.count("\n")


def _flowing(token: str) -> str:
    """A token in running text, where line breaks and tabs are themselves."""
    return "".join(html.escape(one if one in "\n\t" else visible_character(one)) for one in token)


def _outliers(facts: Record) -> str:
    rows = [
        [
            f'<span class="near">{_plain(one["before"])}</span>{_token(one["token"])}'
            f'<span class="near">{_plain(one["after"])}</span>',
            _plain(one["segment"]),
            _plain(one["problem"]),
            f"{one['layer']}, {one['head']}",
            short_number(one["range"]),
            short_number(one["ratio"]),
            f"{one['position']:,} of {one['text_tokens']:,}",
            _percent(one["share"]),
        ]
        for one in facts["outliers"]
    ]
    headings = [
        "token in its text",
        "part",
        "problem",
        "layer, head",
        "range",
        "range/p50",
        "position",
        "share of text",
    ]
    return f'<div class="long">{_table(headings, rows, left=3)}</div>\n{_words(words.OUTLIERS)}' if rows else ""


def _outlier_tokens(facts: Record) -> str:
    rows = [
        [_token(one["token"]), f"{one['token_id']}", f"{one['entries']:,}", *_shares(one)]
        for one in facts["outlier_tokens"]
    ]
    headings = ["token", "id", "entries", "share of outliers", "share of text"]
    return _table(headings, rows) + _words(words.OUTLIER_TOKENS) if rows else _words("No token was measured.")


def _shares(one: Record) -> list[str]:
    return [_percent(one["share_of_outliers"]), _percent(one["share_of_text"])]


def _lengths(facts: Record) -> str:
    rows = [
        [_plain(task), f"{one['texts']:,}", *(_tokens(one[key]) for key in ("mean", "sd", "min", "median", "max"))]
        for task, one in facts["lengths"].items()
    ]
    headings = ["task", "texts", "mean", "standard deviation", "shortest", "median", "longest"]
    return _table(headings, rows) if rows else _words("No text was measured.")


def _validation_part(calibration: Calibration, drawn: Mapping[str, Drawing]) -> str:
    validated = calibration.validation
    if validated is None or "validation" not in drawn:
        return _words("Not measured: <code>vase calibrate --validate</code> adds it.")
    rows = [
        [
            _plain(run["label"]),
            f"{run['samples']:,}",
            percent_with_error(run["accuracy"], run["standard_error"]),
            percent_with_error(run["difference"], run["difference_standard_error"], "+"),
            *(_percent(run[key]) for key in ("loop_share", "truncated_share")),
            *(_tokens(run[key]) for key in ("mean_completion_tokens", "mean_cached_tokens")),
        ]
        for run in validated["runs"]
    ]
    headings = ["run", "samples", "accuracy", "against full", "loops", "truncated", "tokens", "cached"]
    asked = (
        f"{validated['problems']:,} problems of {_plain(validated['task'])}, budget {validated['budget']:,} tokens for "
        f"each KV head, {validated['n_large']:,} of them for outliers, seed {validated['seed']}."
    )
    unfinished = "" if validated["complete"] else " <strong>Not complete: samples are missing.</strong>"
    return _figure(drawn, "validation") + _table(headings, rows) + _words(asked + unfinished + " " + words.VALIDATION)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
