"""The kernels of a mixture of experts against plain torch, on a GPU or in Triton's interpreter."""

import pytest
import torch
from helpers.kernels import DEVICE, HALF, INTERPRETING, MARKS, draw
from torch import Tensor
from torch.nn.functional import silu

pytestmark = MARKS
UNIT = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""Relative distance of one number to the next, or what sums in another order may differ by."""


def routed(logits: Tensor, count: int, *, normalize: bool = True) -> tuple[Tensor, Tensor]:
    from vase_cli.kernels.routing import route

    return route(logits.to(DEVICE), count, normalize=normalize)


def grouped(chosen: Tensor, experts: int, block: int) -> tuple[list[list[int]], list[list[int]]]:
    """The pairs of each expert, in their order, and the rows of each tile that is not empty."""
    from vase_cli.kernels.routing import group

    groups = group(chosen.to(DEVICE), experts, block)
    pairs: list[list[int]] = [[] for _ in range(experts)]
    tiles = [tile for tile in groups.tiles.tolist() if tile[1] < tile[2]]
    for expert, first, end in tiles:
        assert 0 < end - first <= block
        pairs[expert] += groups.order[first:end].tolist()
    return pairs, tiles


def mixture(
    states: Tensor, logits: Tensor, gate_up_weight: Tensor, down_weight: Tensor, count: int, block: int | None = None
) -> Tensor:
    """What all kernels together make of states (T, E), in tiles of another number of rows if ``block`` is given."""
    from vase_cli.kernels.experts import division, down, gate_up
    from vase_cli.kernels.routing import group, join, route

    experts = gate_up_weight.shape[0]
    chosen, weights = route(logits, count, normalize=True)
    divided = division(states.shape[0], count, experts)
    groups = group(chosen, experts, divided.block if block is None else block)
    activated = gate_up(states, gate_up_weight, groups, count, divided.gate_up)
    made = down(activated, down_weight, groups, weights, divided.down)
    out = torch.full_like(states, torch.nan)
    join(made, count, out)
    return out


def reference(states: Tensor, logits: Tensor, gate_up_weight: Tensor, down_weight: Tensor, count: int) -> Tensor:
    """The same, an expert at a time, with sums in float64 and rounded where transformers rounds."""
    dtype = states.dtype
    chosen, weights = routed(logits, count)
    made = torch.empty((*chosen.shape, states.shape[1]), dtype=torch.float64, device=states.device)
    for expert in range(gate_up_weight.shape[0]):
        token, place = torch.where(chosen == expert)
        gate, up = (states[token].double() @ gate_up_weight[expert].double().T).to(dtype).chunk(2, dim=-1)
        product = ((silu(gate) * up).double() @ down_weight[expert].double().T).to(dtype)
        made[token, place] = (product * weights[token, place, None]).double()
    return made.sum(1).to(dtype)


def weights_of(experts: int, width: int, inner: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    gate_up_weight = draw(experts, 2 * inner, width, seed=1) / width**0.5
    return gate_up_weight.to(dtype), (draw(experts, width, inner, seed=2) / inner**0.5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("tokens", "experts", "width"), [(1, 6, 40), (3, 128, 32), (70, 20, 64), (520, 9, 16)])
def test_logits_agree_with_float64(tokens: int, experts: int, width: int, dtype: torch.dtype):
    from vase_cli.kernels.experts import logits

    states, router = draw(tokens, width, dtype=dtype), draw(experts, width, seed=1, dtype=dtype)
    expected = states.double() @ router.double().T
    error = (logits(states, router).double() - expected).norm() / expected.norm()
    assert error < (1e-6 if dtype == torch.float32 else UNIT[dtype] / 2)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("experts", "count"), [(4, 1), (6, 6), (20, 3), (128, 8)])
def test_routing_is_that_of_transformers(experts: int, count: int, dtype: torch.dtype, normalize: bool):
    logits = torch.stack([torch.randperm(experts, generator=torch.Generator().manual_seed(row)) for row in range(5)])
    logits = (logits * 0.11 - 3).to(dtype)  # no two alike
    chosen, weights = routed(logits, count, normalize=normalize)
    expected, expected_chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(count)
    if normalize:
        expected /= expected.sum(-1, keepdim=True)
    assert torch.equal(chosen.cpu().long(), expected_chosen)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights.cpu().float(), expected, rtol=UNIT[dtype], atol=1e-7)


def test_equal_logits_go_to_the_lower_expert():
    logits = torch.zeros(3, 12)
    logits[1, [3, 7, 8]] = 1.0
    logits[2, 11] = -1.0
    chosen, weights = routed(logits, 4)
    assert chosen.tolist() == [[0, 1, 2, 3], [3, 7, 8, 0], [0, 1, 2, 3]]
    assert (weights[0] == 0.25).all()


def test_logits_that_are_not_finite_choose_experts_that_exist():
    logits = draw(3, 12).cpu()
    expected = routed(logits, 5)
    logits[0, 4] = torch.nan
    logits[1, :] = torch.inf
    chosen, weights = routed(logits, 5)
    assert all(len(set(row)) == 5 and set(row) <= set(range(12)) for row in chosen.tolist())
    assert weights[:2].isnan().all()
    assert torch.equal(chosen[2], expected[0][2]) and torch.equal(weights[2], expected[1][2])


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(("tokens", "experts", "count"), [(1, 128, 8), (7, 3, 2), (40, 128, 8), (300, 5, 2)])
def test_every_pair_is_in_one_tile_of_its_expert(tokens: int, experts: int, count: int, block: int):
    generator = torch.Generator().manual_seed(tokens)
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:count] for _ in range(tokens)]).int()
    pairs, _ = grouped(chosen, experts, block)
    flat = chosen.flatten().tolist()
    assert pairs == [[pair for pair, expert in enumerate(flat) if expert == number] for number in range(experts)]


@pytest.mark.parametrize("experts", [2, 128])
def test_experts_that_all_tokens_choose_take_as_many_tiles_as_they_need(experts: int):
    chosen = torch.tensor([[1, 0]]).repeat(40, 1).int()
    pairs, tiles = grouped(chosen, experts, 16)
    assert pairs[0] == list(range(1, 80, 2)) and pairs[1] == list(range(0, 80, 2)) and not any(pairs[2:])
    assert tiles == [[0, 0, 16], [0, 16, 32], [0, 32, 40], [1, 40, 56], [1, 56, 72], [1, 72, 80]]


def test_pairs_beyond_what_is_sorted_at_a_time(monkeypatch: pytest.MonkeyPatch):
    from vase_cli.kernels import routing

    monkeypatch.setattr(routing, "_PAIRS_AT_ONCE", 32)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(50)]).int()
    flat = chosen.flatten().tolist()
    pairs, _ = grouped(chosen, 9, 16)
    assert pairs == [[pair for pair, expert in enumerate(flat) if expert == number] for number in range(9)]


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(
    ("tokens", "experts", "count", "width", "inner"),
    [(1, 16, 4, 32, 16), (3, 16, 4, 64, 48), (20, 6, 2, 100, 40), (64, 6, 3, 48, 32), (300, 2, 1, 32, 80)],
)
def test_a_mixture_is_that_of_transformers(
    tokens: int, experts: int, count: int, width: int, inner: int, dtype: torch.dtype
):
    states, logits = draw(tokens, width, dtype=dtype), draw(tokens, experts, seed=3, dtype=dtype)
    weights = weights_of(experts, width, inner, dtype)
    got = mixture(states, logits, *weights, count)
    expected = reference(states, logits, *weights, count)
    assert got.dtype == dtype and got.shape == expected.shape
    error = (got.double() - expected.double()).norm() / expected.double().norm()
    assert error < (1e-6 if dtype == torch.float32 else UNIT[dtype] / 2)


def test_all_tokens_of_one_expert():
    states, logits = draw(40, 32, dtype=HALF), draw(40, 8, seed=3, dtype=HALF)
    logits[:, 5] = 9.0
    weights = weights_of(8, 32, 16, HALF)
    got, expected = (of(states, logits, *weights, 1) for of in (mixture, reference))
    assert (got.double() - expected.double()).norm() / expected.double().norm() < UNIT[HALF] / 2


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [HALF] if INTERPRETING else [torch.float32, HALF])  # NumPy's float32 has other orders
def test_no_bit_of_a_token_depends_on_the_other_tokens(dtype: torch.dtype, block: int):
    """One token among others, at another place, and beside states that are not finite."""
    tokens, width = 24, 64
    states, logits = draw(tokens, width, dtype=dtype), draw(tokens, 8, seed=3, dtype=dtype)
    others, others_logits = draw(tokens, width, seed=5, dtype=dtype), draw(tokens, 8, seed=6, dtype=dtype)
    others[0] = torch.nan
    others_logits[1] = torch.nan
    others[17], others_logits[17] = states[3], logits[3]
    weights = weights_of(8, width, 48, dtype)
    expected = mixture(states, logits, *weights, 3, block)
    got = mixture(others, others_logits, *weights, 3, block)
    assert torch.equal(got[17], expected[3])
    assert got[:2].isnan().all() and got[2:].isfinite().all()


@pytest.mark.parametrize("kibibytes", [64, 99, 163, 227])
@pytest.mark.parametrize("tokens", [1, 16, 200, 700, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_fit_into_the_shared_memory_of_a_device(
    dtype: torch.dtype, tokens: int, kibibytes: int, monkeypatch: pytest.MonkeyPatch
):
    from vase_cli.kernels import _shared_memory, experts

    monkeypatch.setattr(_shared_memory, "_shared_bytes", lambda device: kibibytes * 2**10)
    divided = experts.division(tokens, 8, 128)
    for config, weights, width, inner in ((divided.gate_up, 2, 768, 2048), (divided.down, 1, 2048, 768)):
        states = torch.empty(0, dtype=dtype)
        columns, depth, stages = experts._fitting(config, divided.block, weights, width, inner, states)
        stage_bytes = (weights * columns + divided.block) * depth * dtype.itemsize
        assert 1 <= stages <= config.stages and stages * stage_bytes <= kibibytes * 2**10
        assert stages == config.stages or (stages + 1) * stage_bytes > kibibytes * 2**10


def test_joining_adds_in_the_order_of_places():
    from vase_cli.kernels.routing import join

    parts = torch.tensor([[2.0**25, 1.0, -(2.0**25)], [1.0, 1.0, 1.0]], device=DEVICE)
    states = parts.flatten()[:, None].repeat(1, 1030)
    out = torch.full((2, 1030), torch.nan, device=DEVICE)
    join(states, 3, out)
    assert (out[0] == 0).all() and (out[1] == 3).all()


@pytest.mark.skipif(INTERPRETING, reason="too large for the interpreter")
@pytest.mark.parametrize("tokens", [1, 16, 33, 64, 128, 700, 2048])
def test_a_mixture_of_the_size_of_a_real_one(tokens: int):
    states, logits = draw(tokens, 2048, dtype=torch.bfloat16), draw(tokens, 128, seed=3, dtype=torch.bfloat16)
    weights = weights_of(128, 2048, 768, torch.bfloat16)
    got, expected = (of(states, logits, *weights, 8) for of in (mixture, reference))
    assert (got.double() - expected.double()).norm() / expected.double().norm() < UNIT[torch.bfloat16] / 2
    assert torch.equal(mixture(states, logits, *weights, 8), got)


@pytest.mark.skipif(INTERPRETING, reason="too large for the interpreter")
@pytest.mark.parametrize("tokens", [1, 16, 100, 200, 700])
def test_no_bit_of_a_token_depends_on_how_many_there_are(tokens: int):
    """Tiles of all kinds add up in one order, so that prompts may come in packs."""
    from vase_cli.kernels.experts import logits

    states, router = draw(1500, 2048, dtype=torch.bfloat16), draw(128, 2048, seed=3, dtype=torch.bfloat16) / 45
    weights = weights_of(128, 2048, 768, torch.bfloat16)
    some = states[-tokens:].contiguous()
    of_all = logits(states, router)
    assert torch.equal(logits(some, router), of_all[-tokens:])
    assert torch.equal(
        mixture(some, of_all[-tokens:].contiguous(), *weights, 8), mixture(states, of_all, *weights, 8)[-tokens:]
    )
