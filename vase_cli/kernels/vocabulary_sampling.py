"""The next token of each row from any number of candidates, without a sort: kernels of :mod:`vase_cli.engine.sampling`.

Shapes: B rows, V vocabulary.

What filters leave is the first part of the ranking of all tokens, and a token is drawn as the argmax of log weight plus
noise over it. The argmax over all tokens is that token if the filters leave it; if not, they leave nothing that ranks
below it, and the next to be asked is the argmax over what ranks above it. The most likely token is always left, so this
ends, nearly always at the first token or the second.

A row is cut into blocks. The first pass leaves each block's peak and sum of weights; the second the best token of each
block that could be drawn at all, which of most vocabularies are few; and then one program for each row asks. It reads
only where a block's peak ranks above the token asked for. All sums are over fixed places in a fixed order.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._logits import penalized
from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
from vase_cli.kernels._ranks import LOWEST_RANK, rank, ranked_index

_NOISE_RANGE = 26.0  # no two numbers of the noise differ by as much: it lies between -2.82 and 22.88
_MARGIN = 0.01  # of log weights, above what rounding makes of them

_BLOCK = 1024  # tokens that one program reads in a pass over the logits
_WARPS = 4
_WEIGHED = tl.constexpr(4096)  # tokens that the one program for a row weighs at a time: some blocks
_DRAWN = tl.constexpr(1024)  # tokens that it draws from at a time, a block: noise takes longer than to read
_CHOOSING_WARPS = 8
_TURNS = 2  # that all programs take together before each row goes on alone: three in a thousand, with a top-p of 0.95
_NO_MORE = tl.constexpr(0x7FFFFFFF)


def draw(
    logits: Tensor, candidates: int, temperature: float, top_p: float, min_p: float, keys: Tensor, positions: Tensor,
    seen: Tensor | None = None, penalty: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:meth:`TorchOps.draw` at a temperature above 0; the token is 0 where not finite."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, _BLOCK)
    padded_blocks = triton.next_power_of_2(blocks)
    peaks, sums = torch.empty((2, rows, blocks), dtype=torch.float32, device=logits.device)
    # With a top-p a draw is refused now and then, and settled sooner by many programs than by the one of its row.
    turns = _TURNS if top_p < 1 and candidates == vocabulary else 0
    bests = torch.empty((max(1, turns), rows, blocks), dtype=torch.int64, device=logits.device)
    masses = torch.empty((turns, rows, blocks), dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(rows, dtype=torch.bool, device=logits.device)
    row_logits = (logits, logits.stride(0), seen, penalty, vocabulary, temperature)
    streams = (keys, keys.stride(0), positions, positions.stride(0))
    _sum_blocks[(rows, blocks)](*row_logits, peaks, sums, blocks, block=_BLOCK, num_warps=_WARPS)
    # Log weights, relative to the largest, below which a token is not left; that of top-p is relative to the total.
    # All tokens below it together have at most the weight that top-p leaves out.
    reach = min(_NOISE_RANGE, _MARGIN - math.log(min_p) if min_p > 0 else math.inf)
    log_tail = math.log((1 - top_p) / candidates) - _MARGIN if top_p < 1 else -math.inf
    _draw_blocks[(rows, blocks)](
        *row_logits, candidates, reach, log_tail, *streams, peaks, sums, bests, blocks, block=_BLOCK,
        padded_blocks=padded_blocks, num_warps=_WARPS,
    )  # fmt: skip
    tables = (peaks, sums, bests, masses, blocks)
    sizes = {"block": _BLOCK, "padded_blocks": padded_blocks}
    for turn in range(turns):
        if turn:
            _draw_again[(rows, blocks)](*row_logits, top_p, min_p, *streams, *tables, turn, **sizes, num_warps=_WARPS)
        _weigh_blocks[(rows, blocks)](*row_logits, *tables, turn, **sizes, num_warps=_WARPS)
    _choose[(rows,)](
        *row_logits, candidates, top_p, min_p, *streams, *tables, turns, tokens, finite, **sizes,
        num_warps=_CHOOSING_WARPS,
    )  # fmt: skip
    return tokens, finite


@triton.jit
def _sum_blocks(
    logits, row_stride, seen, penalty, vocabulary, temperature, peaks, sums, blocks, block: tl.constexpr
):  # fmt: skip
    """Each block's largest log weight, NaN if a logit is not finite, and the sum of weights relative to it."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    token_ids = number * block + tl.arange(0, block)
    values = penalized(logits, seen, penalty, vocabulary, token_ids)
    not_finite = ((values.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000) & (token_ids < vocabulary)
    log_weights = tl.div_rn(values, temperature)
    peak = tl.max(log_weights, axis=0)
    tl.store(sums + row * blocks + number, tl.sum(tl.exp(log_weights - peak), axis=0))
    peak = tl.where(tl.max(not_finite.to(tl.int32), axis=0) != 0, float("nan"), peak)
    tl.store(peaks + row * blocks + number, peak)


@triton.jit
def _draw_blocks(
    logits, row_stride, seen, penalty, vocabulary, temperature, candidates, reach, log_tail, keys, keys_stride,
    positions, positions_stride, peaks, sums, bests, blocks, block: tl.constexpr, padded_blocks: tl.constexpr,
):  # fmt: skip
    """The rank of each block's best score, the lowest of all if none of its tokens can be drawn."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    peaks += row * blocks
    largest, total, _ = _of_row(peaks, sums + row * blocks, blocks, padded_blocks)
    total = tl.where(candidates < vocabulary, 1.0, total)  # the candidates' own total is not known: 1 at the least
    best = tl.full((), LOWEST_RANK, tl.int64)
    never_drawn = tl.load(peaks + number) < largest + tl.maximum(-reach, tl.log(total) + log_tail)
    if not never_drawn:
        stream = _stream(keys, keys_stride, positions, positions_stride, row)
        token_ids = number * block + tl.arange(0, block)
        log_weights = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_ids), temperature)
        best = tl.max(_ranked(log_weights + _noise(stream, token_ids), token_ids, token_ids < vocabulary), axis=0)
    tl.store(bests + row * blocks + number, best)


@triton.jit
def _weigh_blocks(
    logits, row_stride, seen, penalty, vocabulary, temperature, peaks, sums, bests, masses, blocks, turn,
    block: tl.constexpr, padded_blocks: tl.constexpr,
):  # fmt: skip
    """The sum of weights, in each block, of the tokens that rank above the one that a turn asks for, if it asks."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    peaks += row * blocks
    at = (turn * tl.num_programs(0) + row) * blocks
    best = _best_of(bests + at, blocks, padded_blocks)
    mass = 0.0
    if best != LOWEST_RANK:
        asked = _asked(logits, seen, penalty, vocabulary, temperature, best)[1]
        if rank(tl.load(peaks + number), number * block) > asked:
            largest = _of_row(peaks, sums + row * blocks, blocks, padded_blocks)[0]
            token_ids = number * block + tl.arange(0, block)
            log_weights = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_ids), temperature)
            above = _ranked(log_weights, token_ids, token_ids < vocabulary) > asked
            mass = tl.sum(tl.where(above, tl.exp(log_weights - largest), 0.0), axis=0)
    tl.store(masses + at + number, mass)


