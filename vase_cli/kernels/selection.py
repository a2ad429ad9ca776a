"""Which candidates stay at a cut, and the cut itself, in the cache's own memory.

Shapes: N work items (one layer of one sequence), R storage rows, S cached tokens, W window, C = S - W candidates,
K = C - W of them kept, H KV heads, D head dim.

One program serves one head of one item. The order of the scores is that of :func:`vase_cli.kernels.ranking.best`. The
score of the last that stays is found bit by bit; of those equal to it the earlier stay.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 32_768  # the most candidates that one program holds
_TILE = 2048  # candidates whose places are worked out in one step
_MOVED_AT_ONCE = 4096  # elements of a window's keys that are moved in one step


@triton.jit
def _ranks(scores):
    """Unsigned integers in the order of the scores; the two zeros are one score."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _loaded(scores, must_keep, offsets, candidates, has_must_keep: tl.constexpr):
    inside = offsets < candidates
    named = inside
    if has_must_keep:
        named = tl.load(must_keep + offsets, mask=inside, other=0) != 0
    return tl.load(scores + offsets, mask=inside, other=0.0), named, inside


@triton.jit
def _search(scores, must_keep, candidates, count, has_must_keep: tl.constexpr, block: tl.constexpr):
    """Facts about all candidates from which :func:`_stays` tells the ``count`` best.

    Whether all that must be kept fit, the rank of the last one that stays on its score, and how many of that rank stay.
    """
    loaded, named, inside = _loaded(scores, must_keep, tl.arange(0, block), candidates, has_must_keep)
    fits = count < 0
    pool = inside
    if has_must_keep:
        named_count = tl.sum((named & inside).to(tl.int32))
        fits = named_count < count
        pool = inside & (named ^ fits)
        count = tl.where(fits, count - named_count, count)
    ranks = tl.where(pool, _ranks(loaded), 0)
    threshold = tl.zeros((), dtype=tl.uint32)
    bit = tl.full((), 0x80000000, dtype=tl.uint32)
    for _ in range(32):
        raised = threshold | bit
        threshold = tl.where(tl.sum((ranks >= raised).to(tl.int32)) >= count, raised, threshold)
        bit = bit >> 1
    return fits, threshold, count - tl.sum((ranks > threshold).to(tl.int32))


@triton.jit
def _stays(scores, named, inside, fits, threshold, places, has_must_keep: tl.constexpr):
    """Flags of candidates that stay, and of those that share the last one's rank: the first ``places`` of them stay."""
    pool = inside
    if has_must_keep:
        pool = inside & (named ^ fits)
    ranks = _ranks(scores)
    equal = pool & (ranks == threshold)
    stays = (pool & (ranks > threshold)) | (equal & (tl.cumsum(equal.to(tl.int32)) <= places))
    if has_must_keep:
        stays = stays | (inside & named & fits)
    return stays, equal


@triton.jit
def _largest_kernel(scores, chosen, candidates, count, block: tl.constexpr, tile: tl.constexpr):
    scores += tl.program_id(0).to(tl.int64) * candidates
    chosen += tl.program_id(0).to(tl.int64) * candidates
    fits, threshold, places = _search(scores, scores, candidates, count, False, block)
    for begin in range(0, block, tile):
        offsets = begin + tl.arange(0, tile)
        loaded, named, inside = _loaded(scores, scores, offsets, candidates, False)
        stays, equal = _stays(loaded, named, inside, fits, threshold, places, False)
        places -= tl.sum(equal.to(tl.int32))
        tl.store(chosen + offsets, stays, mask=inside)


