"""The next token of each row from few candidates: the kernels of :mod:`vase_cli.engine.sampling`.

Shapes: B rows, V vocabulary, K candidates (a power of two).

A row is cut into segments of 16 tokens and groups of 16 segments. The best K tokens stand in the K segments with
the best peaks, and those in the K groups with the best peaks. So one pass over the logits writes the peaks, and
then one program for each row finds the groups, looks into them for the segments, and into those for the tokens.

Values are compared as integers that order like the float32 number ("keys"), with the index below them so that equal
values fall to the lower one ("ranks"). The peak of a segment with a value that is not finite is a key of its own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vase_cli.kernels._logits import penalized
from vase_cli.kernels._randomness import counted, gumbel, mixed, uniform
from vase_cli.kernels._ranks import key, rank, ranked_index, ranked_value, value

_SEGMENT = tl.constexpr(16)
_LOWEST_KEY = tl.constexpr(-0x7F800001)  # of minus infinity, what stands where there is no token
_NOT_FINITE_KEY = tl.constexpr(0x7FFFFFFF)

MOST_CANDIDATES = 64
_BLOCK = 4096  # tokens that one program reads in the pass over the logits
_WARPS = 4


def draw(
    logits: Tensor, candidates: int, temperature: float, top_p: float, min_p: float, keys: Tensor, positions: Tensor,
    seen: Tensor | None = None, penalty: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:meth:`TorchOps.draw` from 1 to 64 candidates, at a temperature above 0; the token is 0 where not finite."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, _BLOCK)
    segments = blocks * _BLOCK // _SEGMENT.value
    groups = segments // _SEGMENT.value
    segment_peaks, group_peaks = (
        torch.empty((rows, count), dtype=torch.int32, device=logits.device) for count in (segments, groups)
    )
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    finite = torch.empty(rows, dtype=torch.bool, device=logits.device)
    _write_peaks[(rows, blocks)](
        logits, logits.stride(0), seen, penalty, vocabulary, segment_peaks, segments, group_peaks, groups, block=_BLOCK,
        num_warps=_WARPS,
    )  # fmt: skip
    candidate_bits = (candidates - 1).bit_length()
    _draw[(rows,)](
        logits, logits.stride(0), seen, penalty, vocabulary, segment_peaks, segments, group_peaks, groups, candidates,
        temperature, top_p, min_p, keys, keys.stride(0), positions, positions.stride(0), tokens, finite,
        group_bits=max((groups - 1).bit_length(), candidate_bits), candidate_bits=candidate_bits,
        member_bits=candidate_bits + (_SEGMENT.value - 1).bit_length(), num_warps=_WARPS,
    )  # fmt: skip
    return tokens, finite


@triton.jit
def _write_peaks(
    logits, row_stride, seen, penalty, vocabulary, segment_peaks, segments, group_peaks, groups, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    block_segments: tl.constexpr = block // _SEGMENT
    block_groups: tl.constexpr = block_segments // _SEGMENT
    token_ids = number * block + tl.arange(0, block)
    values = penalized(logits, seen, penalty, vocabulary, token_ids)
    not_finite = ((values.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000) & (token_ids < vocabulary)
    peaks = tl.where(not_finite, _NOT_FINITE_KEY, key(values))
    peaks = tl.max(tl.reshape(peaks, (block_segments, _SEGMENT)), axis=1)
    first = row * segments + number * block_segments
    tl.store(segment_peaks + first + tl.arange(0, block_segments), peaks)
    peaks = tl.max(tl.reshape(peaks, (block_groups, _SEGMENT)), axis=1)
    first = row * groups + number * block_groups
    tl.store(group_peaks + first + tl.arange(0, block_groups), peaks)


@triton.jit
def _draw(
    logits, row_stride, seen, penalty, vocabulary, segment_peaks, segments, group_peaks, groups, candidates,
    temperature, top_p, min_p, keys, keys_stride, positions, positions_stride, tokens, finite,
    group_bits: tl.constexpr, candidate_bits: tl.constexpr, member_bits: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    if seen is not None:
        seen += row * vocabulary
    group_ids = tl.arange(0, 1 << group_bits)
    peaks = tl.load(group_peaks + row * groups + group_ids, mask=group_ids < groups, other=_LOWEST_KEY)
    row_is_finite = tl.max(peaks, axis=0) != _NOT_FINITE_KEY
    best = _leaders(rank(tl.div_rn(value(peaks), temperature), group_ids), group_bits, candidate_bits)
    segment_ids = _members(ranked_index(best), candidate_bits)
    peaks = tl.load(segment_peaks + row * segments + segment_ids, mask=segment_ids < segments, other=_LOWEST_KEY)
    best = _leaders(rank(tl.div_rn(value(peaks), temperature), segment_ids), member_bits, candidate_bits)
    token_ids = _members(ranked_index(best), candidate_bits)
    values = tl.where(row_is_finite, penalized(logits, seen, penalty, vocabulary, token_ids), 0.0)
    best = _leaders(rank(tl.div_rn(values, temperature), token_ids), member_bits, candidate_bits)

    token_ids = ranked_index(best)
    places = tl.arange(0, 1 << candidate_bits)
    log_weights = tl.where(places < candidates, ranked_value(best), -float("inf"))
    weights = tl.exp(log_weights - tl.max(log_weights, axis=0))
    probabilities = tl.div_rn(weights, tl.sum(weights, axis=0))
    largest = tl.sum(tl.where(places == 0, probabilities, 0.0), axis=0)
    beyond = (tl.cumsum(probabilities, axis=0) - probabilities >= top_p) & (top_p < 1.0)
    dropped = (beyond | (probabilities < min_p * largest)) & (places > 0)
    stream = tl.load(keys + row * keys_stride)
    position = tl.load(positions + row * positions_stride)
    scores = log_weights + gumbel(uniform(counted(counted(mixed(stream.to(tl.uint64)), position), token_ids)))
    chosen = tl.argmax(tl.where(dropped, -float("inf"), scores), axis=0)
    token = tl.sum(tl.where(places == chosen, token_ids, 0), axis=0)
    tl.store(tokens + row, tl.where(row_is_finite, token, 0))
    tl.store(finite + row, row_is_finite)


@triton.jit
def _members(parents, parent_bits: tl.constexpr):
    """Indices of the 16 children of each of 2**parent_bits parents, in one dimension."""
    children = parents[:, None] * _SEGMENT + tl.arange(0, _SEGMENT)[None, :]
    return tl.reshape(children, (_SEGMENT << parent_bits,))


@triton.jit
def _leaders(ranks, bits: tl.constexpr, count_bits: tl.constexpr):
    """The 2**count_bits largest of 2**bits ranks, largest first: a bitonic sort that drops the smaller half on the way.

    Runs of 2**count_bits are sorted, up and down in turns. The pairwise larger ones of two neighbors are the
    largest of both, and sorted by the merge steps alone.
    """
    if count_bits == 0:
        ranks = tl.max(ranks, axis=0, keep_dims=True)
    else:
        for run in tl.static_range(1, count_bits + 1):
            for step in tl.static_range(run):
                ranks = _exchange(ranks, bits, run, run - 1 - step)
        for left in tl.static_range(bits - 1, count_bits - 1, -1):
            pairs = tl.reshape(ranks, (1 << (left - count_bits), 2, 1 << count_bits))
            ranks = tl.reshape(tl.max(pairs, axis=1), (1 << left,))
            for step in tl.static_range(count_bits):
                ranks = _exchange(ranks, left, count_bits, count_bits - 1 - step)
    return ranks


@triton.jit
def _exchange(ranks, bits: tl.constexpr, run_bits: tl.constexpr, distance_bits: tl.constexpr):
    """Order each rank and the one 2**distance_bits away: larger first in even runs, last in odd ones."""
    pairs = tl.reshape(ranks, (1 << (bits - 1 - distance_bits), 2, 1 << distance_bits))
    others = tl.reshape(tl.sum(pairs, axis=1, keep_dims=True) - pairs, (1 << bits,))
    places = tl.arange(0, 1 << bits)
    takes_smaller = ((places >> distance_bits) ^ (places >> run_bits)) & 1
    return tl.where((ranks > others) == (takes_smaller != 0), others, ranks)