@triton.jit
def _draw_again(
    logits, row_stride, seen, penalty, vocabulary, temperature, top_p, min_p, keys, keys_stride, positions,
    positions_stride, peaks, sums, bests, masses, blocks, turn, block: tl.constexpr, padded_blocks: tl.constexpr,
):  # fmt: skip
    """What :func:`_draw_blocks` leaves, of tokens that rank above the one that the turn before asked for and lost."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    before = ((turn - 1) * tl.num_programs(0) + row) * blocks
    best = tl.full((), LOWEST_RANK, tl.int64)
    if tl.load(bests + before + number) != LOWEST_RANK:
        largest, total, _ = _of_row(peaks + row * blocks, sums + row * blocks, blocks, padded_blocks)
        asked_best = _best_of(bests + before, blocks, padded_blocks)
        log_weight, asked = _asked(logits, seen, penalty, vocabulary, temperature, asked_best)
        mass = _mass_of(masses + before, blocks, padded_blocks)
        if _is_unlikely(log_weight, largest, total, min_p) | (tl.div_rn(mass, total) >= top_p):
            stream = _stream(keys, keys_stride, positions, positions_stride, row)
            token_ids = number * block + tl.arange(0, block)
            log_weights = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_ids), temperature)
            above = _ranked(log_weights, token_ids, token_ids < vocabulary) > asked
            best = tl.max(_ranked(log_weights + _noise(stream, token_ids), token_ids, above), axis=0)
    tl.store(bests + (turn * tl.num_programs(0) + row) * blocks + number, best)


@triton.jit
def _choose(
    logits, row_stride, seen, penalty, vocabulary, temperature, candidates, top_p, min_p, keys, keys_stride, positions,
    positions_stride, peaks, sums, bests, masses, blocks, turns, tokens, finite, block: tl.constexpr,
    padded_blocks: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    peaks += row * blocks
    bests += row * blocks
    masses += row * blocks
    next_turn = tl.num_programs(0) * blocks
    largest, total, row_is_finite = _of_row(peaks, sums + row * blocks, blocks, padded_blocks)
    numbers = tl.arange(0, padded_blocks)
    best = _best_of(bests, blocks, padded_blocks)
    peaks = _ranked(tl.load(peaks + numbers, mask=numbers < blocks, other=-float("inf")), 0, numbers < blocks)
    floor = tl.full((), LOWEST_RANK, tl.int64)  # at or below it is no candidate
    if row_is_finite & (candidates < vocabulary):
        ceiling = rank(largest, 0)
        count = vocabulary
        while count != candidates:
            middle = (floor >> 1) + (ceiling >> 1) + (floor & ceiling & 1)
            count, total = _above(logits, seen, penalty, vocabulary, temperature, peaks, largest, middle, block)
            floor = tl.where(count >= candidates, middle, floor)
            ceiling = tl.where(count >= candidates, ceiling, middle)
    turn = 0
    asking = row_is_finite
    while asking:
        # Sums in another kernel may end in another bit: what it took for drawn, and left no successor to, may not be.
        is_some = best != LOWEST_RANK
        log_weight, asked = _asked(logits, seen, penalty, vocabulary, temperature, tl.where(is_some, best, 0))
        asked = tl.where(is_some, asked, floor)
        dropped = (asked <= floor) | _is_unlikely(log_weight, largest, total, min_p)
        if (top_p < 1.0) & (asked > floor):
            mass = 0.0
            if turn < turns:
                mass = _mass_of(masses + turn * next_turn, blocks, padded_blocks)
            else:
                _, mass = _above(logits, seen, penalty, vocabulary, temperature, peaks, largest, asked, block)
            dropped = dropped | (tl.div_rn(mass, total) >= top_p)
        turn += 1
        if dropped:
            floor = tl.maximum(floor, asked)
            if turn < turns:
                best = _best_of(bests + turn * next_turn, blocks, padded_blocks)
            else:
                stream = _stream(keys, keys_stride, positions, positions_stride, row)
                best = _best_above(logits, seen, penalty, vocabulary, temperature, peaks, stream, floor, block)
        asking = dropped
    tl.store(tokens + row, tl.where(row_is_finite, ranked_index(best), 0))
    tl.store(finite + row, row_is_finite)


@triton.jit
def _best_of(bests, blocks, padded_blocks: tl.constexpr):
    """The best of a row's blocks."""
    numbers = tl.arange(0, padded_blocks)
    return tl.max(tl.load(bests + numbers, mask=numbers < blocks, other=LOWEST_RANK), axis=0)


