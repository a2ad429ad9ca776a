"""The score kernels against float64 torch; letters as in ``vase_cli.kernels.scores``."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from vase_cli.randomness import SequenceNoise, stream_key
from vase_cli.randomness import uniform as torch_uniform

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
REASON = "needs a CUDA device, or TRITON_INTERPRET=1 with triton installed"

try:
    import triton
    import triton.language as tl

    from vase_cli.kernels import scores
    from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
except ImportError:
    pytest.skip(REASON, allow_module_level=True)

DEVICE = torch.device("cpu" if INTERPRETING else "cuda")
pytestmark = [
    pytest.mark.skipif(not INTERPRETING and not torch.cuda.is_available(), reason=REASON),
    # NumPy's, about the interpreter's own code and states that are not finite.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]
if not INTERPRETING:
    pytestmark.append(pytest.mark.gpu)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
STORAGE_ROWS, HEADS, RANK = 3, 2, 20
SHAPES = [(64, 37), (128, 75)] + ([] if INTERPRETING else [(16, 5), (128, 4096), (256, 1000), (128, 9001)])
KINDS = ["value_range", "leverage", "window_attention", "redundancy"]


@pytest.fixture(autouse=True)
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies matrices of bfloat16 as if their bits were integers: give it float32."""
    if not INTERPRETING:
        return
    from triton.runtime import interpreter

    def wide(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    dot = interpreter.InterpreterBuilder.create_dot
    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda builder, left, right, *rest: dot(builder, wide(left), wide(right), *rest),
    )


