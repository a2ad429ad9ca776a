"""Logits to tokens: greedy, or an exact draw after temperature, top-k, top-p and min-p.

A repetition penalty comes before all of them (CTRL, arXiv 1909.05858).

Shapes: B rows, V vocabulary.

Tokens are ranked by logit, equal logits by the lower id, so a filter keeps the same tokens on every device.
"""

from torch import Tensor

from vase_cli.config.schema import SamplingParams
from vase_cli.kernels.ops import TorchOps


def sample(
    logits: Tensor, params: SamplingParams, keys: Tensor, positions: Tensor, ops: TorchOps, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose the next token of each row; the host waits for nothing.

    ``params`` are the same for all rows; temperature 0 is greedy. ``keys`` are each row's "tokens" stream keys;
    ``seen``, (B, V) bool, are the tokens of each row's text so far, None without a penalty. The rest, and what is
    returned, is that of :meth:`TorchOps.draw`.
    """
    vocabulary = logits.shape[-1]
    candidates = 1 if params.temperature == 0.0 else min(params.top_k or vocabulary, vocabulary)
    filters = (params.temperature, params.top_p, params.min_p)
    return ops.draw(logits, candidates, *filters, keys, positions, seen, params.repetition_penalty)
