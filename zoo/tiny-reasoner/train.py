"""Trains the embedded reasoner from nothing, with the full cache, and writes its whole folder.

    python zoo/tiny-reasoner/train.py --out FOLDER

One run on one GPU; every number comes from the seed. ``--device cpu --steps 20 --rows 4 --problems 4`` is a try-out.
Letters: R rows of a step (one problem each), T tokens of a row.
"""
# ruff: noqa: TID251, TID253

import argparse
import json
import math
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import measure
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from vase_cli.tasks.recurrence import draw

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
THOUGHT = ("<think>", "</think>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|' + message.role + '|>' + content }}
    {%- if message.role == 'assistant' %}{{- '<|end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

ROW_TOKENS = 736  # no problem needs more
PEAK_LEARNING_RATE = 2e-3
WARMUP_STEPS = 200


def write_tokenizer(folder: Path) -> None:
    """One token for each printable ASCII character, ``<think>``, ``</think>``, each role and the end."""
    special = [PAD, END, UNKNOWN, *ROLES]
    words = [*special, *THOUGHT, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    # A thought's tags are text: they stay when special tokens are left out.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THOUGHT])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def make_config(tokenizer: PreTrainedTokenizerBase) -> Qwen3Config:
    """4 million parameters, 7.9 MB in bfloat16; head dim 64 is what every build of FlashAttention serves."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


class Rows(Dataset[Tensor]):
    """Item i is step i: (2, R, T) int16, the tokens and what is to be predicted after each (-100: nothing)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, steps: int, rows: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._steps = steps
        self._rows = rows

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Tensor:
        rng = random.Random(f"train {self._seed} {step}")
        tokens = torch.full((self._rows, ROW_TOKENS), self._tokenizer.pad_token_id, dtype=torch.int16)
        targets = torch.full((self._rows, ROW_TOKENS), -100, dtype=torch.int16)
        for row in range(self._rows):
            problem = draw(rng, held_out=False)
            prompt = self._ids(chat_prompt(self._tokenizer, problem.question))
            text = torch.tensor([*prompt, *self._ids(problem.solution + END)], dtype=torch.int16)
            tokens[row, : len(text)] = text
            targets[row, len(prompt) - 1 : len(text) - 1] = text[len(prompt) :]
        return torch.stack((tokens, targets))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def chat_prompt(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    """The text a model is given for a question."""
    messages = [{"role": "user", "content": question}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def causal_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Padding stands on the right and is never a target, so plain causal attention needs no mask."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # the norms of both return float32 under autocast
    out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def learning_rate(step: int, steps: int) -> float:
    """A share of the peak: a linear warm-up, then half a cosine to zero."""
    warmup = min(WARMUP_STEPS, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(
    tokenizer: PreTrainedTokenizerBase, *, seed: int, steps: int, rows: int, device: torch.device
) -> tuple[Qwen3ForCausalLM, float]:
    """The trained model and the mean loss of the last 100 steps."""
    AttentionInterface.register("causal", causal_attention)
    AttentionMaskInterface.register("causal", lambda *args, **kwargs: None)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM._from_config(make_config(tokenizer), attn_implementation="causal").to(device)
    cuda = device.type == "cuda"
    forward = torch.compile(model) if cuda else model
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=PEAK_LEARNING_RATE,
        betas=(0.9, 0.95),
        fused=cuda,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(learning_rate, steps=steps))
    workers = max(1, min(14, (os.cpu_count() or 2) - 2)) if cuda else 0
    batches = DataLoader(
        Rows(tokenizer, seed, steps, rows), batch_size=None, num_workers=workers, pin_memory=cuda,
        prefetch_factor=8 if workers else None,
    )  # fmt: skip
    recent: list[Tensor] = []
    started = time.perf_counter()
    for step, batch in enumerate(batches):
        tokens, targets = batch.to(device, non_blocking=True).long()
        with torch.autocast(device.type, torch.bfloat16):
            logits = forward(input_ids=tokens, use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        recent = [*recent[-99:], loss.detach()]
        if step % 250 == 0 or step == steps - 1:
            mean = torch.stack(recent).mean().item()
            print(f"step {step:5} loss {mean:.5f} {time.perf_counter() - started:6.1f} s", flush=True)
    return model, torch.stack(recent).mean().item()


def main() -> None:
    """Train, save, check, and say what it took in one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write: weights, config, tokenizer")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the training problems")
    parser.add_argument("--steps", type=int, default=6_500)
    parser.add_argument("--rows", type=int, default=192, help="problems of one step")
    parser.add_argument("--problems", type=int, default=256, help="test problems of the check at the end")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    started = time.perf_counter()
    device = torch.device(given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(given.out)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given.out)
    model, loss = train(tokenizer, seed=given.seed, steps=given.steps, rows=given.rows, device=device)
    trained_s = time.perf_counter() - started
    model.to(torch.bfloat16).save_pretrained(given.out)
    check = measure.run(measure.Job("full"), folder=given.out, problems=given.problems, device=given.device)
    result = {
        "seed": given.seed,
        "steps": given.steps,
        "tokens": given.steps * given.rows * ROW_TOKENS,
        "loss": round(loss, 6),
        "train_s": round(trained_s, 1),
        "total_s": round(time.perf_counter() - started, 1),
        **{key: check[key] for key in ("accuracy", "problems", "mean_completion_tokens")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