@triton.jit
def _mass_of(masses, blocks, padded_blocks: tl.constexpr):
    """The sum over a row's blocks."""
    numbers = tl.arange(0, padded_blocks)
    return tl.sum(tl.load(masses + numbers, mask=numbers < blocks, other=0.0), axis=0)


@triton.jit
def _asked(logits, seen, penalty, vocabulary, temperature, best):
    """The log weight and the rank of the token of the best score."""
    token_id = ranked_index(best)
    log_weight = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_id), temperature)
    return log_weight, rank(log_weight, token_id)


@triton.jit
def _is_unlikely(log_weight, largest, total, min_p):
    """Whether min-p leaves a token out."""
    return tl.div_rn(tl.exp(log_weight - largest), total) < min_p * tl.div_rn(1.0, total)


@triton.jit
def _of_row(peaks, sums, blocks, padded_blocks: tl.constexpr):
    """The largest log weight of a row, the sum of weights relative to it, and whether all logits are finite."""
    numbers = tl.arange(0, padded_blocks)
    block_peaks = tl.load(peaks + numbers, mask=numbers < blocks, other=-float("inf"))
    block_sums = tl.load(sums + numbers, mask=numbers < blocks, other=0.0)
    largest = tl.max(block_peaks, axis=0)
    row_is_finite = tl.max((block_peaks != block_peaks).to(tl.int32), axis=0) == 0
    return largest, tl.sum(block_sums * tl.exp(block_peaks - largest), axis=0), row_is_finite


