"""Right decisions to match exactly: inputs and kept positions for every deterministic method.

``data/eviction.safetensors`` holds rotated states of some texts and, per case and method, the original
positions that each head holds after each cut, in text order.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vase_cli import plugins
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.randomness import SequenceNoise

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "eviction.json").read_text())


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return load_file(DATA / "eviction.safetensors")


def method_of(case: dict[str, Any], projection: torch.Tensor | None) -> EvictionPolicy:
    smooth = case.get("smooth", False)
    tag = case["tag"]
    if tag.startswith("snapkv"):
        return plugins.load("eviction", "snapkv")(smooth=smooth)
    if tag.startswith("rkv"):
        return plugins.load("eviction", "rkv")(smooth=smooth, attention_share=case["rkv_lambda"])
    if tag == "range_topk_attn":
        return plugins.load("eviction", "range-topk")(smooth=smooth, sinks=0)
    if tag == "evict_large_range":
        return plugins.load("eviction", "evict-large")()
    assert tag == "curdkv_fixed"

    @dataclass(frozen=True, kw_only=True)
    class GivenProjection(plugins.load("eviction", "curdkv")):
        def projection(self, view: CacheView) -> torch.Tensor:
            return projection

    return GivenProjection()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['case']}-{case['tag']}")
def test_kept_positions(case: dict[str, Any], tensors: dict[str, torch.Tensor]):
    queries, keys, values = (tensors[f"{case['case']}/{name}"].transpose(1, 2) for name in "qkv")
    expected = tensors[f"{case['case']}/{case['tag']}/kept_sorted"]
    projection = tensors.get(f"{case['case']}/{case['tag']}/P")
    method = method_of(case, None if projection is None else projection[:, 0])
    batch, tokens, heads, _ = keys.shape
    positions = torch.arange(tokens).expand(batch, heads, -1)
    items = torch.arange(batch)
    held = positions[..., :0]
    seen = 0
    for cut, text_tokens in enumerate(case["evicted_at_tokens"]):
        held = torch.cat((held, positions[..., seen:text_tokens]), dim=-1)
        seen = text_tokens
        wide = held.transpose(1, 2)[..., None]
        view = CacheView(
            keys=keys.gather(1, wide.expand(-1, -1, -1, keys.shape[-1])),
            values=values.gather(1, wide.expand(-1, -1, -1, values.shape[-1])),
            positions=held.int(),
            queries=queries[:, text_tokens - case["window"] : text_tokens],
            prompt_lens=torch.full((batch,), case["prompt_tokens"]),
            seq_lens=torch.full((batch,), text_tokens),
            budget=case["budget"],
            window=case["window"],
            noise=SequenceNoise(items, items),
        )
        kept, finite = method.select(view)
        assert finite.all()
        held = held.gather(-1, kept)
        assert torch.equal(held.int(), expected[cut]), f"cut at {text_tokens} tokens"