@triton.jit
def _evict_kernel(
    scores, must_keep, slot_mapping, positions, keys, values, rows, seq_lens, holes, finite, heads, candidates,
    head_dim, window: tl.constexpr, has_must_keep: tl.constexpr, block: tl.constexpr, tile: tl.constexpr,
    window_block: tl.constexpr, head_block: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.load(rows + item)
    tokens = candidates + window
    kept = candidates - window
    scores += (item * heads + head) * candidates
    must_keep += (item * heads + head) * candidates
    holes += (item * heads + head) * window
    slot_mapping += (row * heads + head) * tokens
    positions += (row * heads + head) * tokens

    fits, threshold, places = _search(scores, must_keep, candidates, kept, has_must_keep, block)
    # A kept token's place is never behind it, so that a tile overwrites no tile after it.
    kept_before = tl.zeros((), dtype=tl.int32)
    not_numbers = tl.zeros((), dtype=tl.int32)
    for begin in range(0, block, tile):
        offsets = begin + tl.arange(0, tile)
        loaded, named, inside = _loaded(scores, must_keep, offsets, candidates, has_must_keep)
        stays, equal = _stays(loaded, named, inside, fits, threshold, places, has_must_keep)
        places -= tl.sum(equal.to(tl.int32))
        not_numbers += tl.sum((inside & (loaded != loaded)).to(tl.int32))
        place = kept_before + tl.cumsum(stays.to(tl.int32)) - 1
        kept_before += tl.sum(stays.to(tl.int32))
        old_slots = tl.load(slot_mapping + offsets, mask=inside, other=0)
        old_positions = tl.load(positions + offsets, mask=inside, other=0)
        tl.debug_barrier()
        tl.store(slot_mapping + place, old_slots, mask=stays)
        tl.store(positions + place, old_positions, mask=stays)
        tl.store(holes + offsets - place - 1, old_slots, mask=inside & (stays ^ True))
    tl.debug_barrier()
    tl.store(finite + item * heads + head, not_numbers == 0)

    window_start = (tl.load(seq_lens + item) - window).to(tl.int32)
    steps = tl.arange(0, window_block)
    for begin in range(0, 2 * window, window_block):
        step = begin + steps
        tl.store(positions + kept + step, window_start + step, mask=step < 2 * window)
    dims = tl.arange(0, head_block)[None, :]
    for begin in range(0, window, window_block):
        step = begin + steps
        moves = step < window
        hole = tl.load(holes + step, mask=moves, other=0)
        tl.store(slot_mapping + kept + step, hole, mask=moves)
        source = ((row * tokens + candidates + step) * heads + head) * head_dim
        target = ((row * tokens + hole) * heads + head) * head_dim
        mask = moves[:, None] & (dims < head_dim)
        tl.store(keys + target[:, None] + dims, tl.load(keys + source[:, None] + dims, mask=mask), mask=mask)
        tl.store(values + target[:, None] + dims, tl.load(values + source[:, None] + dims, mask=mask), mask=mask)


def largest(scores: Tensor, count: int) -> Tensor:
    """:meth:`TorchOps.largest` of at most ``LONGEST`` candidates."""
    scores = scores.contiguous()
    items, heads, candidates = scores.shape
    chosen = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    block = triton.next_power_of_2(candidates)
    _largest_kernel[(items * heads,)](
        scores, chosen, candidates, count, block=block, tile=min(block, _TILE), num_warps=_warps(block)
    )
    return chosen


def evict(
    scores: Tensor, must_keep: Tensor | None, slot_mapping: Tensor, positions: Tensor, keys: Tensor, values: Tensor,
    rows: Tensor, seq_lens: Tensor,
) -> Tensor:  # fmt: skip
    """:meth:`TorchOps.evict` of at most ``LONGEST`` candidates."""
    items, heads, candidates = scores.shape
    window, head_dim = slot_mapping.shape[-1] - candidates, keys.shape[-1]
    head_block = triton.next_power_of_2(head_dim)
    block = triton.next_power_of_2(candidates)
    scores = scores.contiguous()
    holes = torch.empty((items, heads, window), dtype=torch.int32, device=scores.device)
    finite = torch.empty((items, heads), dtype=torch.bool, device=scores.device)
    _evict_kernel[(items, heads)](
        scores, scores if must_keep is None else must_keep.contiguous(), slot_mapping, positions, keys, values, rows,
        seq_lens, holes, finite, heads, candidates, head_dim,
        window=window, has_must_keep=must_keep is not None, block=block, tile=min(block, _TILE),
        window_block=min(triton.next_power_of_2(window), max(1, _MOVED_AT_ONCE // head_block)), head_block=head_block,
        num_warps=_warps(block),
    )  # fmt: skip
    return finite.all(dim=1)


def _warps(block: int) -> int:
    """Warps of a program that holds ``block`` candidates: at most 32 of them in each thread."""
    return min(32, max(4, block // 512))
