"""The logits that a token is drawn from, as kernels read them."""

import triton
import triton.language as tl


@triton.jit
def penalized(logits, seen, penalty, vocabulary, token_ids):
    """The float32 logits of a row's tokens after ``ops.penalized``; minus infinity where there is no token."""
    held = token_ids < vocabulary
    values = tl.load(logits + token_ids, mask=held, other=-float("inf")).to(tl.float32)
    if seen is not None:
        is_seen = tl.load(seen + token_ids, mask=held, other=0) != 0
        values = tl.where(is_seen, tl.where(values > 0, tl.div_rn(values, penalty), values * penalty), values)
    return values
