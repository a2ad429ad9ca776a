"""The static cache against plain Python lists."""

import itertools
from dataclasses import replace

import pytest
import torch
from helpers.caches import CPU, FIELDS, SHAPE, filled, snapshot, stored_anyhow

from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.errors import ConfigError
from vase_cli.kernels.ops import TorchOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (3, 4, 11, 2, 6, 4), (2, 7, 64, 5, 16, 20)])
def test_bytes_are_known_before_anything_is_allocated(sizes: tuple[int, ...], window: int, dtype: torch.dtype):
    layers, slots, tokens, kv_heads, head_dim, query_heads = sizes
    shape = CacheShape(layers, slots, tokens, kv_heads, head_dim, query_heads, window, dtype.itemsize)
    held = snapshot(StaticCache(shape, dtype, CPU, TorchOps()))
    assert ("queries" in held) == (window > 0)
    assert shape.bytes == sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    assert shape.kv_bytes == held["keys"].nbytes + held["values"].nbytes
    assert shape.bookkeeping_bytes == shape.bytes - shape.kv_bytes
    text_order = torch.arange(tokens, dtype=torch.int32).expand(layers, slots, kv_heads, tokens)
    assert torch.equal(held.pop("slot_mapping"), text_order) and torch.equal(held.pop("positions"), text_order)
    assert all(not tensor.any() for tensor in held.values())


@pytest.mark.parametrize("named", [None, 0.3, 0.9])
@pytest.mark.parametrize(("budget", "window"), [(6, 5), (10, 1), (7, 4)])
def test_evict_keeps_the_best_where_they_stand_and_moves_the_window_into_the_holes(
    budget: int, window: int, named: float | None
):
    """Against lists: for each head the (position, slot) of its tokens in text order, and what stands in each slot."""
    generator = torch.Generator().manual_seed(budget)
    cache = stored_anyhow(SHAPE, window)
    before = snapshot(cache)
    places = [(1, 2), (0, 2), (2, 0)]  # layer, row
    rows = torch.tensor([layer * SHAPE.max_num_seqs + row for layer, row in places])
    text_tokens = torch.tensor([70, 71, 90])
    scores = torch.randn(3, 2, budget, generator=generator).round(decimals=0)
    must_keep = None if named is None else torch.rand(3, 2, budget, generator=generator) < named
    assert cache.evict(scores, must_keep, rows, text_tokens).tolist() == [True, True, True]
    for layer, row, head in itertools.product(range(3), range(4), range(2)):
        old = {name: before[name][layer, row] for name in FIELDS[:4]}
        new = {name: getattr(cache, name)[layer, row] for name in FIELDS[:4]}
        if (layer, row) not in places:
            assert all(torch.equal(new[name], tensor) for name, tensor in old.items())
            continue
        item = places.index((layer, row))
        head_scores = scores[item, head].tolist()
        named_first = [False] * budget if must_keep is None else must_keep[item, head].tolist()
        order = sorted(range(budget), key=lambda token: (not named_first[token], -head_scores[token], token))
        kept, gone = sorted(order[: budget - window]), sorted(order[budget - window :])
        slots, end = old["slot_mapping"][head].tolist(), int(text_tokens[item])
        holes = [slots[token] for token in gone]
        assert new["slot_mapping"][head].tolist() == [slots[t] for t in kept] + holes + list(
            range(budget, budget + window)
        )
        assert new["positions"][head].tolist() == [old["positions"][head, token].item() for token in kept] + list(
            range(end - window, end + window)
        )
        for name in ("keys", "values"):
            expected = old[name][:, head].clone()
            expected[holes] = old[name][budget:, head]
            assert torch.equal(new[name][:budget, head], expected[:budget])
    for name in ("lengths", "queries"):
        assert torch.equal(getattr(cache, name), before[name])


def test_append_writes_behind_each_active_row_and_leaves_idle_rows_as_they_are():
    cache = filled()
    lengths, active = [0, 10, 4, 7], [1, 1, 0, 1]
    cache.lengths.copy_(torch.tensor(lengths))
    expected = snapshot(cache)
    keys, values = torch.randn(4, 2, 6), torch.randn(4, 2, 6)
    for row in (0, 1, 3):
        expected["keys"][1, row, lengths[row]] = keys[row]
        expected["values"][1, row, lengths[row]] = values[row]
    keys[2] = values[2] = float("nan")
    cache.append(1, keys, values, torch.tensor(active, dtype=torch.int32))
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in expected.items())


def test_an_idle_row_may_be_full():
    cache = filled()
    cache.lengths.fill_(SHAPE.tokens)
    before = snapshot(cache)
    cache.append(0, torch.ones(4, 2, 6), torch.ones(4, 2, 6), torch.zeros(4, dtype=torch.int32))
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in before.items())


def test_write_fills_a_row_from_slot_0():
    cache = filled()
    expected = snapshot(cache)
    keys, values = torch.randn(5, 2, 6), torch.randn(5, 2, 6)
    cache.write(slice(1, 2), 3, keys[None], values[None])
    expected["keys"][1, 3, :5] = keys
    expected["values"][1, 3, :5] = values
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in expected.items())


def test_slots_of_several_rows_are_filled_at_a_time():
    cache = filled()
    expected = snapshot(cache)
    keys, values = torch.randn(8, 2, 6), torch.randn(8, 2, 6)
    slots = [*cache.slots(3, 5), *cache.slots(0, 3)]
    cache.write_slots(1, torch.tensor(slots), keys, values)
    for name, states in (("keys", keys), ("values", values)):
        expected[name][1, 3, :5] = states[:5]
        expected[name][1, 0, :3] = states[5:]
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in expected.items())


