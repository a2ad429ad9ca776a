"""An order on numbers with an index each, in one integer: what :func:`vase_cli.kernels.ranking.best` ranks by.

A float32 becomes the int32 that orders like it, its "key"; the two zeros have one key. With the index below it, so that
equal numbers fall to the lower one, it is a "rank", int64. No two ranks are equal.
"""

import triton
import triton.language as tl

LOWEST_RANK = tl.constexpr(-(1 << 63))  # below all others


@triton.jit
def key(values):
    """The key of float32 values."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def value(keys):
    """The float32 of a key."""
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def rank(values, indices):
    """The rank of float32 values with their indices, from 0 to 2**31 - 1."""
    return (key(values).to(tl.int64) << 32) - indices


@triton.jit
def ranked_index(ranks):
    """The index below a rank."""
    return -ranks & 0xFFFFFFFF


@triton.jit
def ranked_value(ranks):
    """The float32 above the index of a rank."""
    return value(((ranks + ranked_index(ranks)) >> 32).to(tl.int32))
