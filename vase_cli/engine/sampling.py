"""Logits to tokens: greedy, or an exact draw after temperature, top-k, top-p and min-p.

Shapes: B rows, V vocabulary.

The filters act in the order temperature, top-k, top-p, min-p, each on what the one before left,
renormalized. Tokens are ranked by logit, equal logits by the lower id, so a filter keeps the same tokens on
every device. The draw is Gumbel-max over what is left: the token of largest log-probability plus noise that
is a function of (row key, text position, token id).
"""

import torch
from torch import Tensor

from vase_cli import kernels
from vase_cli.config.schema import SamplingParams
from vase_cli.kernels.ranking import best
from vase_cli.randomness import gumbel, uniform

_KERNEL_CANDIDATES = 64  # the most candidates the kernel draws from


def sample(logits: Tensor, params: SamplingParams, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the next token of each row; the host waits for nothing.

    Args:
        logits: (B, V) float32, float16 or bfloat16.
        params: the same for all rows; temperature 0 is greedy.
        keys, positions: (B,) int64, each row's "tokens" stream key, and the text position of the token to choose.

    Returns:
        (B,) int64 token ids, and (B,) bool, whether a row's logits are all finite: where not, the token is in range
        and means nothing.
    """
    vocabulary = logits.shape[-1]
    greedy = params.temperature == 0.0
    candidates = _candidates(params, vocabulary)
    ranked = greedy or candidates < vocabulary or params.top_p < 1.0 or params.min_p > 0.0
    if ranked and candidates <= _KERNEL_CANDIDATES and kernels.usable(logits):
        from vase_cli.kernels import sampling as kernel

        temperature = 1.0 if greedy else params.temperature
        return kernel.draw(logits, candidates, temperature, params.top_p, params.min_p, keys, positions)
    finite = logits.isfinite().all(dim=-1)
    safe = logits.masked_fill(~finite[:, None], 0.0)
    if greedy:
        return safe.argmax(dim=-1), finite
    # A tensor on the device: torch would multiply by the reciprocal of a number there, and divide on the CPU.
    scaled = safe.float() / torch.full((), params.temperature, dtype=torch.float32, device=logits.device)
    if ranked:
        token_ids, log_weights = _ranked(scaled, candidates, params)
    else:
        token_ids, log_weights = torch.arange(vocabulary, device=logits.device).expand_as(scaled), scaled
    noise = gumbel(uniform(keys[:, None], positions[:, None], token_ids))
    return token_ids.gather(-1, (log_weights + noise).argmax(dim=-1, keepdim=True)).squeeze(-1), finite


def drawn_from_few(params: SamplingParams) -> bool:
    """Whether the kernel draws, where there is one: then nothing as wide as the vocabulary is made but the logits."""
    return 0 < _candidates(params, _KERNEL_CANDIDATES + 1) <= _KERNEL_CANDIDATES


def _candidates(params: SamplingParams, vocabulary: int) -> int:
    return 1 if params.temperature == 0.0 else min(params.top_k or vocabulary, vocabulary)


def _ranked(scaled: Tensor, candidates: int, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Token ids and log weights of the candidates, best first, ``-inf`` for what a filter removes."""
    token_ids = best(scaled, candidates)
    log_weights = scaled.gather(-1, token_ids)
    probabilities = torch.softmax(log_weights, dim=-1)
    dropped = probabilities < params.min_p * probabilities[:, :1]
    if params.top_p < 1.0:  # not where it is off: the mass before a rare token can round to 1
        # The mass before a token decides: the token that reaches top_p is kept, so at least one always is.
        dropped |= probabilities.cumsum(dim=-1) - probabilities >= params.top_p
    dropped[:, 0] = False
    return token_ids, log_weights.masked_fill(dropped, -torch.inf)
