"""Loading models from folders with transformers: what is served, what is refused, prompts and end tokens."""

import json
import logging
import re
import shutil
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import CHAT_TEMPLATE, END, write_model, write_tokenizer
from helpers.engines import make_engine, make_requests, token_ids

from vase_cli import plugins
from vase_cli.config.catalog import entry_from_folder
from vase_cli.config.schema import ModelEntry, ModelShape, Recipe
from vase_cli.device import resolve_device
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.errors import ModelError
from vase_cli.models.describe import describe
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.tokenizer import ChatTokenizer, load_tokenizer

CPU = torch.device("cpu")
TOKENS = [[5, 17, 3, 60, 42, 8, 8, 21, 77]]
MakeFolder = Callable[..., Path]


class Causal:
    """A forward step without a cache: every layer attends to the tokens of this forward."""

    def attend(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
        return plugins.load("attention", "sdpa")().prefill(queries[0], keys[0], values[0], scale)[None]


def load_folder(folder: Path, dtype: str | None = None, **entry: object) -> LanguageModel:
    named = ModelEntry("tiny", path=folder, **entry)
    return load(named, load_tokenizer(named), dtype, CPU)


@torch.inference_mode()
def logits(model: LanguageModel) -> torch.Tensor:
    tokens = torch.tensor(TOKENS)
    return model.forward(tokens, torch.arange(tokens.shape[1])[None], Causal())


@torch.inference_mode()
def reference_logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model(torch.tensor(TOKENS)).logits[:, -1]


def copy(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return to


def change_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON file; None removes a key."""
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def refusal(folder: Path | None, start: Callable[[ModelEntry], object] | None = None, **entry: object) -> str:
    """The one line that loading ends with; it names the model."""
    named = ModelEntry("tiny", path=folder, **entry)
    with pytest.raises(ModelError) as caught:
        (start or (lambda given: load(given, load_tokenizer(given), None, CPU)))(named)
    line = str(caught.value)
    assert "\n" not in line and str(folder or named.hub_id) in line
    return line.replace(str(folder), "FOLDER")


# What is served.


def test_sharded_and_single_files_give_the_same_logits(model_folder: MakeFolder, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    single = model_folder("qwen3", layers=3)
    copy(single, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(single).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    one, many = load_folder(single), load_folder(tmp_path)
    for expected, given in zip(one.model.parameters(), many.model.parameters(), strict=True):
        assert torch.equal(given, expected)
    for model in (one, many):
        torch.testing.assert_close(logits(model), reference_logits(single), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 4, 8), (4, 2, 8), (4, 1, 8), (6, 2, 24), (5, 1, 16)], ids=str
)
def test_every_head_layout_gives_transformers_logits(
    heads: int, kv_heads: int, head_dim: int, tied: bool, model_folder: MakeFolder
):
    changes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    folder = model_folder("qwen3", tie_word_embeddings=tied, **changes)
    model = load_folder(folder)
    assert model.facts.shape == ModelShape(2, heads, kv_heads, head_dim)
    assert (model.model.lm_head.weight is model.model.get_input_embeddings().weight) == tied
    real = {id(parameter): parameter for parameter in model.model.parameters()}
    assert model.facts.parameters == sum(parameter.numel() for parameter in real.values())
    torch.testing.assert_close(logits(model), reference_logits(folder), atol=1e-4, rtol=1e-4)


def test_head_dim_that_no_config_names_is_hidden_over_heads(model_folder: MakeFolder):
    folder = model_folder("qwen2", num_attention_heads=8, num_key_value_heads=2)
    assert load_folder(folder).facts.shape == ModelShape(2, 8, 2, 4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": None, "head_dim": 16}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8}),
        ("llama", {"attention_bias": True, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
        ("qwen3", {"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("gpt2", {"num_key_value_heads": None, "intermediate_size": None}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_other_families_give_the_tokens_of_transformers_generate(
    family: str, changes: dict[str, object], model_folder: MakeFolder
):
    from transformers import AutoModelForCausalLM

    folder = model_folder(family, **changes)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    requests = make_requests()[:5]
    expected = {}
    for request in requests:
        prompt = torch.tensor([request.prompt_token_ids])
        out = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20, pad_token_id=0
        )
        expected[request.id] = tuple(out[0, prompt.shape[1] :].tolist())
    model = load_folder(folder)
    assert token_ids(make_engine(model, max_new_tokens=20), requests) == expected
    assert len({tokens[-1] for tokens in expected.values()}) > 1, "the model is too dull to tell anything"


@pytest.mark.parametrize(
    ("family", "keys", "expected", "experts"),
    [
        ("qwen3", {}, 48, 0),
        ("qwen3_moe", {"num_experts_per_tok": 2, "moe_intermediate_size": 16}, 48, 2),
        ("qwen3_moe", {"num_experts_per_tok": 8, "moe_intermediate_size": 16}, 128, 8),
        ("mixtral", {"num_experts_per_tok": 2}, 96, 2),
        ("gpt2", {"intermediate_size": None}, 4 * 32, 0),
    ],
)
def test_the_mlp_that_is_planned_with_is_what_one_token_uses(
    family: str, keys: dict[str, object], expected: int, experts: int, tmp_path: Path
):
    from transformers import AutoConfig

    common = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    AutoConfig.for_model(family, **common).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", **keys)
    facts = describe(ModelEntry("tiny", path=tmp_path), None, CPU)
    assert (facts.mlp, facts.experts_per_token) == (expected, experts)


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_weights_have_the_dtype_that_was_asked_for(stored: str, asked: str, model_folder: MakeFolder):
    model = load_folder(model_folder("qwen3", dtype=stored), asked)
    assert model.facts.dtype == asked and model.facts.torch_dtype == getattr(torch, asked)
    assert {parameter.dtype for parameter in model.model.parameters()} == {getattr(torch, asked)}
    assert logits(model).dtype == getattr(torch, asked)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_auto_dtype_is_float32_on_the_cpu_and_the_checkpoints_own_on_a_gpu(stored: str, model_folder: MakeFolder):
    folder = model_folder("qwen3", dtype=stored)
    entry = ModelEntry("tiny", path=folder)
    for asked in (None, "auto"):
        assert describe(entry, asked, CPU).dtype == "float32"
        assert describe(entry, asked, torch.device("cuda", 0)).dtype == stored
    assert load_folder(folder).facts.torch_dtype == torch.float32
    named = replace(entry, dtype="float16")
    assert describe(named, None, CPU).dtype == "float32", "a zoo entry says what the weights are, not what a CPU likes"
    assert describe(named, None, torch.device("cuda", 0)).dtype == "float16"
    assert describe(named, "bfloat16", CPU).dtype == "bfloat16"
    mps = torch.device("mps")
    assert (describe(entry, None, mps).dtype, describe(named, None, mps).dtype) == ("float32", "float16")


def test_a_device_that_is_not_there_is_refused():
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(ModelError, match=f"no CUDA device {count}: PyTorch sees {count}; use --device cpu or auto"):
        resolve_device(f"cuda:{count}")
    assert resolve_device("cpu") == CPU


# What is refused before a weight is read: these folders hold no weights.

ROPE = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("mistral", {"sliding_window": 16}, "layer 0 is sliding_attention; the static cache serves full attention"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "num_hidden_layers": 3},
            "layer 2 is sliding_attention",
        ),
        ("gemma3_text", {"num_hidden_layers": 6}, "layer 0 is sliding_attention"),
        ("gpt_oss", {}, "layer 0 is sliding_attention"),
        ("qwen3_next", {}, "layer 0 is linear_attention"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "layer 1 is linear_attention"),
        ("t5", {}, "t5 is an encoder-decoder; the static cache serves decoder-only models"),
        ("mamba", {}, "layer 0 is linear_attention|mamba is not a decoder-only language model with attention"),
        ("vit", {}, "vit is not a decoder-only language model with attention"),
        ("gemma3", {}, "gemma3 takes more than text"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", **ROPE}}, "rope type dynamic changes old positions"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", **ROPE, **LONG}}, "rope type longrope changes old"),
        (
            "laguna",
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic", **ROPE}}},
            "rope type dynamic changes old positions",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_models_that_the_cache_cannot_serve_are_refused_by_their_config(
    family: str, changes: dict[str, object], expected: str, tmp_path: Path
):
    from transformers import CONFIG_MAPPING, AutoConfig

    if family not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    common = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family == "phi3":
        common["pad_token_id"] = 0
    composite = family == "gemma3"
    AutoConfig.for_model(family, **({} if composite else common | changes)).save_pretrained(tmp_path)
    line = refusal(tmp_path, lambda entry: describe(entry, None, CPU))
    assert re.search(f"^FOLDER: ({expected})", line), line


def test_quantized_weights_are_refused(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "the weights are quantized" in refusal(tmp_path, lambda entry: describe(entry, None, CPU))


def test_a_shape_that_is_not_the_zoo_entrys_is_refused(model_folder: MakeFolder):
    folder = model_folder("qwen3")
    wrong = ModelShape(layers=2, heads=4, kv_heads=4, head_dim=16)
    line = refusal(folder, lambda entry: describe(entry, None, CPU), shape=wrong)
    assert "kv_heads=2" in line and "kv_heads=4" in line and "the zoo entry tiny says" in line
    right = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16)
    assert describe(ModelEntry("tiny", path=folder, shape=right), None, CPU).shape == right


# What only the loaded model shows.


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("bert", {"num_key_value_heads": None}, "layer 0 of this model attends to later tokens"),
        ("bloom", {"num_key_value_heads": None}, "layer 0 does not use transformers' attention interface"),
        ("deepseek_v3", {"n_routed_experts": 4, "first_k_dense_replace": 2, "q_lora_rank": 8}, "its heads are"),
        ("stablelm", {}, "its forward does not run on the static cache|layer 0 does not use transformers'"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_models_whose_attention_is_another_are_refused_when_loaded(
    family: str, changes: dict[str, object], expected: str, tmp_path: Path
):
    write_model(tmp_path, family, **changes)
    line = refusal(tmp_path)
    assert re.search(f"^FOLDER: ({expected})", line), line


def remove_tensor(folder: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def widen_tensor(folder: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.cat((tensors[name], tensors[name]))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def cut_file(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing-tensor": (
        lambda folder: remove_tensor(folder, "model.layers.1.mlp.up_proj.weight"),
        r"the weights lack 1 tensors, model\.layers\.1\.mlp\.up_proj\.weight first",
    ),
    "missing-head": (
        lambda folder: change_json(folder / "config.json", tie_word_embeddings=False),
        r"the weights lack 1 tensors, lm_head\.weight first",
    ),
    "another-shape": (
        lambda folder: widen_tensor(folder, "model.layers.0.mlp.up_proj.weight"),
        r"model\.layers\.0\.mlp\.up_proj\.weight is \(96, 32\) in the weights, \(48, 32\) by the config",
    ),
    "cut-weights": (lambda folder: cut_file(folder / "model.safetensors", 0.6), "incomplete metadata"),
    "cut-in-the-header": (lambda folder: cut_file(folder / "model.safetensors", 0.01), "header"),
    "no-weights": (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
    "header-not-json": (
        lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"{broken}" + b"\0" * 64),
        "invalid JSON in header",
    ),
    "config-not-json": (lambda folder: cut_file(folder / "config.json", 0.5), "not a valid JSON file"),
    "config-without-type": (lambda folder: (folder / "config.json").write_text("{}"), "model_type"),
    "config-of-unknown-type": (
        lambda folder: change_json(folder / "config.json", model_type="qwen99"),
        "qwen99",
    ),
    "config-value-of-wrong-type": (
        lambda folder: change_json(folder / "config.json", hidden_size="wide"),
        "'hidden_size'.*'wide'",
    ),
    "no-config": (lambda folder: (folder / "config.json").unlink(), "no config.json there; give a model folder"),
    "no-tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    "tokenizer-not-json": (lambda folder: cut_file(folder / "tokenizer.json", 0.5), "line [0-9]+ column"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused_in_one_line(damage: str, model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    break_it, expected = DAMAGES[damage]
    break_it(tmp_path)
    line = refusal(tmp_path)
    assert re.search(expected, line), line


@pytest.mark.parametrize("damage", ["missing", "cut", "not in the index"])
def test_damaged_shards_are_refused_in_one_line(damage: str, model_folder: MakeFolder, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    copy(model_folder("qwen3"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    AutoModelForCausalLM.from_pretrained(model_folder("qwen3")).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    if damage == "missing":
        shard.unlink()
        assert shard.name in refusal(tmp_path)
    elif damage == "cut":
        cut_file(shard, 0.7)
        assert "incomplete metadata" in refusal(tmp_path)
    else:
        index = tmp_path / "model.safetensors.index.json"
        weights = json.loads(index.read_text())["weight_map"]
        change_json(index, weight_map={name: file for name, file in weights.items() if file != shard.name})
        assert "the weights lack" in refusal(tmp_path)


@pytest.mark.parametrize("start", ["describe", "tokenizer"])
def test_a_hub_id_that_is_not_cached_is_refused_offline(start: str):
    begin = {"describe": lambda entry: describe(entry, None, CPU), "tokenizer": load_tokenizer}[start]
    line = refusal(None, begin, hub_id="nobody/no-such-model")
    assert "check the name and the network, or give a folder with --model" in line


def test_retries_of_the_hubs_client_are_not_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def from_pretrained(*arguments: object, **named: object) -> None:
        logging.getLogger("huggingface_hub").warning("Retrying in 8s [Retry 5/5].")
        raise OSError("no network")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    assert "no network" in refusal(None, load_tokenizer, hub_id="nobody/no-such-model")
    assert not caplog.records


# End tokens.


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([7, 9, 11], 5, {5, 7, 9, 11}),
        (7, [5, 6], {5, 6, 7}),
        (0, 5, {0, 5}),
        (None, [5, 6], {5, 6}),
        (None, 0, {0}),
        ([], 5, {5}),
        (None, None, set()),
    ],
    ids=str,
)
def test_a_text_ends_with_an_end_token_of_any_of_the_three_files(
    generation: object, config: object, expected: set[object], model_folder: MakeFolder, tmp_path: Path
):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "generation_config.json", eos_token_id=generation)
    change_json(tmp_path / "config.json", eos_token_id=config)
    entry = ModelEntry("tiny", path=tmp_path)
    tokenizer = load_tokenizer(entry)
    assert load(entry, tokenizer, None, CPU).eos_token_ids == expected | {tokenizer.eos_token_id}


def test_a_folder_without_generation_config_has_the_configs_end_tokens(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change_json(tmp_path / "config.json", eos_token_id=[3, 4])
    tokenizer = load_tokenizer(ModelEntry("tiny", path=tmp_path))
    assert load_folder(tmp_path).eos_token_ids == {3, 4, tokenizer.eos_token_id}


@pytest.mark.parametrize("written", [1.5, "x", [1, "a"]])
def test_end_tokens_that_are_no_token_ids_are_refused(written: object, model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "generation_config.json", eos_token_id=written)
    assert f"eos_token_id {written!r} is not a token id" in refusal(tmp_path)


def test_a_model_that_names_no_end_token_is_refused(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "generation_config.json", eos_token_id=None)
    change_json(tmp_path / "config.json", eos_token_id=None)
    change_json(tmp_path / "tokenizer_config.json", eos_token=None)
    assert "no eos_token_id in generation_config.json, config.json or the tokenizer" in refusal(tmp_path)


# Prompts and texts.


def chat_tokenizer(folder: Path, template: str | None = CHAT_TEMPLATE) -> ChatTokenizer:
    write_tokenizer(folder)
    if template is None:
        (folder / "chat_template.jinja").unlink()
    else:
        (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(ModelEntry("tiny", path=folder))


def test_messages_go_through_the_chat_template(tmp_path: Path):
    tokenizer = chat_tokenizer(tmp_path)
    written = tokenizer.encode_text("<|system|>be brief\n<|user|>1+1?\n<|assistant|>")
    prompt = tokenizer.encode_chat("1+1?", system="be brief", think=True)
    assert tokenizer.has_chat_template and prompt == written and not prompt.thought_open
    plain = tokenizer.encode_chat("1+1?", system=None, think=True)
    assert plain == tokenizer.encode_text("<|user|>1+1?\n<|assistant|>")
    off = tokenizer.encode_chat("1+1?", system=None, think=False)
    assert off == tokenizer.encode_text("<|user|>1+1?\n<|assistant|><think>\n\n</think>\n\n")
    assert not off.thought_open


OPENS = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}<|assistant|>"


@pytest.mark.parametrize(
    ("end", "message", "expected"),
    [
        ("<think>", "1+1?", True),
        ("<think>\n", "1+1?", True),
        ("<think>\n\n</think>\n\n", "1+1?", False),
        ("", "1+1?", False),
        ("", "what does <think> mean?", False),
        ("<think>\n", "what does </think> mean?", True),
        ("<think></think>", "what does <think> mean?", False),
    ],
)
def test_only_the_end_of_the_template_opens_a_thought(end: str, message: str, expected: bool, tmp_path: Path):
    tokenizer = chat_tokenizer(tmp_path, OPENS + end.replace("\n", "{{ '\\n' }}"))
    assert tokenizer.encode_chat(message, system=None, think=True).thought_open is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1+1?", False), ("1+1?<think>\nwell,", True), ("<think>a</think>b", False), ("<think>a</think><think>b", True)],
)
def test_a_raw_prompt_may_stop_in_the_middle_of_a_thought(text: str, expected: bool, tmp_path: Path):
    assert chat_tokenizer(tmp_path).encode_text(text).thought_open is expected


def test_a_beginning_token_is_added_to_raw_text_and_not_twice_to_a_chat(tmp_path: Path):
    from tokenizers import Tokenizer, processors

    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("<|system|>{{ messages[0]['content'] }}")
    inner = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    begin = inner.token_to_id("<|system|>")
    inner.post_processor = processors.TemplateProcessing(single="<|system|> $A", special_tokens=[("<|system|>", begin)])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelEntry("tiny", path=tmp_path))
    raw, chat = tokenizer.encode_text("ab"), tokenizer.encode_chat("ab", system=None, think=True)
    assert raw.token_ids[0] == begin and raw == chat
    assert chat.token_ids.count(begin) == 1


def test_a_template_that_refuses_the_messages_is_one_line(tmp_path: Path):
    tokenizer = chat_tokenizer(tmp_path, "{{ raise_exception('System role\nis not supported') }}")
    with pytest.raises(ModelError) as caught:
        tokenizer.encode_chat("1+1?", system="be brief", think=True)
    assert str(caught.value) == "the model's chat template refused the messages: System role"


@pytest.mark.parametrize("template", ["{% for m in messages %}", "{{ messages.nothing.there }}"])
def test_a_template_that_is_broken_is_one_line(template: str, tmp_path: Path):
    with pytest.raises(ModelError, match=r"the model's chat template refused the messages: .+") as caught:
        chat_tokenizer(tmp_path, template).encode_chat("1+1?", system=None, think=True)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_template_serves_raw_prompts_only(tmp_path: Path):
    tokenizer = chat_tokenizer(tmp_path, None)
    assert not tokenizer.has_chat_template
    with pytest.raises(ModelError, match=r"^the model's chat template refused the messages: "):
        tokenizer.encode_chat("1+1?", system=None, think=True)
    assert tokenizer.decode(tokenizer.encode_text("1+1?").token_ids) == "1+1?"


def test_text_keeps_think_tags_and_spaces_and_drops_special_tokens(tmp_path: Path):
    tokenizer = chat_tokenizer(tmp_path)
    text = "<think> a , b . \n</think>\n\nit 's  2 !"
    ids = tokenizer.encode_text(text).token_ids
    ends = [tokenizer.encode_text(end).token_ids for end in END]
    assert all(len(end) == 1 for end in ends) and tokenizer.eos_token_id == ends[0][0]
    assert tokenizer.decode(ends[1] + ids + ends[0]) == text
    assert tokenizer.decode(()) == ""


def test_think_tags_that_are_special_tokens_are_text_and_no_other_is(tmp_path: Path):
    from tokenizers import AddedToken, Tokenizer

    write_tokenizer(tmp_path)
    inner = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    inner.add_special_tokens([AddedToken(tag, special=True) for tag in ("<think>", "</think>", "<|stop|>")])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelEntry("tiny", path=tmp_path))
    ids = tokenizer.encode_text("<think>a</think>b<|stop|>").token_ids
    assert len(ids) == 5 and tokenizer.decode(ids) == "<think>a</think>b"


def test_a_raw_text_that_has_its_beginning_token_gets_no_second_one(tmp_path: Path):
    from tokenizers import Tokenizer, processors

    write_tokenizer(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", bos_token="<|system|>")
    inner = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    begin = inner.token_to_id("<|system|>")
    inner.post_processor = processors.TemplateProcessing(single="<|system|> $A", special_tokens=[("<|system|>", begin)])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelEntry("tiny", path=tmp_path))
    assert tokenizer.encode_text("<|system|>ab") == tokenizer.encode_text("ab")
    assert tokenizer.encode_text("ab").token_ids.count(begin) == 1


def test_a_template_that_does_not_end_is_stopped(tmp_path: Path):
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(loop)
    tokenizer = ChatTokenizer(AutoTokenizer.from_pretrained(tmp_path), template_limit_s=0.2)
    with pytest.raises(ModelError, match=r"refused the messages: it did not end within 0\.2 s"):
        tokenizer.encode_chat("1+1?", system=None, think=True)
    for worker in [thread for thread in threading.enumerate() if thread.name == "chat template"]:
        worker.join(60)
        assert not worker.is_alive(), "it goes on and takes a core"


def test_a_folder_without_a_tokenizer_is_refused_before_its_weights(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).unlink()
    assert "no tokenizer there; add its files" in refusal(tmp_path, load_tokenizer)


def test_token_ids_that_the_embedding_does_not_have_are_refused(model_folder: MakeFolder, tmp_path: Path):
    folder = copy(model_folder("qwen3"), tmp_path)
    change_json(folder / "config.json", vocab_size=50)
    factory = EngineFactory(
        plan_run(Recipe("mine", "mine", method="full", device="cpu"), ModelEntry("mine", path=folder))
    )
    with pytest.raises(ModelError, match=r"mine: its tokenizer makes token \d+, its embedding has 50 rows"):
        factory.encode("zzz~")


# Configs.


def test_weights_that_the_config_does_not_use_are_refused_by_name(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "config.json", num_hidden_layers=1, layer_types=["full_attention"])
    assert re.search(
        r"the weights hold \d+ tensors that the config does not use, model\.layers\.1\.", refusal(tmp_path)
    )


@pytest.mark.parametrize("wish", ["flash_attention_2", "kernels-community/x"])
def test_the_attention_that_a_config_wishes_for_is_not_obeyed(wish: str, model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    expected = logits(load_folder(tmp_path))
    change_json(tmp_path / "config.json", _attn_implementation=wish)
    assert torch.equal(logits(load_folder(tmp_path)), expected)


@pytest.mark.parametrize(("key", "value"), [("head_dim", -1), ("max_position_embeddings", []), ("hidden_size", 0)])
def test_a_config_of_impossible_figures_is_refused_with_its_folder(
    key: str, value: object, model_folder: MakeFolder, tmp_path: Path
):
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ModelError, match=f"{re.escape(str(folder))} cannot be loaded"):
        describe(entry_from_folder(folder), None, torch.device("cpu"))


def test_a_tokenizer_of_an_impossible_length_is_refused_with_its_folder(model_folder: MakeFolder, tmp_path: Path):
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    change_json(folder / "tokenizer_config.json", model_max_length="x")
    with pytest.raises(ModelError, match=f"{re.escape(str(folder))} cannot be loaded"):
        load_tokenizer(entry_from_folder(folder))


def test_a_model_of_countless_layers_is_refused_at_once(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "config.json", num_hidden_layers=100_000, layer_types=None)
    assert "100,000 layers; no model has over 1,000" in refusal(tmp_path, lambda entry: describe(entry, None, CPU))


def test_yarn_makes_longer_texts_possible(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
    change_json(tmp_path / "config.json", max_position_embeddings=160, rope_parameters=rope)
    assert describe(ModelEntry("tiny", path=tmp_path), None, CPU).max_tokens == 512


def test_what_a_config_leaves_out_is_its_familys_default(model_folder: MakeFolder, tmp_path: Path):
    copy(model_folder("qwen3"), tmp_path)
    change_json(tmp_path / "config.json", head_dim=None)
    assert describe(entry_from_folder(tmp_path), None, CPU).shape.head_dim == 128  # Qwen3's


# The registered attention.


def test_a_call_without_the_step_is_a_bug_and_says_so(model_folder: MakeFolder):
    model = load_folder(model_folder("qwen3"))
    with pytest.raises(RuntimeError, match="called without vase_step"):
        model.model(input_ids=torch.tensor(TOKENS), use_cache=False)


def test_an_attention_mask_that_arrives_is_a_bug_and_says_so(model_folder: MakeFolder):
    model = load_folder(model_folder("qwen3"))
    layer, states = model.model.model.layers[0].self_attn, torch.zeros(1, 2, 32)
    angles = (torch.zeros(1, 2, 16), torch.zeros(1, 2, 16))
    assert layer(states, angles, attention_mask=None, vase_step=Causal())[0].shape == states.shape
    with pytest.raises(RuntimeError, match="no attention mask may come here"):
        layer(states, angles, attention_mask=torch.zeros(1, 1, 2, 2), vase_step=Causal())


@pytest.mark.parametrize("padding", ["left", "right"])
def test_no_mask_is_ever_built(padding: str, model_folder: MakeFolder):
    """A padding mask given to the model reaches no layer: rows carry lengths, not masks."""
    model = load_folder(model_folder("qwen3"))
    mask = torch.ones(1, len(TOKENS[0]), dtype=torch.int64)
    mask[0, 0 if padding == "left" else -1] = 0
    with torch.inference_mode():
        out = model.model(
            input_ids=torch.tensor(TOKENS), attention_mask=mask,
            position_ids=torch.arange(len(TOKENS[0]))[None], use_cache=False, vase_step=Causal(),
        )  # fmt: skip
    torch.testing.assert_close(out.logits[:, -1], logits(model))


@pytest.mark.parametrize("given", [{"sliding_window": 4}, {"softcap": 30.0}, {"s_aux": torch.zeros(4)}], ids=str)
def test_attention_of_another_kind_is_refused_with_its_layer(given: dict[str, object], model_folder: MakeFolder):
    from transformers import AttentionInterface

    model = load_folder(model_folder("qwen3"))
    layer, heads = model.model.model.layers[1].self_attn, torch.zeros(1, 4, 2, 16)
    attention = AttentionInterface()["vase"]
    with pytest.raises(ModelError, match=f"layer 1 of this model uses {next(iter(given))}, which the static cache"):
        attention(layer, heads, heads, heads, None, vase_step=Causal(), **given)