def test_written_positions_are_followed_by_those_to_come():
    cache = filled()
    expected = snapshot(cache)
    positions = torch.tensor([[0, 3, 8], [1, 2, 9]], dtype=torch.int32)
    expected["positions"][1, 3, :, :3] = positions
    expected["positions"][1, 3, :, 3:] = torch.arange(40, 48)
    cache.write_positions(slice(1, 2), 3, positions[None], 40)
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in expected.items())


def test_reset_puts_one_row_into_text_order():
    cache = filled()
    expected = snapshot(cache)
    for name in ("slot_mapping", "positions"):
        expected[name][:, 2] = torch.arange(11)
    cache.reset(torch.tensor([2]))
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("prompt", [1, 2, 3, 8])
def test_the_ring_holds_the_last_queries_of_each_row(prompt: int):
    """Fed as a prefill and decode steps feed it; each row at its own place in its text."""
    cache = StaticCache(SHAPE, torch.float32, CPU, TorchOps())
    texts = torch.randn(4, 30, 3, 4, 6)  # row, position, layer, query head, head dim
    starts = [prompt + row for row in range(4)]
    for row, layer in itertools.product(range(4), range(3)):
        last = texts[row, : starts[row], layer][-3:]
        places = [cache.ring_place(row, position) for position in range(starts[row])[-3:]]
        cache.write_queries(layer, torch.tensor(places), last)
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
    cache.write_queries(0, torch.arange(2), torch.ones(2, 4, 6))
    assert cache.queries is None


RAGGED = replace(SHAPE, query_window=0, cut=False, tokens=7, row_tokens=(7, 5, 5, 1))


def test_rows_of_different_lengths_stand_behind_each_other_and_take_what_they_hold():
    cache = StaticCache(RAGGED, torch.float32, CPU, TorchOps())
    assert cache.keys.shape == cache.values.shape == (3, 18, 2, 6)
    assert cache.row_starts is not None and cache.row_starts.tolist() == [0, 7, 12, 17, 18]
    held = [cache.keys, cache.values, cache.lengths, cache.row_starts, cache.slot_mapping, cache.positions]
    assert RAGGED.bytes == sum({part.data_ptr(): part.untyped_storage().nbytes() for part in held}.values())
    assert RAGGED.kv_bytes == cache.keys.nbytes + cache.values.nbytes == 18 * RAGGED.token_bytes
    uniform = StaticCache(replace(RAGGED, row_tokens=None), torch.float32, CPU, TorchOps())
    for row, tokens in ((2, 5), (0, 6), (3, 1)):
        keys, values = torch.randn(3, tokens, 2, 6), torch.randn(3, tokens, 2, 6)
        for one in (cache, uniform):
            one.reset(torch.tensor([row]))
            one.write(slice(0, 3), row, keys, values)
    active, new = torch.tensor([1, 1, 0, 0], dtype=torch.int32), torch.randn(2, 4, 2, 6)
    for one in (cache, uniform):
        one.lengths.copy_(torch.tensor([6, 0, 5, 1]))
        one.append(1, *new, active)
    for row, tokens in enumerate(RAGGED.row_tokens or ()):
        for got, expected in zip(cache.states(row), uniform.states(row), strict=True):
            assert torch.equal(got, expected[:, :tokens])
        assert torch.equal(cache.positions[1, row, 0], torch.arange(7))


def test_a_row_among_others_of_different_lengths_is_cleared_alone():
    cache = StaticCache(RAGGED, torch.float32, CPU, TorchOps())
    cache.keys.fill_(1.0)
    cache.values.fill_(2.0)
    cache.values[2, 13] = torch.nan
    assert [cache.first_bad_layer(row, 1) for row in range(4)] == [3, 3, 3, 3]
    assert cache.first_bad_layer(2, 2) == 2
    cache.clear(2)
    for states in (cache.keys, cache.values):
        assert not states[:, 12:17].any() and states[:, :12].all() and states[:, 17:].all()


def test_a_row_takes_no_text_longer_than_itself():
    for row, tokens in enumerate((7, 5, 5, 1)):
        assert RAGGED.holds(row, tokens) and not RAGGED.holds(row, tokens + 1)
    assert SHAPE.holds(3, 11) and not SHAPE.holds(3, 12)
    for shape, longest in ((RAGGED, 7), (SHAPE, 11)):
        shape.check(longest)
        with pytest.raises(
            ConfigError, match=f"may come to {longest + 1} tokens, and the longest row holds {longest};"
        ):
            shape.check(longest + 1)


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
    cache.keep_queries(0, torch.ones(4, 4, 6), torch.arange(4))
    cache.append(0, torch.ones(4, 2, 6), torch.ones(4, 2, 6), torch.ones(4, dtype=torch.int32))
    cache.write(slice(0, 1), 0, torch.ones(1, 2, 2, 6), torch.ones(1, 2, 2, 6))
    cache.write_positions(slice(0, 1), 0, torch.ones(1, 2, 2, dtype=torch.int32), 2)
    cache.reset(torch.tensor([0]))
    cache.evict(torch.ones(1, 2, 8), None, torch.tensor([0]), torch.tensor([11]))
    cache.clear(0)
    assert {name: getattr(cache, name).data_ptr() for name in FIELDS} == places
