"""Small static caches filled with known numbers."""

import torch

from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.kernels.ops import TorchOps

CPU = torch.device("cpu")


SHAPE = CacheShape(
    layers=3, max_num_seqs=4, tokens=11, kv_heads=2, head_dim=6, query_heads=4, query_window=3, element_bytes=4
)


FIELDS = ("keys", "values", "slot_mapping", "positions", "lengths", "queries")


def filled(shape: CacheShape = SHAPE, dtype: torch.dtype = torch.float32) -> StaticCache:
    """A cache in which every number is another."""
    cache = StaticCache(shape, dtype, CPU, TorchOps())
    for offset, name in enumerate(FIELDS):
        tensor = getattr(cache, name)
        if tensor is not None:
            tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) + 0.125 * offset)
    return cache


def snapshot(cache: StaticCache) -> dict[str, torch.Tensor]:
    return {name: getattr(cache, name).clone() for name in FIELDS if getattr(cache, name) is not None}


def stored_anyhow(shape: CacheShape, window: int, seed: int = 0) -> StaticCache:
    """A filled cache of full rows: candidates stand in any order, the window behind them; positions ascend."""
    generator = torch.Generator().manual_seed(seed)
    cache = filled(shape)
    for slots, positions in zip(
        cache.slot_mapping.view(-1, shape.tokens), cache.positions.view(-1, shape.tokens), strict=True
    ):
        slots.copy_(torch.arange(shape.tokens))
        slots[:-window] = torch.randperm(shape.tokens - window, generator=generator)
        positions.copy_(torch.randperm(3 * shape.tokens, generator=generator)[: shape.tokens].sort().values)
    return cache
