"""The static cache against plain Python lists."""

import itertools

import pytest
import torch

from vase_cli.cache import CacheShape, StaticCache

CPU = torch.device("cpu")
SHAPE = CacheShape(layers=3, slots=4, tokens=11, kv_heads=2, head_dim=6, query_heads=4, query_window=3, element_bytes=4)
FIELDS = ("keys", "values", "positions", "lengths", "queries")


def filled(shape: CacheShape = SHAPE, dtype: torch.dtype = torch.float32) -> StaticCache:
    """A cache in which every number is another."""
    cache = StaticCache(shape, dtype, CPU)
    for offset, name in enumerate(FIELDS):
        tensor = getattr(cache, name)
        if tensor is not None:
            tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) + 0.125 * offset)
    return cache


def snapshot(cache: StaticCache) -> dict[str, torch.Tensor]:
    return {name: getattr(cache, name).clone() for name in FIELDS if getattr(cache, name) is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (3, 4, 11, 2, 6, 4), (2, 7, 64, 5, 16, 20)])
def test_bytes_are_known_before_anything_is_allocated(sizes: tuple[int, ...], window: int, dtype: torch.dtype):
    layers, slots, tokens, kv_heads, head_dim, query_heads = sizes
    shape = CacheShape(layers, slots, tokens, kv_heads, head_dim, query_heads, window, dtype.itemsize)
    held = snapshot(StaticCache(shape, dtype, CPU))
    assert ("queries" in held) == (window > 0)
    assert shape.bytes == sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    assert shape.kv_bytes == held["keys"].nbytes + held["values"].nbytes
    assert shape.bookkeeping_bytes == shape.bytes - shape.kv_bytes
    assert all(not tensor.any() for tensor in held.values())


@pytest.mark.parametrize(("first_layer", "layers"), [(0, 3), (1, 2), (2, 1)])
@pytest.mark.parametrize("kept", [1, 4, 10, 11])
def test_compact_keeps_the_chosen_slots_of_each_head_and_layer(kept: int, first_layer: int, layers: int):
    generator = torch.Generator().manual_seed(kept)
    cache = filled()
    before = snapshot(cache)
    chosen = torch.stack(
        [
            torch.stack([torch.randperm(11, generator=generator)[:kept].sort().values for _ in range(2)])
            for _ in range(layers)
        ]
    )
    row = 2
    cache.compact(first_layer, row, chosen)
    for layer, other in itertools.product(range(3), range(4)):
        if other != row or not first_layer <= layer < first_layer + layers:
            for name in ("keys", "values", "positions"):
                assert torch.equal(getattr(cache, name)[layer, other], before[name][layer, other])
            continue
        for head in range(2):
            for slot, source in enumerate(chosen[layer - first_layer, head].tolist()):
                for name in ("keys", "values", "positions"):
                    got = getattr(cache, name)[layer, row, slot, head].tolist()
                    assert got == before[name][layer, row, source, head].tolist()
    for name in ("lengths", "queries"):
        assert torch.equal(getattr(cache, name), before[name])


def test_compact_of_all_slots_changes_nothing():
    cache = filled()
    before = snapshot(cache)
    cache.compact(0, 1, torch.arange(11).expand(3, 2, 11))
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in before.items())


def test_write_fills_a_row_from_slot_0():
    cache = filled()
    before = snapshot(cache)
    keys, values = torch.randn(5, 2, 6), torch.randn(5, 2, 6)
    positions = torch.arange(10, dtype=torch.int32).view(5, 2)
    cache.write(1, 3, keys, values, positions)
    for name, given in (("keys", keys), ("values", values), ("positions", positions)):
        assert torch.equal(getattr(cache, name)[1, 3, :5], given)
        expected = before[name]
        expected[1, 3, :5] = given
        assert torch.equal(getattr(cache, name), expected)


def test_positions_are_marked_where_each_row_appends_next():
    cache = filled()
    lengths = [0, 10, 4, 7]
    cache.lengths.copy_(torch.tensor(lengths))
    expected = snapshot(cache)["positions"]
    for row, (slot, position) in enumerate(zip(lengths, (9000, 41, 4, 70), strict=True)):
        expected[:, row, slot] = position
    cache.mark_positions(torch.tensor([9000, 41, 4, 70]))
    assert cache.positions.dtype == torch.int32
    assert torch.equal(cache.positions, expected)


@pytest.mark.parametrize("prompt", [1, 2, 3, 8])
def test_the_ring_holds_the_last_queries_of_each_row(prompt: int):
    """Fed as a prefill and decode steps feed it; each row at its own place in its text."""
    cache = StaticCache(SHAPE, torch.float32, CPU)
    texts = torch.randn(4, 30, 3, 4, 6)  # row, position, layer, query head, head dim
    starts = [prompt + row for row in range(4)]
    for row, layer in itertools.product(range(4), range(3)):
        last = texts[row, : starts[row], layer][-3:]
        cache.write_queries(layer, row, last, starts[row] - last.shape[0])
    for step in range(9):
        positions = torch.tensor([start + step for start in starts])
        for row in range(4):
            for layer, back in itertools.product(range(3), range(3)):
                position = int(positions[row]) - 1 - back
                if position >= 0:
                    assert torch.equal(cache.queries[layer, row, position % 3], texts[row, position, layer])
        for layer in range(3):
            fed = torch.stack([texts[row, positions[row], layer] for row in range(4)])
            cache.keep_queries(layer, fed, positions)


def test_a_cache_without_a_ring_takes_no_queries():
    cache = filled(CacheShape(**(vars(SHAPE) | {"query_window": 0})))
    cache.keep_queries(0, torch.ones(4, 4, 6), torch.arange(4))
    cache.write_queries(0, 0, torch.ones(2, 4, 6), 0)
    assert cache.queries is None


def test_clear_zeroes_one_rows_states_and_leaves_the_others():
    cache = filled()
    cache.keys[1, 2, 3] = float("nan")
    cache.values[0, 2, 0] = float("inf")
    before = snapshot(cache)
    cache.clear(2)
    others = [0, 1, 3]
    for name in ("keys", "values", "queries"):
        tensor = getattr(cache, name)
        assert not tensor[:, 2].any() and tensor.isfinite().all()
        assert torch.equal(tensor[:, others], before[name][:, others])


def test_nothing_that_is_kept_moves_when_rows_are_used():
    """The buffers are allocated once: every operation writes in place."""
    cache = filled()
    places = {name: getattr(cache, name).data_ptr() for name in FIELDS}
    cache.lengths.zero_()
    cache.mark_positions(torch.arange(4))
    cache.keep_queries(0, torch.ones(4, 4, 6), torch.arange(4))
    cache.write(0, 0, torch.ones(2, 2, 6), torch.ones(2, 2, 6), torch.ones(2, 2, dtype=torch.int32))
    cache.compact(0, 0, torch.zeros(3, 2, 1, dtype=torch.int64))
    cache.clear(0)
    assert {name: getattr(cache, name).data_ptr() for name in FIELDS} == places
