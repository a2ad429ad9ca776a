"""Cache views of small shapes for eviction methods."""

import math
from dataclasses import replace

import torch

from vase_cli import plugins
from vase_cli.eviction.base import CacheView
from vase_cli.randomness import SequenceNoise

ITEMS, TOKENS, HEADS, GROUP, HEAD_DIM, WINDOW, BUDGET = 3, 40, 2, 3, 16, 8, 24


CANDIDATES, KEPT = TOKENS - WINDOW, BUDGET - WINDOW


EVICTING = [name for name in plugins.names("eviction") if plugins.load("eviction", name).evicts]


READS_STATES = sorted(set(EVICTING) - {"streaming", "random"})  # rows of those two are caught by their logits


def make_view(
    seed: int = 0, *, dtype: torch.dtype = torch.float32, prompt_tokens: int = 5, text_tokens: int = 100
) -> CacheView:
    generator = torch.Generator().manual_seed(seed)
    spaced = torch.stack(
        [torch.randperm(80, generator=generator)[: TOKENS - 4].sort().values + 4 for _ in range(ITEMS * HEADS)]
    )
    positions = torch.cat((torch.arange(4).expand(ITEMS * HEADS, 4), spaced), dim=1).view(ITEMS, HEADS, TOKENS)
    return CacheView(
        keys=torch.randn(ITEMS, TOKENS, HEADS, HEAD_DIM, generator=generator).to(dtype),
        values=torch.randn(ITEMS, TOKENS, HEADS, HEAD_DIM, generator=generator).to(dtype),
        positions=positions.int(),
        queries=torch.randn(ITEMS, WINDOW, HEADS * GROUP, HEAD_DIM, generator=generator).to(dtype),
        prompt_lens=torch.full((ITEMS,), prompt_tokens),
        seq_lens=torch.full((ITEMS,), text_tokens),
        budget=BUDGET,
        window=WINDOW,
        noise=SequenceNoise(torch.arange(ITEMS) + 1000, torch.arange(ITEMS)),
    )


def scattered(view: CacheView) -> CacheView:
    """The same items as rows 3, 0 and 4 of a larger storage, the candidates of each head in an order of their own."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([3, 0, 4])
    slots = torch.arange(TOKENS).repeat(5, HEADS, 1)
    for row in slots.view(-1, TOKENS):
        row[:CANDIDATES] = torch.randperm(CANDIDATES, generator=generator)
    stored = {"slot_mapping": slots.int(), "rows": rows}
    for name in ("keys", "values"):
        states = getattr(view, name)
        storage = torch.full((5, *states.shape[1:]), math.nan, dtype=states.dtype)
        for item, row in enumerate(rows):
            for head in range(HEADS):
                storage[row, slots[row, head], head] = states[item, :, head]
        stored[name] = storage
    for name in ("positions", "queries"):
        states = getattr(view, name)
        storage = torch.full((5, *states.shape[1:]), -1, dtype=states.dtype)
        storage[rows] = states
        stored[name] = storage
    return replace(view, **stored)
