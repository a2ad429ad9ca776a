"""Which experts of a mixture work on a token, and which tokens each of them works on.

A pair is a token and one of its places, numbered token * K + place: the places hold the token's experts, the likeliest
first. The grouped products run over tiles: some rows, at most ``block`` and all of one expert, of the pairs sorted by
expert. Nothing waits for the host: a batch's shape says how many tiles there can be, and those left over are empty.

Shapes: T tokens, X experts, K experts of a token, P = T K pairs, N tiles, E width of the residual stream.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_PAIRS_AT_ONCE = 4096


class Groups(NamedTuple):
    """Pairs sorted by expert, those of one expert in their own order.

    Attributes:
        order: (P,) int32, the pair of each sorted row.
        tiles: (N, 3) int32, expert, first sorted row and the one after the last; an empty tile has no rows.
        block: the most rows of a tile.
    """

    order: Tensor
    tiles: Tensor
    block: int


def route(logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """The ``count`` likeliest experts of each token, (T, K) int32, and their weights, (T, K) in the logits' dtype.

    ``logits`` (T, X) are contiguous; equal ones go to the lower expert. Weights are the probabilities over all
    experts, in float32 until they are rounded, and divided by their sum if ``normalize``. A token whose logits are not
    finite gets some experts, and weights that are NaN.
    """
    tokens, experts = logits.shape
    chosen = torch.empty((tokens, count), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, count), dtype=logits.dtype, device=logits.device)
    _route[(tokens,)](
        logits, chosen, weights, experts, count, triton.next_power_of_2(experts), triton.next_power_of_2(count),
        normalize, num_warps=1,
    )  # fmt: skip
    return chosen, weights


def group(chosen: Tensor, experts: int, block: int) -> Groups:
    """Sort the pairs of ``chosen``, (T, K) int32 below ``experts``, and cut them into tiles of at most ``block`` rows.

    The experts of one token differ.
    """
    tokens, places = chosen.shape
    pairs = tokens * places
    most = min(pairs, pairs // block + experts, experts * triton.cdiv(tokens, block))
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    tiles = torch.empty((most, 3), dtype=torch.int32, device=chosen.device)
    at_once = min(_PAIRS_AT_ONCE, max(16, triton.next_power_of_2(pairs)))
    _group[(experts,)](
        chosen, order, tiles, pairs, most, experts, block, at_once, triton.next_power_of_2(experts + 1),
        num_warps=8 if at_once > 1024 else 4,
    )  # fmt: skip
    return Groups(order, tiles, block)


def join(pair_states: Tensor, places: int, out: Tensor) -> None:
    """Add up what the experts of each token made: (P, E) to ``out``, (T, E), in the order of places, in float32."""
    tokens, width = out.shape
    block = min(1024, triton.next_power_of_2(width))
    _join[(tokens, triton.cdiv(width, block))](pair_states, out, places, width, block, num_warps=4)


@triton.jit
def _route(
    logits, chosen, weights, experts: tl.constexpr, count: tl.constexpr, bins: tl.constexpr, places: tl.constexpr,
    normalize: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, bins)
    place = tl.arange(0, places)
    scores = tl.load(logits + token * experts + expert, mask=expert < experts, other=float("-inf")).to(tl.float32)
    exact = tl.exp(scores - tl.max(scores))
    probability = exact / tl.sum(exact)
    left = tl.where(probability == probability, probability, 0.0)
    left = tl.where(expert < experts, left, -1.0)
    likeliest = tl.zeros([places], tl.int32)
    best = tl.zeros([places], tl.float32)
    for number in range(count):
        first = tl.min(tl.where(left == tl.max(left), expert, bins))
        likeliest = tl.where(place == number, first, likeliest)
        best = tl.where(place == number, tl.sum(tl.where(expert == first, probability, 0.0)), best)
        left = tl.where(expert == first, -1.0, left)
    if normalize:
        best = best / tl.sum(best)
    inside = place < count
    tl.store(chosen + token * count + place, likeliest, mask=inside)
    tl.store(weights + token * count + place, best.to(weights.dtype.element_ty), mask=inside)


@triton.jit
def _group(
    chosen, order, tiles, pairs, most, experts: tl.constexpr, block: tl.constexpr, at_once: tl.constexpr,
    bins: tl.constexpr,
):  # fmt: skip
    own = tl.program_id(0)
    expert = tl.arange(0, bins)
    lane = tl.arange(0, at_once)
    counts = tl.zeros([bins], tl.int32)
    for start in range(0, pairs, at_once):
        pair = start + lane
        counts += tl.histogram(tl.load(chosen + pair, mask=pair < pairs, other=experts), bins)
    needed = tl.where(expert < experts, (counts + block - 1) // block, 0)
    first = tl.sum(tl.where(expert < own, counts, 0))
    count = tl.sum(tl.where(expert == own, counts, 0))
    before = tl.sum(tl.where(expert < own, needed, 0))
    for number in range((count + block - 1) // block):
        tile = tiles + 3 * (before + number)
        tl.store(tile, own)
        tl.store(tile + 1, first + number * block)
        tl.store(tile + 2, first + tl.minimum(count, (number + 1) * block))
    for empty in range(tl.sum(needed) + own, most, experts):
        tl.store(tiles + 3 * empty, 0)
        tl.store(tiles + 3 * empty + 1, 0)
        tl.store(tiles + 3 * empty + 2, 0)
    for start in range(0, pairs, at_once):
        pair = start + lane
        mine = tl.load(chosen + pair, mask=pair < pairs, other=experts) == own
        ranks = tl.cumsum(mine.to(tl.int32))
        tl.store(order + first + ranks - 1, pair, mask=mine)
        first += tl.max(ranks)


@triton.jit
def _join(pair_states, out, places: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    total = tl.zeros([block], tl.float32)
    for place in tl.static_range(places):
        start = (token * places + place) * width
        total += tl.load(pair_states + start + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)
