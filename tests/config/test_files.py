"""Strict reading of zoo and recipe files: each rule, by the file, line and key that its error names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vase_cli.config.resolve import load_entry, load_recipe
from vase_cli.config.schema import ModelShape, SamplingParams, Thinking
from vase_cli.errors import ConfigError

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(load: Callable[[Path, str], object], path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, "mine")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}:")
    return message.removeprefix(f"{path}:")


# Text of a recipe after its first line `model: qwen3-8b` -> how the error goes on after the file's name.
RECIPE_REFUSALS = {
    "unknown key": ("methd: random", "2: methd: unknown key; did you mean 'method'?"),
    "unknown method": ("method: vase-atnv", "2: method: 'vase-atnv' is not known; did you mean 'vase-attnv'?"),
    "duplicate key": ("seed: 1\nwindow: 64\nseed: 2", "4: seed: duplicate key, first in line 2"),
    "duplicate nested key": ("budgets:\n  gsm8k: 512\n  gsm8k: 256", "4: gsm8k: duplicate key, first in line 3"),
    "text for a number": ("seed: seven", "2: seed: must be a whole number, not 'seven'"),
    "quoted number": ('seed: "7"', "2: seed: must be a whole number, not '7'; write 7 without quotes"),
    "fraction": ("window: 64.5", "2: window: must be a whole number of tokens, not 64.5"),
    "scientific": ("window: 1e2", "2: window: must be a whole number of tokens, not 100.0; write 100"),
    "octal": ("window: 010", "2: window: must be a whole number of tokens, not '010'; write 10"),
    "underscores": ("limit: 32_768", "2: limit: must be a whole number of problems, not '32_768'; write 32768"),
    "comma": ('limit: 32,768', "2: limit: must be a whole number of problems, not '32,768'; write 32768"),
    "unit": ("window: 32k", "2: window: must be a whole number of tokens, not '32k'; write the number in full"),
    "sexagesimal": ("limit: 4:30", "2: limit: must be a whole number of problems, not '4:30'"),
    "date": ("limit: 2026-01-01", "2: limit: must be a whole number of problems, not '2026-01-01'"),
    "bool for a number": ("samples: true", "2: samples: must be a whole number of samples per problem, not true"),
    "hexadecimal": ("limit: 0x10", "2: limit: must be a whole number of problems, not '0x10'"),
    "zero": ("samples: 0", "2: samples: must be a whole number of samples per problem, at least 1, not 0"),
    "negative seed": ("seed: -1", "2: seed: must be a whole number, at least 0"),
    "huge": ("seed: 99999999999999999999", "2: seed: must be a whole number, not '99999999999999999999'"),
    "no for a bool": ("think: no", "2: think: must be true or false, not 'no'; write false"),
    "on for a bool": ("think: on", "2: think: must be true or false, not 'on'; write true"),
    "number for a bool": ("think: 1", "2: think: must be true or false, not 1; write true"),
    "percent for top_p": ("sampling: {top_p: 95}", "2: sampling.top_p: 95.0 is not in (0, 1], 1 being off; write 0.95"),
    "negative temperature": ("sampling:\n  temperature: -1", "3: sampling.temperature: -1.0 is not 0 (greedy)"),
    "huge temperature": ("sampling: {temperature: 1e300}", "2: sampling.temperature: 1e+300 is not 0 (greedy) or a"),
    "tiny temperature": ("sampling: {temperature: 1e-300}", "2: sampling.temperature: 1e-300 is not 0 (greedy) or a"),
    "huge top_k": ("sampling: {top_k: 3000000000}", "2: sampling.top_k: must be a whole number of tokens, at most 214"),
    "huge window": ("window: 3000000000", "2: window: must be a whole number of tokens, at most 2147483647, not 3000"),
    "huge length": ("dense_tokens: {aime26: 1e300}", "2: dense_tokens.aime26: must be a number of tokens, at most 214"),
    "huge slots": ("slots: 3000000000", "2: slots: 3000000000 sequences are more than any machine"),
    "nan": ("sampling: {temperature: .nan}", "2: sampling.temperature: must be a number, not '.nan'"),
    "inf": ("sampling: {temperature: .inf}", "2: sampling.temperature: must be a number, not '.inf'"),
    "overflowing float": ("sampling: {temperature: 1e999}", "2: sampling.temperature: must be a number, not '1e999'"),
    "fraction for top_k": ("sampling: {top_k: 0.5}", "2: sampling.top_k: must be a whole number of tokens, not 0.5"),
    "min_p": ("sampling: {min_p: 1}", "2: sampling.min_p: 1.0 is not in [0, 1)"),
    "penalty of zero": (
        "sampling: {repetition_penalty: 0}",
        "2: sampling.repetition_penalty: 0.0 is not a positive number from 1e-6 to 1e6, 1 being off",
    ),
    "unknown sampling key": ("sampling: {topk: 20}", "2: sampling.topk: unknown key; did you mean 'top_k'?"),
    "budget": ("budget: 4k", "2: budget: '4k' is not a number of tokens nor a ratio"),
    "budget of a task": ("budgets:\n  gsm8k: 0", "3: budgets.gsm8k: 0 is not a positive number"),
    "budget of no task": ("budgets: {gsm8: 512}", "2: budgets.gsm8: no task of that name; did you mean 'gsm8k'?"),
    "length of no task": ("dense_tokens: {aime: 9}", "2: dense_tokens.aime: no task of that name; did you mean"),
    "length of zero": ("dense_tokens: {aime26: 0}", "2: dense_tokens.aime26: must be a number of tokens above 0"),
    "budget of full": ("method: full\nbudget: 512", "3: budget: method full evicts nothing and takes no budget"),
    "slots": ("slots: all", "2: slots: must be a whole number of sequences, at least 1, or auto, not 'all'"),
    "device": ("device: gpu", "2: device: 'gpu' is not a device; write auto, cpu, cuda, cuda:0 or mps"),
    "dtype": ("dtype: bf16", "2: dtype: 'bf16' is not known; "),
    "attention": ("attention: flash", "2: attention: 'flash' is not known; "),
    "tasks not a list": ("tasks: gsm8k", "2: tasks: must be a list with something in it"),
    "no tasks": ("tasks: []", "2: tasks: must be a list with something in it"),
    "nested task": ("tasks: [gsm8k, [aime26]]", "2: tasks: an item of the list is not a single value"),
    "task twice": ("tasks: [gsm8k, gsm8k]", "2: tasks: gsm8k is there twice"),
    "a list for a value": ("seed: [1]", "2: seed: is a list; write one value"),
    "a mapping for a value": ("seed: {a: 1}", "2: seed: is a mapping; write one value"),
    "a value for a mapping": ("budgets: 512", "2: budgets: must be a mapping"),
    "no value": ("seed:", "2: seed: has no value; write one, or leave the line out"),
    "null": ("limit: null", "2: limit: has no value"),
    "tilde": ("limit: ~", "2: limit: has no value"),
    "empty text": ('system_prompt: " "', "2: system_prompt: is empty"),
    "empty text for a number": ('seed: ""', "2: seed: must be a whole number, not ''"),
    "anchor": ("seed: &one 1", "2: anchors (&one) are not used here"),
    "alias": ("seed: *one", "2: aliases (*one) are not used here"),
    "merge key": ("<<: {seed: 1}", "2: <<: merge keys are not used here"),
    "nested merge key": ("sampling:\n  <<: {top_k: 1}", "3: sampling.<<: merge keys are not used here"),
    "no value in a list": ("tasks: [gsm8k, ~]", "2: tasks: has no value"),
    "no value for a mapping": ("budgets:", "2: budgets: has no value"),
    "a list for a budget": ("budget: [1]", "2: budget: is a list; write one value"),
    "a mapping for a choice": ("compile: {on: 1}", "2: compile: is a mapping; write one value"),
    "several wrong": ("window: 0\nsede: 1", "3: sede: unknown key; did you mean 'seed'?"),
    "item": ("compare:\n  methods: [full,\n    snapkw]", "4: compare.methods: 'snapkw' is not known; did you mean"),
    "section": ("compare:\n  method: [full]", "3: compare.method: unknown key; did you mean 'methods'?"),
    "tag": ("seed: !!int 1", "2: tags (tag:yaml.org,2002:int) are not used here"),
    "python tag": ("seed: !!python/object/apply:os.system [ls]", "2: tags (tag:yaml.org,2002:python/object/apply"),
    "tab": ("budgets:\n\tgsm8k: 512", "3: a tab where spaces must be"),
    "second document": ("---\nseed: 1", "2: a second document starts; keep one per file"),
    "key that is a list": ("? [a, b]\n: 1", "2: a key must be a single word"),
    "deep nesting": ("tasks: " + "[" * 5000, "2: nested more than 8 deep"),
    "broken": ("tasks: [gsm8k", ": not YAML: "),
    "colon in text": ("system_prompt: note: think", "2: not YAML: mapping values are not allowed here; quote text"),
    "control character": ("system_prompt: a\x07b", "2: the character U+0007 is not text; remove it"),
    "nul": ("system_prompt: a\x00b", "2: the character U+0000 is not text; remove it"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "start"), RECIPE_REFUSALS.values(), ids=RECIPE_REFUSALS.keys())
def test_recipe_refusals(write: Write, text: str, start: str) -> None:
    message = refusal(load_recipe, write(f"model: qwen3-8b\n{text}\n"))
    assert start in message if start.startswith(":") else message.startswith(start)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " the file is empty"),
        (b"# only a comment\n", " the file is empty"),
        (b"---\n", " the file is empty"),
        (b"- model\n", "1: not a mapping"),
        (b"qwen3-8b\n", "1: not a mapping"),
        (b"method: random\n", "1: model: is missing"),
        (b"\xef\xbb\xbfmodel: qwen3-8b\n", "1: starts with a byte-order mark"),
        ("model: qwen3-8b\n".encode("utf-16"), "1: starts with a byte-order mark"),
        (b"model: qwen3-8b\nsystem_prompt: caf\xe9\n", "2: byte 0xe9 is not UTF-8"),
    ],
)
def test_files_that_are_no_recipe(write: Write, content: bytes, message: str) -> None:
    assert refusal(load_recipe, write(content)).startswith(message)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read .*none\.yaml: No such file or directory$"):
        load_recipe(tmp_path / "none.yaml", "mine")
    assert "is a folder" in refusal(load_recipe, tmp_path)


def test_carriage_returns_and_symlinks_are_fine(write: Write, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(write("model: qwen3-8b\r\nseed: 3\r\n"))
    assert load_recipe(link, "link").values == {"model": "qwen3-8b", "seed": 3}


def test_text_stays_as_written(write: Write) -> None:
    # YAML 1.1 makes false, a number and a date of these.
    for text in ("no", "1e10", "2026-01-01", "010"):
        assert load_recipe(write(f"model: qwen3-8b\nsystem_prompt: {text}\n"), "mine").values["system_prompt"] == text


def test_method_options_are_typed_by_what_is_written(write: Write) -> None:
    options = "a: 1, b: 1e-3, c: true, d: no, e: '5', f: 010, g: -2, h: .5, i: True, j: 1_0, k: 01.5"
    values = load_recipe(write(f"model: qwen3-8b\nmethod_options: {{{options}}}\n"), "mine").values
    found = values["method_options"]
    assert found == {
        "a": 1,
        "b": 0.001,
        "c": True,
        "d": "no",
        "e": "5",
        "f": "010",
        "g": -2,
        "h": 0.5,
        "i": "True",
        "j": "1_0",
        "k": "01.5",
    }
    assert [type(value) for value in found.values()] == [int, float, bool, str, str, str, int, float, str, str, str]


def test_numbers_are_taken_as_the_schema_says(write: Write) -> None:
    text = "model: qwen3-8b\nsampling: {temperature: 1, top_p: 9e-1, top_k: 20}\nbudget: 4X\nbudgets: {gsm8k: 512}\n"
    values = load_recipe(write(text), "mine").values
    assert values["sampling"] == {"temperature": 1.0, "top_p": 0.9, "top_k": 20}
    assert (values["budget"], values["budgets"]) == ("4x", {"gsm8k": 512})


def test_each_value_is_said_to_be_where_its_key_is(write: Write, tmp_path: Path) -> None:
    file = load_recipe(write("model: qwen3-8b\nbudgets:\n  gsm8k:\n    512\ntasks:\n  - gsm8k\n"), "mine")
    where = {key: f"recipe mine ({tmp_path / 'mine.yaml'}:{line})" for key, line in
             {"model": 1, "budgets": 2, "budgets.gsm8k": 3, "tasks": 5}.items()}  # fmt: skip
    assert file.origins == where


def test_paths_in_a_recipe_start_from_its_file(write: Write, tmp_path: Path) -> None:
    file = load_recipe(write("model: ./weights\ntasks: [gsm8k, ../mine.jsonl]\nbudgets: {mine: 512}\n"), "mine")
    assert file.values["model"] == str(tmp_path / "weights")
    assert file.values["tasks"] == ("gsm8k", str(tmp_path / "../mine.jsonl"))
    assert file.values["budgets"] == {"mine": 512}


ENTRY_REFUSALS = {
    "neither": ("license: mit", "1: needs exactly one of hub_id"),
    "both": ("hub_id: a/b\npath: .", "1: needs exactly one of hub_id"),
    "hub id": ("hub_id: qwen3", "1: hub_id: 'qwen3' is not a hub id; write organization/name"),
    "hub url": ("hub_id: https://huggingface.co/a/b", "1: hub_id: 'https://huggingface.co/a/b' is not a hub id"),
    "no folder": ("path: nowhere", "1: path: no folder "),
    "no thresholds": ("path: .\nthresholds: t.json", "2: thresholds: no file "),
    "parameters": ("path: .\nparameters: 8B", "2: parameters: must be a whole number of parameters, not '8B'"),
    "context": ("path: .\ncontext_tokens: 32k", "2: context_tokens: must be a whole number of tokens, not '32k'"),
    "dtype": ("path: .\ndtype: int8", "2: dtype: 'int8' is not known; "),
    "half a shape": ("path: .\nshape: {layers: 2, heads: 4}", "2: shape: kv_heads is missing"),
    "shape": ("path: .\nshape: {layers: 2, heads: 4, kv_heads: 3, head_dim: 8}", "2: shape.kv_heads: 4 heads do not"),
    "shape key": ("path: .\nshape: {layer: 2}", "2: shape.layer: unknown key; did you mean 'layers'?"),
    "thinking": ("path: .\nthinking: {mode: sometimes}", "2: thinking.mode: 'sometimes' is not known"),
    "no mode": ("path: .\nthinking: {opened_by: model}", "2: thinking: mode is missing"),
    "mode as 1.1 bool": ("path: .\nthinking: {mode: on}", "2: thinking.mode: 'on' is not known"),
    "sampling mode": ("path: .\nsampling: {thought: {temperature: 1}}", "2: sampling.thought: unknown key"),
    "silent greedy": ("path: .\nsampling:\n  plain: {top_p: 0.9}", "3: sampling.plain: temperature is missing"),
    "sampling": ("path: .\nsampling:\n  plain: {temperature: 1, top_p: 0}", "3: sampling.plain.top_p: 0.0 is not"),
    "ratio": ("path: .\nbudgets: {gsm8k: 4x}", "2: budgets.gsm8k: must be a whole number of tokens, not '4x'"),
    "solved task": ("path: .\nsolves: [aime24,\n  gsm]", "3: solves: no task of that name; did you mean 'gsm8k'?"),
    "solves nothing": ("path: .\nsolves: []", "2: solves: must be a list with something in it"),
    "task": ("path: .\ndense_tokens: {gsm: 5}", "2: dense_tokens.gsm: no task of that name; did you mean 'gsm8k'?"),
    "a recipe": ("path: .\nmodel: qwen3-8b", "2: model: unknown key"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "start"), ENTRY_REFUSALS.values(), ids=ENTRY_REFUSALS.keys())
def test_entry_refusals(write: Write, text: str, start: str) -> None:
    assert refusal(load_entry, write(text)).startswith(start)


def test_entry(write: Write, tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").touch()
    text = """\
path: .
revision: 1e10
shape: {layers: 2, heads: 4, kv_heads: 2, head_dim: 8}
thinking: {mode: always, opened_by: prompt}
sampling:
  thinking: {temperature: 0.6, top_k: 20}
dense_tokens: {gsm8k: 300.5}
thresholds: t.safetensors
"""
    entry = load_entry(write(text), "mine")
    assert entry.path is not None and entry.path.samefile(tmp_path)
    assert entry.revision == "1e10"  # not a number
    assert entry.shape == ModelShape(2, 4, 2, 8)
    assert entry.thinking == Thinking("always", "prompt")
    assert entry.sampling["thinking"] == SamplingParams(0.6, top_k=20)
    assert entry.sampling["plain"] == entry.sampling["thinking"]
    assert entry.dense_tokens == {"gsm8k": 300.5}
    assert entry.thresholds == str(tmp_path / "t.safetensors")
    assert entry.origins["sampling.thinking.top_k"] == f"{tmp_path / 'mine.yaml'}:6"


@pytest.mark.parametrize(
    "values",
    [{"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 1.0}],
)
def test_sampling_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        SamplingParams(**values)  # type: ignore[arg-type]


def test_sampling_filters_can_be_off() -> None:
    assert SamplingParams() == SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
