"""Where the candidates of a cut stand, for all kernels that score them.

Shapes: R storage rows, S slots of a row, N work items (one layer of one sequence), C candidates (the first tokens in
text order), H KV heads, D head dim, a power of two from 16 to 256. States are (R, S, H, D) in bfloat16, float16 or
float32, their last dimension contiguous; ``rows`` (N,) int64 names the storage row of each item; ``slot_mapping``
(R, H, S) int32 is the slot of each token in text order, None where that is the token's index. Scores are (N, H, C)
float32 in text order. An item's scores depend neither on N nor on the other items: each program belongs to one item,
and all sums are cut up by fixed numbers of candidates.
"""

import triton
import triton.language as tl
from torch import Tensor


def order_of(slot_mapping: Tensor | None, rows: Tensor) -> tuple[Tensor, int, int]:
    """The slot mapping and its strides of row and head; without one, something that is never read."""
    return (rows, 0, 0) if slot_mapping is None else (slot_mapping, slot_mapping.stride(0), slot_mapping.stride(1))


def stages_of(tiles: int, indirect: bool) -> int:
    """Triton's ``num_stages`` that keeps a number of tiles in flight: one read through slots takes two stages."""
    return 2 * tiles - 1 if indirect else tiles


def span_of(usual: int, candidates: int, most: int) -> int:
    """Candidates in one part of a sum over all of them: as usual, or as many as leave no more parts than ``most``."""
    least: int = triton.next_power_of_2(triton.cdiv(candidates, most))
    return max(usual, least)


@triton.jit
def program_of(blocks, heads: tl.constexpr):
    """Item, block of candidates and head of a program; heads are neighbors in time, as they are in memory."""
    program = tl.program_id(0)
    return program // heads // blocks, program // heads % blocks, program % heads


@triton.jit
def slots_of(slot_at, token, candidates, indirect: tl.constexpr, even: tl.constexpr):
    """The slot of each token; unless all tokens are candidates (even), one that exists for those that are not."""
    if indirect:
        if even:
            return tl.load(slot_at + token)
        return tl.load(slot_at + token, mask=token < candidates, other=0)
    return token if even else tl.where(token < candidates, token, 0)


@triton.jit
def states_at(head_at, slot, token_stride, head_dim: tl.constexpr):
    """(slots, D) addresses of one head's states."""
    return head_at + slot.to(tl.int64)[:, None] * token_stride + tl.arange(0, head_dim)[None, :]
