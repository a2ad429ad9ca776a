"""Every key of a run folder's files, in one place: its type, unit and meaning.

The same tables check what is written and read (``check``) and print themselves (``vase eval --schema``).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1
"""Version of the files' format, stored in run.json."""


@dataclass(frozen=True)
class Key:
    """One key of a JSON object.

    Attributes:
        type: JSON type: string, integer, number, boolean, object or array; ``| null`` where it may be null.
        unit: of a number, else "".
        values: all values there are, where they are few.
        timing: the value differs between two runs of the same tokens.
    """

    name: str
    type: str
    unit: str
    meaning: str
    values: tuple[str | None, ...] = ()
    timing: bool = False


RUN = (
    Key("format", "integer", "", f"version of the run folder's format; this is {FORMAT}"),
    Key("name", "string", "", "name of the run folder"),
    Key("config", "object", "", "resolved values that decide the tokens and grades"),
    Key("config_hash", "string", "", "SHA-256 of config in canonical JSON, 64 hexadecimal digits"),
    Key("options", "object", "", "resolved values that decide speed and memory only, as asked for"),
    Key("origins", "object", "", "for each key of config and options, where its value came from"),
    Key("seeds", "object", "", "every seed by name"),
    Key("budgets", "object", "", "for each task, the sentence that says how its budget came about"),
    Key("tasks", "array", "", "one object for each task, in order; see 'run.json tasks[]'"),
    Key("vase_version", "string", "", "version of VaSE CLI"),
    Key("versions", "object", "", "version of Python and of each library; null where it is not installed"),
    Key("git", "object | null", "", "commit of the checkout VaSE CLI ran from, and whether it had changes (dirty)"),
    Key("hardware", "object", "", "cpu, cores, ram_bytes and gpus (names)"),
    Key("started_at", "string", "ISO 8601, UTC", "when the run was first started", timing=True),
    Key("command", "array", "", "the command line, one string for each argument"),
)

RUN_TASK = (
    Key("name", "string", "", "name of the task"),
    Key("version", "integer", "", "version of the task: a change that moves its figures raises it"),
    Key("source", "string", "", "where the problems came from: hub id and revision, or a file"),
    Key("problems", "integer", "", "problems in this run"),
    Key("samples", "integer", "", "samples of each problem"),
    Key("grader", "string", "", "name of the grader; empty for prompts without right answers"),
    Key("fallbacks", "array", "", "extraction rules the task allows beyond the last \\boxed{}"),
    Key("skipped_rows", "array", "", "rows left out, one line each with file, line and why"),
)

COMPLETION = (
    Key("id", "string", "", "task/problem id/sample; unique in the file"),
    Key("task", "string", "", "name of the task"),
    Key("problem_id", "string", "", "id of the problem in the task"),
    Key("sample", "integer", "", "index of the sample, from 0"),
    Key("seed", "integer", "", "seed of the run; with problem and sample it decides every draw"),
    Key("prompt_tokens", "integer", "tokens", "tokens of the prompt"),
    Key("completion_tokens", "integer", "tokens", "tokens the model wrote, the end token included"),
    Key("text", "string", "", "what the model wrote"),
    Key("thought_open", "boolean", "", "the prompt already opened <think>, so text starts inside the thought"),
    Key(
        "finish_reason",
        "string",
        "",
        "an end token, the token limit, or an error",
        ("stop", "length", "error"),
    ),
    Key("error", "string | null", "", "what went wrong with this sample, in generation or grading"),
    Key(
        "grade",
        "string | null",
        "",
        "the grader's verdict, or error if generation failed; null for a prompt without a right answer",
        ("correct", "wrong", "no_answer", "error", None),
    ),
    Key("extracted", "string | null", "", "the answer found in the text"),
    Key("rule", "string", "", "extraction rule that found it: boxed, or the name of a fallback; empty if none did"),
    Key("gold", "string", "", "the right answer"),
    Key("cuts", "integer", "", "times the sequence's cache was cut back to the budget"),
    Key("cached_tokens", "integer", "tokens", "tokens held for each KV head at the end"),
    Key(
        "repetition", "boolean", "", "the text ends in a loop: a phrase five times in a row in its last 500 characters"
    ),
    Key("garbage", "boolean", "", "the last 200 characters are mostly not text"),
    Key("latency_s", "number", "s", "from the sample's admission to its last token", timing=True),
    Key("metadata", "object", "", "what the task adds, such as the order of the options"),
)

