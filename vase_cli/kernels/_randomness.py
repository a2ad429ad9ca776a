"""Counter-based numbers inside kernels, with the bits of :mod:`vase_cli.randomness`."""

import triton
import triton.language as tl


@triton.jit
def mixed(state):
    """``randomness._mix`` of uint64 states."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def counted(state, counter):
    """The state with one more counter, of any integer type, mixed in."""
    return mixed(state + 0x9E3779B97F4A7C15 + counter.to(tl.int64).to(tl.uint64))


@triton.jit
def uniform(state):
    """The float32 in (0, 1) that ``randomness.uniform`` makes of a state."""
    bits = ((state >> 32) * 2 + 1).to(tl.int64)
    return tl.minimum(bits.to(tl.float32) * 2.0**-33, 1.0 - 2.0**-24)


@triton.jit
def gumbel(uniforms):
    """``-log(-log1p(-u))``; the quotient undoes the rounding of 1 - u, so that small u keep their precision."""
    rest = 1.0 - uniforms
    rounded = 1.0 - rest
    log = tl.where(rounded == 0.0, -uniforms, tl.log(rest) * (uniforms / tl.where(rounded == 0.0, 1.0, rounded)))
    return -tl.log(-log)