@dataclass
class Storage:
    """Random states of a few rows, and which of them, in which order, are the items."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    slots: Tensor | None
    rows: Tensor
    candidates: int
    projection: Tensor

    def run(self, kind: str, items: slice = slice(None), **options: object) -> Tensor:
        rows = self.rows[items]
        place = (rows, self.slots, self.candidates)
        if kind == "value_range":
            return scores.value_range(self.values, *place)
        if kind == "leverage":
            return scores.leverage(self.keys, self.values, *place, self.projection[items].contiguous(), **options)
        if kind == "window_attention":
            return scores.window_attention(self.queries, self.keys, *place, **options)
        return scores.redundancy(self.keys, *place)

    def candidates_of(self, states: Tensor) -> Tensor:
        """(N, H, C, D) float64, in text order."""
        per_head = states.transpose(1, 2).double()
        if self.slots is not None:
            index = self.slots.long()[..., None].expand(*self.slots.shape, states.shape[-1])
            per_head = per_head.gather(2, index)
        return per_head[self.rows, :, : self.candidates]

    def expected(self, kind: str) -> Tensor:
        keys, values = self.candidates_of(self.keys), self.candidates_of(self.values)
        if kind == "value_range":
            return values.amax(-1) - values.amin(-1)
        if kind == "leverage":
            projection = self.projection.double()[:, None]
            return (keys @ projection).square().sum(-1) * (values @ projection).square().sum(-1)
        if kind == "window_attention":
            queries = self.queries[self.rows].double().unflatten(2, (HEADS, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
            return torch.softmax(queries @ keys.transpose(-1, -2) / math.sqrt(keys.shape[-1]), dim=-1).mean(2)
        unit = keys / keys.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        similarity = unit @ unit.transpose(-1, -2)
        similarity = similarity.sum(-1) - similarity.diagonal(dim1=-2, dim2=-1)
        return torch.softmax(similarity / self.candidates, dim=-1)


def storage(
    dtype: torch.dtype, head_dim: int, candidates: int, *, group: int = 2, window: int = 7, indirect: bool = True
) -> Storage:
    generator = torch.Generator().manual_seed(head_dim + candidates + group)
    size = candidates + window

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    slots = torch.stack([torch.randperm(size, generator=generator) for _ in range(STORAGE_ROWS * HEADS)])
    return Storage(
        keys=normal(STORAGE_ROWS, size, HEADS, head_dim).to(dtype),
        values=normal(STORAGE_ROWS, size, HEADS, head_dim).to(dtype),
        queries=(3 * normal(STORAGE_ROWS, window, HEADS * group, head_dim)).to(dtype),
        slots=slots.view(STORAGE_ROWS, HEADS, size).int().to(DEVICE) if indirect else None,
        rows=torch.tensor([2, 0, 2], device=DEVICE),
        candidates=candidates,
        projection=normal(3, head_dim, RANK) / math.sqrt(RANK),
    )


def assert_close(actual: Tensor, expected: Tensor, relative: float) -> None:
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected, rtol=relative, atol=1e-12)


TOLERANCE = {"value_range": 1e-6, "leverage": 2e-5, "window_attention": 1e-4, "redundancy": 1e-5}
if INTERPRETING:
    TOLERANCE["leverage"] = 1e-4  # it cuts off the bits that bfloat16 should round


@pytest.mark.parametrize("indirect", [True, False], ids=["slots", "text order"])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize(("head_dim", "candidates"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_float64(
    kind: str, head_dim: int, candidates: int, dtype: torch.dtype, indirect: bool
) -> None:
    stored = storage(dtype, head_dim, candidates, indirect=indirect)
    assert_close(stored.run(kind), stored.expected(kind), TOLERANCE[kind])


@pytest.mark.parametrize(
    ("group", "window"), [(1, 1), (1, 9), (4, 16), (5, 13), (7, 3), (5, 32)] + ([] if INTERPRETING else [(8, 64)])
)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_attention_of_any_number_of_queries(dtype: torch.dtype, group: int, window: int) -> None:
    stored = storage(dtype, 64, 41, group=group, window=window)
    attention = stored.run("window_attention")
    assert_close(attention, stored.expected("window_attention"), TOLERANCE["window_attention"])
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("candidates", [64, 127])
@pytest.mark.parametrize(
    ("first", "second"),
    [((16, 16, 32), (16, 16, 32)), ((32, 64, 64), (16, 32, 64)), ((16, 32, 256), (32, 32, 32))],
)
def test_attention_in_parts_of_any_size(first: tuple[int, ...], second: tuple[int, ...], candidates: int) -> None:
    stored = storage(BF16, 16, candidates, group=3, window=11)
    tiles = scores.WindowTiles(scores.Tiles(*first, 4, 2), scores.Tiles(*second, 4, 2))
    assert_close(stored.run("window_attention", tiles=tiles), stored.expected("window_attention"), 1e-4)


@pytest.mark.parametrize("indirect", [True, False], ids=["slots", "text order"])
def test_log_sums_that_are_given_replace_the_first_pass(indirect: bool) -> None:
    group, window = 3, 50
    stored = storage(BF16, 64, 127, group=group, window=window, indirect=indirect)
    log_sums = torch.zeros(STORAGE_ROWS, window, HEADS * group, device=DEVICE)
    for row in range(STORAGE_ROWS):
        for head in range(HEADS):
            slots = torch.arange(127, device=DEVICE) if stored.slots is None else stored.slots[row, head, :127].long()
            keys = stored.keys[row, slots, head].double()
            members = slice(head * group, (head + 1) * group)
            scores = stored.queries[row, :, members].double() @ keys.T / math.sqrt(64)
            log_sums[row, :, members] = (scores.logsumexp(dim=-1) / math.log(2)).float()
    expected = stored.expected("window_attention")
    assert_close(stored.run("window_attention", log_sums=log_sums), expected, TOLERANCE["window_attention"])
    halved = stored.run("window_attention", log_sums=log_sums + 1.0)
    assert_close(halved, 0.5 * expected, TOLERANCE["window_attention"])


def test_attention_far_from_zero_does_not_overflow() -> None:
    stored = storage(BF16, 64, 37)
    stored.queries *= 60
    stored.keys[..., 0] += 90
    attention = stored.run("window_attention")
    torch.testing.assert_close(attention.double(), stored.expected("window_attention"), rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("candidates", [32, 61, 100])
def test_leverage_in_parts_of_any_size(candidates: int, pieces: int) -> None:
    stored = storage(BF16, 32, candidates)
    tiles = scores.LeverageTiles(16, 32, 4, 2, pieces)
    tolerance = TOLERANCE["leverage"] if pieces == 2 else 1e-5
    assert_close(stored.run("leverage", tiles=tiles), stored.expected("leverage"), tolerance)


@pytest.mark.parametrize("rank", [1, 16, 33, 64])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_leverage_of_any_rank(dtype: torch.dtype, rank: int) -> None:
    stored = storage(dtype, 64, 21)
    stored.projection = torch.randn(3, 64, rank, generator=torch.Generator().manual_seed(rank)).to(DEVICE)
    error = (stored.run("leverage").double() - stored.expected("leverage")).abs()
    assert (error / stored.expected("leverage").mean()).max() < 10 * TOLERANCE["leverage"]


def test_redundancy_over_several_parts_of_the_sum() -> None:
    stored = storage(BF16, 16, 1100)
    assert_close(stored.run("redundancy"), stored.expected("redundancy"), TOLERANCE["redundancy"])


def test_redundancy_of_a_zero_key() -> None:
    stored = storage(FP32, 16, 37)
    stored.keys[:, 3] = 0.0
    assert_close(stored.run("redundancy"), stored.expected("redundancy"), TOLERANCE["redundancy"])


@pytest.mark.parametrize("kind", KINDS)
def test_states_may_be_strided(kind: str) -> None:
    stored = storage(BF16, 64, 37)
    dense = stored.run(kind)
    for name in ("keys", "values"):
        head_first = getattr(stored, name).transpose(1, 2).contiguous().transpose(1, 2)
        setattr(stored, name, head_first)
    stored.queries = torch.cat((stored.queries, stored.queries), dim=1)[:, 7:]
    assert torch.equal(stored.run(kind), dense)


@pytest.mark.parametrize("indirect", [True, False], ids=["slots", "text order"])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_item_alone_has_the_same_bits(kind: str, dtype: torch.dtype, indirect: bool) -> None:
    head_dim, candidates = (64, 150) if INTERPRETING else (128, 4001)
    stored = storage(dtype, head_dim, candidates, indirect=indirect)
    together = stored.run(kind)
    for item in range(3):
        assert torch.equal(stored.run(kind, slice(item, item + 1))[0], together[item])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("slot", [0, 20, 36])
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("value_range", ["values"]),
        ("leverage", ["keys", "values"]),
        ("window_attention", ["keys", "queries"]),
        ("redundancy", ["keys"]),
    ],
)
def test_states_that_are_not_finite_show_in_their_head_only(kind: str, names: list[str], slot: int, bad: float) -> None:
    clean = storage(BF16, 64, 37, group=1, indirect=False).run(kind)
    for name in names:
        stored = storage(BF16, 64, 37, group=1, indirect=False)
        getattr(stored, name)[0, min(slot, 6) if name == "queries" else slot, 1, 5] = bad
        found = stored.run(kind)
        assert found[1, 1].isnan().any()
        assert not found.isinf().any()
        if kind in ("value_range", "leverage"):
            assert found[1, 1].isnan().nonzero().tolist() == [[slot]]
        for item, head in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1)):
            assert torch.equal(found[item, head], clean[item, head])


def test_a_key_that_no_query_would_attend_to_shows() -> None:
    stored = storage(FP32, 16, 37, group=1, window=32, indirect=False)  # as many queries as a tile has
    stored.queries.fill_(1.0)
    stored.keys[2, 7, 1, 3] = -math.inf
    found = stored.run("window_attention")
    assert found[0, 1, 7].isnan()
    assert found[1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_do_not_enter_may_be_anything(kind: str) -> None:
    stored = storage(BF16, 64, 37, indirect=False)
    clean = stored.run(kind)
    stored.keys[:, 37:] = math.nan
    stored.values[:, 37:] = math.inf
    stored.keys[1], stored.values[1], stored.queries[1] = math.nan, math.nan, math.nan
    assert torch.equal(stored.run(kind), clean)


def test_finite_states_whose_score_overflows_are_nan() -> None:
    stored = storage(FP32, 16, 37, indirect=False)
    stored.values[2, 3, 0, :2] = torch.tensor([3e38, -3e38])
    assert stored.run("value_range")[0].isnan().nonzero().tolist() == [[0, 3]]
    stored.values[2, 3, 0] = 1e30
    assert stored.run("leverage")[0].isnan().nonzero().tolist() == [[0, 3]]


@triton.jit
def _uniforms(keys, layers, text_tokens, positions, heads, out, count: tl.constexpr):
    at = tl.arange(0, count)
    state = mixed(tl.load(keys + at).to(tl.uint64))
    state = counted(state, tl.load(layers + at))
    state = counted(state, tl.load(text_tokens + at))
    state = counted(state, tl.load(heads + at))
    tl.store(out + at, uniform(counted(state, tl.load(positions + at))))


@pytest.fixture
def counters() -> Callable[[int], list[Tensor]]:
    def make(count: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(5)
        keys = torch.tensor([stream_key(3, f"p{index}", index, "eviction") for index in range(count)])
        small = [torch.randint(0, limit, (count,), generator=generator) for limit in (64, 40_000, 32_768, 8)]
        return [counter.to(DEVICE) for counter in (keys, *small)]

    return make


def test_uniform_numbers_have_the_bits_of_the_twin(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, positions, heads = counters(4096)
    found = torch.empty(4096, device=DEVICE)
    _uniforms[(1,)](keys, layers, text_tokens, positions.int(), heads.int(), found, count=4096)
    assert torch.equal(found, torch_uniform(keys, layers, text_tokens, heads, positions))


@pytest.mark.parametrize("of_this_cut", [True, False])
def test_numbers_of_a_sequence_have_the_bits_of_the_twin(
    of_this_cut: bool, counters: Callable[[int], list[Tensor]]
) -> None:
    keys, layers, text_tokens, *_ = counters(5)
    found = scores.sequence_uniforms(keys, layers, text_tokens if of_this_cut else None, 2560)
    middle = [text_tokens[:, None]] if of_this_cut else []
    expected = torch_uniform(keys[:, None], layers[:, None], *middle, torch.arange(2560, device=DEVICE))
    assert torch.equal(found, expected)


@triton.jit
def _uniforms_of(states, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, uniform(tl.load(states + at).to(tl.uint64)))


def test_uniform_numbers_stay_inside_their_range() -> None:
    found = torch.empty(2, device=DEVICE)
    _uniforms_of[(1,)](torch.tensor([-1, 0], device=DEVICE), found, count=2)
    assert found.tolist() == [1 - 2.0**-24, 2.0**-33]


@pytest.mark.parametrize("candidates", [1, 1000, 2049])
def test_noise_is_that_of_the_sequence(candidates: int, counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(3)
    rows = torch.tensor([4, 0, 4], device=DEVICE)
    generator = torch.Generator().manual_seed(candidates)
    positions = torch.randint(0, 40_000, (5, HEADS, candidates + 7), generator=generator).int().to(DEVICE)
    found = scores.token_gumbel(keys, layers, text_tokens, positions, rows, candidates)
    heads = torch.arange(HEADS, device=DEVICE)[None, :, None]
    place = positions[rows, :, :candidates].long()
    uniforms = torch_uniform(keys[:, None, None], layers[:, None, None], text_tokens[:, None, None], heads, place)
    expected = -(-torch.log1p(-uniforms.double())).log()
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=5e-7)
    twin = SequenceNoise(keys, layers).gumbel(text_tokens[:, None, None], heads, place)
    torch.testing.assert_close(found, twin, rtol=1e-6, atol=1e-6)
    alone = scores.token_gumbel(keys[1:2], layers[1:2], text_tokens[1:2], positions, rows[1:2], candidates)
    assert torch.equal(alone[0], found[1])


@triton.jit
def _gumbels(uniforms, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, gumbel(tl.load(uniforms + at)))


def test_noise_is_precise_for_the_smallest_and_largest_uniform_numbers() -> None:
    small = 2.0 ** torch.linspace(-33, -1, 3000)
    uniforms = torch.cat((small, 1 - small[small > 2**-20], torch.tensor([1 - 2.0**-24, 2.0**-33])))
    uniforms = torch.nn.functional.pad(uniforms, (0, 8192 - uniforms.numel()), value=0.5).to(DEVICE)
    found = torch.empty_like(uniforms)
    _gumbels[(1,)](uniforms, found, count=8192)
    expected = -(-torch.log1p(-uniforms.double())).log()
    torch.testing.assert_close(found.double(), expected, rtol=5e-7, atol=5e-7)


def test_positions_may_be_expanded(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(2)
    rows = torch.tensor([1, 0], device=DEVICE)
    row = torch.arange(50, dtype=torch.int32, device=DEVICE)
    expanded = scores.token_gumbel(keys, layers, text_tokens, row.expand(2, HEADS, 50), rows, 43)
    dense = scores.token_gumbel(keys, layers, text_tokens, row.repeat(2, HEADS, 1), rows, 43)
    assert torch.equal(expanded, dense)


def test_noise_takes_the_logarithms_of_weights_along(counters: Callable[[int], list[Tensor]]) -> None:
    keys, layers, text_tokens, *_ = counters(3)
    positions = torch.arange(90, dtype=torch.int32, device=DEVICE).repeat(3, 2, 1)
    rows = torch.tensor([1, 0, 2], device=DEVICE)
    weights = torch.rand(3, 2, 70, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    weights[0, 0, :3] = torch.tensor([0.0, 1e-40, math.nan])
    noise = SequenceNoise(keys, layers)
    found = noise.token_gumbel(text_tokens, positions, rows, 70, weights)
    expected = noise.token_gumbel(text_tokens, positions, rows, 70) + weights.clamp_min(1e-37).log()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-6, equal_nan=True)
    assert found[0, 0, 2].isnan() and found.isnan().sum() == 1


@pytest.mark.parametrize("candidates", [5, 1024, 1500])
def test_protected_scores_are_infinite_unless_they_are_no_numbers(candidates: int) -> None:
    scored = torch.randn(2, 3, candidates, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    checked, mask = scored.flip(0).clone(), (scored > 0.5).to(DEVICE)
    mask[..., :3] = True
    scored[0, 1, 1] = math.nan
    checked[1, 2, 2] = math.nan
    for other in (None, checked):
        expected = scored if other is None else scored + 0.0 * other
        expected = torch.where(mask & ~expected.isnan(), math.inf, expected)
        assert torch.equal(scores.protect(scored, mask, other).nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    positions = (torch.arange(candidates + 9, dtype=torch.int32, device=DEVICE) * 2).repeat(4, 3, 1)
    rows = torch.tensor([3, 1], device=DEVICE)
    expected = scored.clone()
    expected[..., :2] = math.inf  # positions 0 and 2
    expected[0, 1, 1] = math.nan
    found = scores.protect_sinks(scored, positions, rows, 4)
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


@pytest.mark.parametrize("candidates", [150, 1100])
@pytest.mark.parametrize("indirect", [True, False], ids=["slots", "text order"])
def test_value_ranges_that_are_known_are_not_read_again(indirect: bool, candidates: int) -> None:
    """Known ones are taken as they are, but for the newest candidates; what is found is noted by storage slot."""
    stored = storage(BF16, 64, candidates, indirect=indirect)
    stored.rows = torch.tensor([2, 0], device=DEVICE)
    expected = stored.run("value_range")
    size = stored.values.shape[1]
    known = torch.full((STORAGE_ROWS, HEADS, size), -1.0, device=DEVICE)
    ask = {"known": known, "newest": 7}
    assert torch.equal(scores.value_range(stored.values, stored.rows, stored.slots, candidates, **ask), expected)
    slots = torch.arange(size, device=DEVICE).repeat(STORAGE_ROWS, HEADS, 1) if stored.slots is None else stored.slots
    for item, row in enumerate(stored.rows.tolist()):
        assert torch.equal(known[row].gather(-1, slots[row, :, :candidates].long()), expected[item])
    assert (known[1] == -1.0).all() and (known[2] == -1.0).sum() == HEADS * (size - candidates)
    changed = torch.full_like(stored.values, math.nan)
    changed[..., :3] = 0.0
    again = scores.value_range(changed, stored.rows, stored.slots, candidates, **ask)
    assert torch.equal(again[..., : candidates - 7], expected[..., : candidates - 7])
    assert again[..., candidates - 7 :].isnan().all()


@pytest.mark.parametrize("candidates", [150, 1100])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_what_is_unknown_among_known_value_ranges_is_read(dtype: torch.dtype, candidates: int) -> None:
    """Holes anywhere, so that tiles hold both kinds; the states of the known ones are not looked at."""
    stored = storage(dtype, 128, candidates, indirect=True)
    stored.rows = torch.tensor([2, 0], device=DEVICE)
    assert stored.slots is not None
    expected = stored.run("value_range")
    generator = torch.Generator().manual_seed(0)
    unknown = (torch.rand(expected.shape, generator=generator) < 0.05).to(DEVICE)
    at = stored.slots[stored.rows][..., :candidates].long()
    known = torch.full((STORAGE_ROWS, HEADS, stored.values.shape[1]), -1.0, device=DEVICE)
    known[stored.rows] = known[stored.rows].scatter(-1, at, expected.masked_fill(unknown, -1.0))
    read = unknown.clone()
    read[..., candidates - 7 :] = True
    by_slot = torch.zeros_like(known[stored.rows], dtype=torch.bool).scatter(-1, at, read)
    values = stored.values.clone()
    values[stored.rows] = values[stored.rows].masked_fill(~by_slot.transpose(1, 2)[..., None], torch.nan)
    got = scores.value_range(values, stored.rows, stored.slots, candidates, known=known, newest=7)
    assert torch.equal(got, expected)
    assert torch.equal(known[stored.rows].gather(-1, at), expected)