SESSION = (
    Key("host", "string", "", "name of the machine"),
    Key("pid", "integer", "", "process id"),
    Key("started_at", "string", "ISO 8601, UTC", "when the process opened the run folder", timing=True),
    Key("updated_at", "string", "ISO 8601, UTC", "when this line was last written", timing=True),
    Key("closed", "boolean", "", "the process left the folder in order; false: it runs still, or was killed"),
    Key("device", "string", "", "what it computed on"),
    Key("slots", "integer", "sequences", "sequences decoded at a time"),
    Key("samples", "integer", "samples", "samples this process finished"),
    Key("prefill_tokens", "integer", "tokens", "prompt tokens this process ran"),
    Key("prefill_s", "number", "s", "time in prefill", timing=True),
    Key("decode_tokens", "integer", "tokens", "tokens this process decoded, those of unfinished samples included"),
    Key("decode_s", "number", "s", "time in decoding, eviction included", timing=True),
    Key("wall_s", "number", "s", "from opening the folder to the last write", timing=True),
    Key("weights_bytes", "integer | null", "bytes", "the model's weights"),
    Key("cache_bytes", "integer | null", "bytes", "the KV cache of all slots"),
    Key("cache_bytes_per_token", "integer | null", "bytes", "keys and values of one token over all layers and heads"),
    Key("peak_bytes", "integer | null", "bytes", "most memory in use on the device; null where it is not measured"),
)

METRICS = (
    Key("problems", "integer", "", "problems with at least one finished sample"),
    Key("planned_problems", "integer", "", "problems of the run"),
    Key("samples", "integer", "", "finished samples"),
    Key("planned_samples", "integer", "", "samples of the run"),
    Key("complete", "boolean", "", "every planned sample is finished; if not, every figure is of a part"),
    Key("accuracy", "number | null", "fraction", "mean over problems of the mean over samples; only 'correct' counts"),
    Key("standard_error", "number | null", "fraction", "of accuracy, over problems; null for fewer than two"),
    Key("strict_accuracy", "number | null", "fraction", "accuracy if answers found by a fallback counted as wrong"),
    Key(
        "pass_at_k", "object", "fraction", "for k = 1, 2, 4, ... up to the fewest samples of a problem: unbiased pass@k"
    ),
    Key("no_answer_share", "number | null", "fraction", "samples without an answer"),
    Key("truncated_share", "number | null", "fraction", "samples that ended at the token limit"),
    Key("loop_share", "number | null", "fraction", "samples that end in a loop"),
    Key("garbage_share", "number | null", "fraction", "samples whose tail is mostly not text"),
    Key("error_share", "number | null", "fraction", "samples that failed in generation or grading"),
    Key("fallback_rules", "object", "samples", "for each fallback, the samples whose answer it found"),
    Key("mean_prompt_tokens", "number | null", "tokens", "mean over samples"),
    Key("mean_completion_tokens", "number | null", "tokens", "mean over samples"),
    Key("mean_cuts", "number | null", "", "mean over samples of the times the cache was cut"),
    Key(
        "mean_cached_tokens", "number | null", "tokens", "mean over samples of the tokens held for a KV head at the end"
    ),
    Key("skipped_rows", "integer", "rows", "rows of the problem file left out"),
)

