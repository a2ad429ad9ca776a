"""The selection kernels against their torch references, on a GPU or in Triton's interpreter."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.caches import FIELDS, snapshot, stored_anyhow
from helpers.kernels import DEVICE, MARKS, triton_ops

from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.kernels.ops import TorchOps
from vase_cli.kernels.ranking import best

pytestmark = MARKS
# Odd numbers, powers of two, one more, and more than are placed in one step.
CANDIDATES = [1, 5, 64, 129, 513, 2300]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, 1e-40, -1e-40, 3e38]


def draw_scores(*shape: int, seed: int = 0) -> torch.Tensor:
    """Scores with many ties, both zeros, infinities and the smallest numbers."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator).round(decimals=1)
    special = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.3, special, scores)


def counts(candidates: int) -> Iterator[int]:
    yield from sorted({0, 1, candidates // 2, candidates - 1, candidates})


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_largest_is_the_order_of_best(candidates: int):
    scores = draw_scores(2, 3, candidates).to(DEVICE)
    for count in counts(candidates):
        expected = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best(scores, count), True)
        assert torch.equal(triton_ops().largest(scores, count), expected), count


def test_largest_of_equal_scores_are_the_first():
    scores = torch.zeros(1, 1, 100, device=DEVICE)
    scores[..., ::2] = -0.0
    assert triton_ops().largest(scores, 37)[0, 0].nonzero().flatten().tolist() == list(range(37))


def test_more_candidates_than_one_program_holds_are_ranked_too():
    from vase_cli.kernels.selection import LONGEST

    scores = draw_scores(1, 1, LONGEST + 3).to(DEVICE)
    expected = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best(scores, 1000), True)
    assert torch.equal(triton_ops().largest(scores, 1000), expected)


def make_cache(budget: int, window: int, head_dim: int, dtype: torch.dtype, ops: TorchOps | None = None) -> StaticCache:
    """Full rows on the device: 2 layers, 3 rows, 2 KV heads of 4 query heads; cut by kernels where nothing is said."""
    shape = CacheShape(2, 3, budget + window, 2, head_dim, 4, 0, dtype.itemsize)
    on_host = stored_anyhow(shape, window)
    cache = StaticCache(shape, dtype, DEVICE, ops or triton_ops())
    for name, tensor in snapshot(on_host).items():
        getattr(cache, name).copy_(tensor)
    return cache


SIZES = [(2, 1), (5, 4), (64, 16), (129, 8), (300, 64), (2300, 7)]


@pytest.mark.parametrize("named", [None, 0.0, 0.2, 0.95, 1.0])
@pytest.mark.parametrize(
    ("budget", "window", "head_dim", "dtype"),
    [
        (*size, head_dim, dtype)
        for size, (head_dim, dtype) in zip(
            SIZES, itertools.cycle([(16, torch.float32), (128, torch.bfloat16), (6, torch.float16)]), strict=False
        )
    ],
    ids=str,
)
def test_evict_changes_the_cache_as_its_reference(
    budget: int, window: int, head_dim: int, dtype: torch.dtype, named: float | None
):
    rows, text_tokens = (torch.tensor(numbers, device=DEVICE) for numbers in ([4, 0, 5], [9000, 9001, 70_000]))
    scores = draw_scores(3, 2, budget).to(DEVICE)
    must_keep = None
    if named is not None:
        must_keep = (torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < named).to(DEVICE)
    cache, reference = (make_cache(budget, window, head_dim, dtype, ops) for ops in (triton_ops(), TorchOps()))
    for cut in (cache, reference):
        assert cut.evict(scores, must_keep, rows, text_tokens).tolist() == [True, True, True]
    for name in FIELDS[:-1]:
        assert torch.equal(getattr(cache, name), getattr(reference, name)), name


def test_scores_that_are_not_numbers_leave_every_token_one_slot():
    cache = make_cache(64, 16, 16, torch.float32)
    scores = draw_scores(1, 2, 64).to(DEVICE)
    scores[..., ::3] = math.nan
    scores[..., 1::3] = -math.nan
    rows, text_tokens = torch.tensor([3], device=DEVICE), torch.tensor([500], device=DEVICE)
    assert cache.evict(scores, None, rows, text_tokens).tolist() == [False]
    slots = cache.slot_mapping[1, 0].cpu()
    assert torch.equal(slots.sort(dim=-1).values, torch.arange(80, dtype=torch.int32).expand(2, 80))


@pytest.mark.parametrize("make_ops", [triton_ops, TorchOps])
def test_items_with_a_score_that_is_no_number_are_flagged(make_ops: Callable[[], TorchOps]):
    scores = draw_scores(6, 2, 129)
    scores[1, 1, 128] = math.nan
    scores[4, 0, 5] = -math.nan
    scores[5, 1, 7] = math.nan
    scores[2, 0, 3] = math.inf
    rows = torch.tensor([0, 3, 1, 4, 2, 5], device=DEVICE)
    cache = make_cache(129, 8, 16, torch.float32, make_ops())
    finite = cache.evict(scores.to(DEVICE), None, rows, torch.full_like(rows, 500))
    assert finite.dtype == torch.bool and finite.tolist() == [True, False, True, True, False, False]


def test_more_candidates_than_one_program_holds_are_cut_too():
    from vase_cli.kernels.selection import LONGEST

    rows, text_tokens = torch.tensor([4], device=DEVICE), torch.tensor([70_000], device=DEVICE)
    scores = draw_scores(1, 2, LONGEST + 1).to(DEVICE)
    scores[0, 1, LONGEST] = math.nan
    caches = [make_cache(LONGEST + 1, 8, 6, torch.float16, ops) for ops in (triton_ops(), TorchOps())]
    for cache in caches:
        assert cache.evict(scores, None, rows, text_tokens).tolist() == [False]
    assert all(torch.equal(held, snapshot(caches[1])[name]) for name, held in snapshot(caches[0]).items())


def test_an_item_does_not_depend_on_the_others():
    scores, text_tokens = draw_scores(4, 2, 129).to(DEVICE), torch.tensor([500, 600, 700, 800], device=DEVICE)
    rows = torch.tensor([5, 2, 0, 4], device=DEVICE)
    together, apart = (make_cache(129, 8, 16, torch.float32) for _ in range(2))
    together.evict(scores, None, rows, text_tokens)
    for item in range(4):
        at = slice(item, item + 1)
        apart.evict(scores[at], None, rows[at], text_tokens[at])
    for name in FIELDS[:-1]:
        assert torch.equal(getattr(together, name), getattr(apart, name)), name
