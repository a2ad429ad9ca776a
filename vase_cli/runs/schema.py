"""Every key of a run folder's files: the records check what is written and read, and describe themselves."""

import json
from typing import Any, Literal, TypeAlias, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FORMAT = 2
"""Version of the files' format, stored in run.json."""

READABLE_FORMATS = (1, FORMAT)
"""1 has the grade in the line of its text, and no published verdict."""

Verdict: TypeAlias = Literal["correct", "wrong", "no_answer", "error"]


def key(meaning: str, unit: str = "", *, timing: bool = False) -> Any:
    """A key of a file; ``timing``: its value differs between two runs of the same tokens."""
    return Field(description=meaning, json_schema_extra={"unit": unit, "timing": timing})


@dataclass_transform(kw_only_default=True, field_specifiers=(key,))
class Record(BaseModel):
    """A JSON object with exactly the keys of its class, and values of exactly their types; it never changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class RunTask(Record):
    """One task of run.json."""

    name: str = key("name of the task")
    version: int = key("version of the task: a change that moves its figures raises it")
    source: str = key("where the problems came from: hub id and revision, or a file")
    problems: int = key("problems in this run")
    samples: int = key("samples of each problem")
    grader: str = key("name of the grader; empty for prompts without right answers")
    fallbacks: list[str] = key("extraction rules the task allows beyond the last \\boxed{}")
    skipped_rows: list[str] = key("rows left out, one line each with file, line and why")


class Run(Record):
    """run.json: what a run is of."""

    format: int = key(f"version of the run folder's format; this is {FORMAT}")
    name: str = key("name of the run folder")
    config: dict[str, Any] = key("resolved values that decide the tokens and grades")
    config_hash: str = key("SHA-256 of config in canonical JSON, 64 hexadecimal digits")
    options: dict[str, Any] = key("resolved values that decide speed and memory only, as requested")
    origins: dict[str, str] = key("for each value of the recipe, by dotted key, where it came from")
    seeds: dict[str, int] = key("every seed by name")
    budgets: dict[str, str] = key("for each task, the message that explains its budget")
    tasks: list[RunTask] = key("one object for each task, in order; see 'run.json tasks[]'")
    vase_version: str = key("version of VaSE CLI")
    versions: dict[str, str | None] = key("version of Python and of each library; null where it is not installed")
    git: dict[str, Any] | None = key("commit of the checkout VaSE CLI ran from, and whether it had changes (dirty)")
    hardware: dict[str, Any] = key("cpu, cores, ram_bytes and gpus (names)")
    started_at: str = key("when the run was first started", "ISO 8601, UTC", timing=True)
    command: list[str] = key("the command line, one string for each argument")


class SampleText(Record):
    """A line of completions.jsonl: one finished text."""

    id: str = key("task/problem id/sample; unique in the file")
    task: str = key("name of the task")
    problem_id: str = key("id of the problem in the task")
    sample: int = key("index of the sample, from 0")
    seed: int = key("seed of the run; with problem and sample it decides every draw")
    prompt_tokens: int = key("tokens of the prompt", "tokens")
    completion_tokens: int = key("tokens the model wrote, the end token included", "tokens")
    text: str = key("what the model wrote")
    thought_open: bool = key("the prompt already opened <think>, so text starts inside the thought")
    finish_reason: Literal["stop", "length", "error"] = key("an end token, the token limit, or an error")
    error: str | None = key("what went wrong with this sample in generation")
    gold: str = key("the right answer; empty for a prompt without one")
    cuts: int = key("times the sequence's cache was cut back to the budget")
    cached_tokens: int = key("tokens held for each KV head at the end", "tokens")
    repetition: bool = key("the text ends in a loop: a phrase five times in a row in its last 500 characters")
    garbage: bool = key("the last 200 characters are mostly not text")
    latency_s: float = key("from the sample's admission to its last token", "s", timing=True)
    metadata: dict[str, Any] = key("what the task adds, such as the order of the options")


class SampleGrade(Record):
    """A line of grades.jsonl: the verdicts on one text."""

    id: str = key("id of the text's line in completions.jsonl")
    grade: Verdict = key("strict verdict, on the answer after the thought; error: undecided, or generation failed")
    extracted: str | None = key("the answer found behind the thought")
    rule: str = key("extraction rule that found it: boxed, or the name of a fallback; empty if none did")
    grade_error: str | None = key("why the grader could not decide")
    grade_limit: Literal["time", "length"] | None = key(
        "limit that the answer ran into: time, at which grading stops, or length, over which it is compared as text"
    )
    published: Verdict = key("published verdict, on the last \\boxed{} anywhere in the text, the thought included")
    published_extracted: str | None = key("the answer in that box")


class Sample(SampleText):
    """A text with its verdicts, as in its lines of completions.jsonl and grades.jsonl.

    ``grade`` is None as long as there is none, ``published`` also for a grade of format 1.
    """

    grade: Verdict | None = None
    extracted: str | None = None
    rule: str = ""
    grade_error: str | None = None
    grade_limit: Literal["time", "length"] | None = None
    published: Verdict | None = None
    published_extracted: str | None = None

    def text_line(self) -> dict[str, Any]:
        """What completions.jsonl holds of it."""
        return {name: getattr(self, name) for name in SampleText.model_fields}

    def grade_line(self) -> dict[str, Any]:
        """What grades.jsonl holds of it."""
        return {name: getattr(self, name) for name in SampleGrade.model_fields}

    def graded(self, grade: "SampleGrade") -> "Sample":
        """This text with these verdicts."""
        return self.model_copy(update=dict(grade))


class Session(Record):
    """A line of sessions.jsonl: one process that worked on the run."""

    host: str = key("name of the machine")
    pid: int = key("process id")
    started_at: str = key("when the process opened the run folder", "ISO 8601, UTC", timing=True)
    updated_at: str = key("when this line was last written", "ISO 8601, UTC", timing=True)
    closed: bool = key("the process left the folder in order; false: it runs still, or was killed")
    wall_s: float = key("from opening the folder to the last write", "s", timing=True)
    device: str = key("what it computed on")
    slots: int = key("sequences decoded at a time", "sequences")
    samples: int = key("samples this process finished", "samples")
    prefill_tokens: int = key("prompt tokens this process ran", "tokens")
    prefill_s: float = key("time in prefill", "s", timing=True)
    decode_tokens: int = key("tokens this process decoded, those of unfinished samples included", "tokens")
    decode_s: float = key("time in decoding, eviction included", "s", timing=True)
    weights_bytes: int | None = key("the model's weights", "bytes")
    cache_bytes: int | None = key("the KV cache of all slots", "bytes")
    cache_bytes_per_token: int | None = key("keys and values of one token over all layers and heads", "bytes")
    peak_bytes: int | None = key("most memory in use on the device; null where it is not measured", "bytes")


class Metrics(Record):
    """The figures of one task, or of all."""

    problems: int = key("problems with at least one finished sample")
    planned_problems: int = key("problems of the run")
    samples: int = key("finished samples")
    planned_samples: int = key("samples of the run")
    ungraded: int = key("finished samples whose grade is still to come; the same command grades them", "samples")
    complete: bool = key("every planned sample is finished and graded; if not, every figure is of a part")
    accuracy: float | None = key(
        "by strict verdicts: mean over problems of the mean over samples; only 'correct' counts", "fraction"
    )
    standard_error: float | None = key("of accuracy, over problems; null for fewer than two", "fraction")
    published_accuracy: float | None = key(
        "accuracy by published verdicts; null where some are not known, and `vase grade` makes them", "fraction"
    )
    verdicts_differ: int = key("samples that are correct by one of the two verdicts and not by the other", "samples")
    boxed_accuracy: float | None = key("accuracy if answers found by a fallback counted as wrong", "fraction")
    pass_at_k: dict[str, float] = key(
        "for k = 1, 2, 4, ... up to the fewest samples of a problem: unbiased pass@k", "fraction"
    )
    no_answer_share: float | None = key("samples without an answer", "fraction")
    truncated_share: float | None = key("samples that ended at a token limit", "fraction")
    limits: dict[str, int] = key(
        "samples that hit each limit: max_new_tokens, max_total_tokens; grading_time and answer_length of grades",
        "samples",
    )
    loop_share: float | None = key("samples that end in a loop", "fraction")
    garbage_share: float | None = key("samples whose tail is mostly not text", "fraction")
    error_share: float | None = key("samples that failed in generation or grading", "fraction")
    fallback_rules: dict[str, int] = key("for each fallback, the samples whose answer it found", "samples")
    mean_prompt_tokens: float | None = key("mean over samples", "tokens")
    mean_completion_tokens: float | None = key("mean over samples", "tokens")
    mean_cuts: float | None = key("mean over samples of the times the cache was cut")
    mean_cached_tokens: float | None = key("mean over samples of the tokens held for a KV head at the end", "tokens")
    skipped_rows: int = key("rows of the problem file left out", "rows")


_MEASURED_OVER = "of the sessions on that device; stored samples add nothing"


class Summary(Record):
    """summary.json: the figures of a run."""

    name: str = key("name of the run folder")
    config_hash: str = key("as in run.json")
    complete: bool = key("every planned sample is finished and graded")
    samples: int = key("finished samples")
    planned_samples: int = key("samples of the run")
    tasks: dict[str, Metrics] = key("for each task, its figures; see 'summary.json overall, tasks.*'")
    overall: Metrics = key("the same figures with the problems of all tasks taken as one set")
    sessions: int = key("processes that worked on the run; see sessions.jsonl")
    wall_s: float | None = key("sum over all sessions; null without one", "s", timing=True)
    device: str | None = key("device of the last session that decoded: the keys below are of it")
    slots: int | None = key("sequences decoded at a time, in that session", "sequences")
    prefill_tokens_per_s: float | None = key(
        f"measured: prompt tokens over time in prefill, {_MEASURED_OVER}", "tokens/s", timing=True
    )
    decode_tokens_per_s: float | None = key(
        f"measured: tokens decoded in all slots over time in decoding, {_MEASURED_OVER}", "tokens/s", timing=True
    )
    weights_bytes: int | None = key("the model's weights, in that session", "bytes")
    cache_bytes: int | None = key("the KV cache of all slots, in that session", "bytes")
    peak_bytes: int | None = key("most memory in use, over the sessions on that device", "bytes")
    dense_cache_bytes: int | None = key(
        "keys and values of every token of the run's longest texts, one for each slot: "
        "what a cache without eviction must hold at the worst moment",
        "bytes",
    )


SCHEMA: dict[str, type[Record]] = {
    "run.json": Run,
    "run.json tasks[]": RunTask,
    "completions.jsonl": SampleText,
    "grades.jsonl": SampleGrade,
    "sessions.jsonl": Session,
    "summary.json": Summary,
    "summary.json overall, tasks.*": Metrics,
}


def fault(error: ValidationError) -> str:
    """Say in one line what is wrong with an object: its missing and unknown keys, else its first wrong value."""
    details = [(".".join(map(str, detail["loc"])), detail) for detail in error.errors(include_url=False)]
    titles = {"missing": "missing", "unknown": "extra_forbidden"}
    keys = {title: [name for name, detail in details if detail["type"] == kind] for title, kind in titles.items()}
    name, first = details[0]
    wrong = f"{name} is {first['input']!r:.40}, not {first['msg'].removeprefix('Input should be ')}"
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in keys.items() if names) or wrong


def described(record: type[Record]) -> list[dict[str, Any]]:
    """Describe each key: name, JSON type, unit ("" for none), meaning, all values where they are few, and timing."""
    entries = []
    for name, shape in record.model_json_schema()["properties"].items():
        branches = shape.get("anyOf", [shape])
        types = [branch.get("type", "object") for branch in branches]
        values = branches[0].get("enum", [])
        values = [*values, None] if values and "null" in types else values
        facts = {"type": " | ".join(types), "unit": shape["unit"], "meaning": shape["description"]}
        entries.append({"name": name, **facts, "values": values, "timing": shape["timing"]})
    return entries


def schema_json() -> str:
    """Write the schema as one JSON object: for each file, its keys in order."""
    return json.dumps({title: described(record) for title, record in SCHEMA.items()}, indent=2)


def schema_text() -> str:
    """Write the schema as plain text: for each file a heading, then one line for each key."""
    blocks = []
    for title, record in SCHEMA.items():
        lines, entries = [title], described(record)
        name_width, type_width = (max(len(entry[column]) for entry in entries) for column in ("name", "type"))
        for entry in entries:
            values = " | ".join(value or "null" for value in entry["values"])
            remark = "; ".join(filter(None, [entry["unit"], values, "timing" if entry["timing"] else ""]))
            line = f"  {entry['name']:<{name_width}}  {entry['type']:<{type_width}}  {entry['meaning']}"
            lines.append(f"{line} [{remark}]" if remark else line)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