@triton.jit
def _stream(keys, keys_stride, positions, positions_stride, row):
    key = tl.load(keys + row * keys_stride)
    return counted(mixed(key.to(tl.uint64)), tl.load(positions + row * positions_stride))


@triton.jit
def _noise(stream, token_ids):
    return gumbel(uniform(counted(stream, token_ids)))


@triton.jit
def _ranked(values, indices, held):
    """Ranks of values; the lowest of all where none is held."""
    return tl.where(held, rank(values, indices), LOWEST_RANK)


@triton.jit
def _next_tile(peaks, floor, tile, blocks_of_tile: tl.constexpr):
    """The next tile with a block whose peak ranks above a floor, or _NO_MORE."""
    tiles = tl.arange(0, peaks.shape[0]) // blocks_of_tile
    return tl.min(tl.where((peaks > floor) & (tiles > tile), tiles, _NO_MORE), axis=0)


@triton.jit
def _above(logits, seen, penalty, vocabulary, temperature, peaks, largest, floor, block: tl.constexpr):
    """How many tokens rank above a floor, and the sum of their weights."""
    counts = tl.zeros([_WEIGHED], tl.int32)
    weights = tl.zeros([_WEIGHED], tl.float32)
    tile = _next_tile(peaks, floor, -1, _WEIGHED // block)
    while tile != _NO_MORE:
        token_ids = tile * _WEIGHED + tl.arange(0, _WEIGHED)
        log_weights = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_ids), temperature)
        above = _ranked(log_weights, token_ids, token_ids < vocabulary) > floor
        counts += above.to(tl.int32)
        weights += tl.where(above, tl.exp(log_weights - largest), 0.0)
        tile = _next_tile(peaks, floor, tile, _WEIGHED // block)
    return tl.sum(counts, axis=0), tl.sum(weights, axis=0)


@triton.jit
def _best_above(logits, seen, penalty, vocabulary, temperature, peaks, stream, floor, block: tl.constexpr):
    """The rank of the best score of the tokens that rank above a floor."""
    bests = tl.full([_DRAWN], LOWEST_RANK, tl.int64)
    tile = _next_tile(peaks, floor, -1, _DRAWN // block)
    while tile != _NO_MORE:
        token_ids = tile * _DRAWN + tl.arange(0, _DRAWN)
        log_weights = tl.div_rn(penalized(logits, seen, penalty, vocabulary, token_ids), temperature)
        scores = log_weights + _noise(stream, token_ids)
        above = _ranked(log_weights, token_ids, token_ids < vocabulary) > floor
        bests = tl.maximum(bests, _ranked(scores, token_ids, above))
        tile = _next_tile(peaks, floor, tile, _DRAWN // block)
    return tl.max(bests, axis=0)
