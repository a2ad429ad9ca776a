"""The kernels that score states against float64 torch; shapes as in ``vase_cli.kernels._candidates``."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers.kernels import DEVICE, INTERPRETING, MARKS, REASON
from torch import Tensor

try:
    import triton.language as tl

    from vase_cli.kernels import state_scores, window_attention
except ImportError:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = MARKS

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
    slot_mapping: Tensor | None
    rows: Tensor
    candidates: int
    projection: Tensor

    def run(self, kind: str, items: slice = slice(None), **options: object) -> Tensor:
        rows = self.rows[items]
        place = (rows, self.slot_mapping, self.candidates)
        if kind == "value_range":
            return state_scores.value_range(self.values, *place)
        if kind == "leverage":
            return state_scores.leverage(self.keys, self.values, *place, self.projection[items].contiguous())
        if kind == "window_attention":
            return window_attention.window_attention(self.queries, self.keys, *place, **options)
        return state_scores.redundancy(self.keys, *place)

    def slots(self) -> Tensor:
        """(R, H, S), where each token stands."""
        if self.slot_mapping is not None:
            return self.slot_mapping
        return torch.arange(self.keys.shape[1], device=DEVICE).repeat(STORAGE_ROWS, HEADS, 1)

    def candidates_of(self, states: Tensor) -> Tensor:
        """(N, H, C, D) float64, in text order."""
        per_head = states.transpose(1, 2).double()
        if self.slot_mapping is not None:
            index = self.slot_mapping.long()[..., None].expand(*self.slot_mapping.shape, states.shape[-1])
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
        slot_mapping=slots.view(STORAGE_ROWS, HEADS, size).int().to(DEVICE) if indirect else None,
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


def test_attention_over_several_parts_of_the_candidates_and_of_the_queries() -> None:
    stored = storage(BF16, 16, 2100, group=3, window=50)
    assert_close(stored.run("window_attention"), stored.expected("window_attention"), TOLERANCE["window_attention"])


@pytest.mark.parametrize("indirect", [True, False], ids=["slots", "text order"])
def test_log_sums_that_are_given_replace_the_first_pass(indirect: bool) -> None:
    group, window = 3, 50
    stored = storage(BF16, 64, 127, group=group, window=window, indirect=indirect)
    lse = torch.zeros(STORAGE_ROWS, window, HEADS * group, device=DEVICE)
    for row in range(STORAGE_ROWS):
        for head in range(HEADS):
            slots = stored.slots()[row, head, :127].long()
            keys = stored.keys[row, slots, head].double()
            members = slice(head * group, (head + 1) * group)
            scores = stored.queries[row, :, members].double() @ keys.T / math.sqrt(64)
            lse[row, :, members] = (scores.logsumexp(dim=-1) / math.log(2)).float()
    expected = stored.expected("window_attention")
    assert_close(stored.run("window_attention", lse=lse), expected, TOLERANCE["window_attention"])
    halved = stored.run("window_attention", lse=lse + 1.0)
    assert_close(halved, 0.5 * expected, TOLERANCE["window_attention"])


def test_attention_far_from_zero_does_not_overflow() -> None:
    stored = storage(BF16, 64, 37)
    stored.queries *= 60
    stored.keys[..., 0] += 90
    attention = stored.run("window_attention")
    torch.testing.assert_close(attention.double(), stored.expected("window_attention"), rtol=5e-3, atol=1e-6)


def test_leverage_over_several_parts_of_the_candidates() -> None:
    stored = storage(BF16, 32, 1100)
    assert_close(stored.run("leverage"), stored.expected("leverage"), TOLERANCE["leverage"])


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
    place, slots = (stored.rows, stored.slot_mapping, candidates), stored.slots()
    assert torch.equal(state_scores.value_range(stored.values, *place, **ask), expected)
    for item, row in enumerate(stored.rows.tolist()):
        assert torch.equal(known[row].gather(-1, slots[row, :, :candidates].long()), expected[item])
    assert (known[1] == -1.0).all() and (known[2] == -1.0).sum() == HEADS * (size - candidates)
    changed = torch.full_like(stored.values, math.nan)
    changed[..., :3] = 0.0
    again = state_scores.value_range(changed, *place, **ask)
    assert torch.equal(again[..., : candidates - 7], expected[..., : candidates - 7])
    assert again[..., candidates - 7 :].isnan().all()


@pytest.mark.parametrize("candidates", [150, 1100])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_what_is_unknown_among_known_value_ranges_is_read(dtype: torch.dtype, candidates: int) -> None:
    """Holes anywhere, so that tiles hold both kinds; the states of the known ones are not looked at."""
    stored = storage(dtype, 128, candidates, indirect=True)
    stored.rows = torch.tensor([2, 0], device=DEVICE)
    assert stored.slot_mapping is not None
    expected = stored.run("value_range")
    generator = torch.Generator().manual_seed(0)
    unknown = (torch.rand(expected.shape, generator=generator) < 0.05).to(DEVICE)
    at = stored.slot_mapping[stored.rows][..., :candidates].long()
    known = torch.full((STORAGE_ROWS, HEADS, stored.values.shape[1]), -1.0, device=DEVICE)
    known[stored.rows] = known[stored.rows].scatter(-1, at, expected.masked_fill(unknown, -1.0))
    read = unknown.clone()
    read[..., candidates - 7 :] = True
    by_slot = torch.zeros_like(known[stored.rows], dtype=torch.bool).scatter(-1, at, read)
    values = stored.values.clone()
    values[stored.rows] = values[stored.rows].masked_fill(~by_slot.transpose(1, 2)[..., None], torch.nan)
    got = state_scores.value_range(values, stored.rows, stored.slot_mapping, candidates, known=known, newest=7)
    assert torch.equal(got, expected)
    assert torch.equal(known[stored.rows].gather(-1, at), expected)
