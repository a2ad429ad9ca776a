"""Logits to tokens: greedy, or an exact draw after temperature, top-k, top-p and min-p.

Shapes: B rows, V vocabulary.

Tokens are ranked by logit, equal logits by the lower id, so a filter keeps the same tokens on every device.
"""

from torch import Tensor

from vase_cli.config.schema import SamplingParams
from vase_cli.kernels.ops import FEW_CANDIDATES, TorchOps


def sample(
    logits: Tensor, params: SamplingParams, keys: Tensor, positions: Tensor, ops: TorchOps
) -> tuple[Tensor, Tensor]:
    """Choose the next token of each row; the host waits for nothing.

    ``params`` are the same for all rows; temperature 0 is greedy. ``keys`` are each row's "tokens" stream keys; the
    rest, and what is returned, is that of :meth:`TorchOps.draw`.
    """
    candidates = _candidates(params, logits.shape[-1])
    return ops.draw(logits, candidates, params.temperature, params.top_p, params.min_p, keys, positions)


def drawn_from_few(params: SamplingParams) -> bool:
    """Whether the kernel draws, where there is one: then nothing as wide as the vocabulary is made but the logits."""
    return 0 < _candidates(params, FEW_CANDIDATES + 1) <= FEW_CANDIDATES


def _candidates(params: SamplingParams, vocabulary: int) -> int:
    return 1 if params.temperature == 0.0 else min(params.top_k or vocabulary, vocabulary)