SUMMARY = (
    Key("name", "string", "", "name of the run folder"),
    Key("config_hash", "string", "", "as in run.json"),
    Key("complete", "boolean", "", "every planned sample is finished"),
    Key("samples", "integer", "", "finished samples"),
    Key("planned_samples", "integer", "", "samples of the run"),
    Key("tasks", "object", "", "for each task, its figures; see 'summary.json overall, tasks.*'"),
    Key("overall", "object", "", "the same figures with the problems of all tasks taken as one set"),
    Key("sessions", "integer", "", "processes that worked on the run; see sessions.jsonl"),
    Key("wall_s", "number | null", "s", "sum over all sessions; null without one", timing=True),
    Key("device", "string | null", "", "device of the last session that decoded: the keys below are of it"),
    Key("slots", "integer | null", "sequences", "sequences decoded at a time, in that session"),
    Key(
        "prefill_tokens_per_s",
        "number | null",
        "tokens/s",
        "measured: prompt tokens over time in prefill, of the sessions on that device; stored samples add nothing",
        timing=True,
    ),
    Key(
        "decode_tokens_per_s",
        "number | null",
        "tokens/s",
        "measured: tokens decoded in all slots over time in decoding, of the sessions on that device; "
        "stored samples add nothing",
        timing=True,
    ),
    Key("weights_bytes", "integer | null", "bytes", "the model's weights, in that session"),
    Key("cache_bytes", "integer | null", "bytes", "the KV cache of all slots, in that session"),
    Key("peak_bytes", "integer | null", "bytes", "most memory in use, over the sessions on that device"),
    Key(
        "dense_cache_bytes",
        "integer | null",
        "bytes",
        "keys and values of every token of the run's longest texts, one for each slot: "
        "what a cache without eviction must hold at the worst moment",
    ),
)

SCHEMA: dict[str, tuple[Key, ...]] = {
    "run.json": RUN,
    "run.json tasks[]": RUN_TASK,
    "completions.jsonl": COMPLETION,
    "sessions.jsonl": SESSION,
    "summary.json": SUMMARY,
    "summary.json overall, tasks.*": METRICS,
}

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": Mapping,
    "array": (list, tuple),
    "null": type(None),
}


def check(keys: tuple[Key, ...], value: Any) -> str:
    """What is wrong with an object that should have exactly these keys, or "" if it is right."""
    if not isinstance(value, Mapping):
        return "not a JSON object"
    known = {key.name for key in keys}
    missing = [key.name for key in keys if key.name not in value]
    surplus = [str(name) for name in value if name not in known]
    if missing or surplus:
        named = [("missing: ", missing), ("unknown: ", surplus)]
        return "; ".join(title + ", ".join(names) for title, names in named if names)
    for key in keys:
        item = value[key.name]
        types = key.type.split(" | ")
        if not any(
            isinstance(item, _TYPES[name]) and (name == "boolean" or (item is not True and item is not False))
            for name in types
        ):
            return f"{key.name} is {item!r:.40}, not {' or '.join(types)}"
        if key.values and item not in key.values:
            return f"{key.name} is {item!r:.40}, not one of {', '.join(map(str, key.values))}"
    return ""


def schema_json() -> str:
    """The schema as one JSON object: for each file, its keys in order."""
    return json.dumps({title: [asdict(key) for key in keys] for title, keys in SCHEMA.items()}, indent=2)


def schema_text() -> str:
    """The schema as plain text: for each file a heading, then one line for each key."""
    blocks = []
    for title, keys in SCHEMA.items():
        name_width = max(len(key.name) for key in keys)
        type_width = max(len(key.type) for key in keys)
        lines = [title]
        for key in keys:
            remarks = [key.unit] if key.unit else []
            remarks += [" | ".join(str(value or "null") for value in key.values)] if key.values else []
            remarks += ["timing"] if key.timing else []
            remark = f" [{'; '.join(remarks)}]" if remarks else ""
            lines.append(f"  {key.name:<{name_width}}  {key.type:<{type_width}}  {key.meaning}{remark}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
