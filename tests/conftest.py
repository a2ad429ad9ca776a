"""Tiny models of real architectures, written to folders and loaded through the product's own code."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for so small models more threads only wait for each other

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;?!+-*/=()[]{}\\$%^_'\"<>|&#@~`"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
END = ("<|end|>", "<|stop|>")


def write_tokenizer(folder: Path) -> int:
    """A character tokenizer with ``<think>`` tags and two end tokens; returns the vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: index for index, character in enumerate(["<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(["<think>", "</think>", "<|user|>", "<|assistant|>", "<|system|>"])
    tokenizer.add_special_tokens([AddedToken(end, special=True) for end in END])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END[0], unk_token="<unk>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def write_model(
    folder: Path, family: str, *, seed: int = 0, layers: int = 2, dtype: str = "float32", **changes: object
) -> Path:
    """A random model with sharp attention (large weights), so that what is cached matters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    size = write_tokenizer(folder)
    end = [size - 2, size - 1]
    shape: dict[str, object] = {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "eos_token_id": end,
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": True,
    }
    if family == "qwen3":
        shape["head_dim"] = 16
    config = AutoConfig.for_model(family, **(shape | changes))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3 if "proj" in name else 0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a tiny model's folder, once for each combination of arguments."""
    made: dict[str, Path] = {}

    def make(family: str = "qwen3", **changes: object) -> Path:
        key = f"{family} {sorted(changes.items())}"
        if key not in made:
            made[key] = write_model(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make
