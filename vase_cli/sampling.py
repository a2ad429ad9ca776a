"""Logits to tokens: greedy, or an exact draw after temperature, top-k, top-p and min-p.

Letters: B rows, V vocabulary.

The filters act in the order temperature, top-k, top-p, min-p, each on what the one before left,
renormalised. Tokens are ranked by logit, equal logits by the lower id, so a filter keeps the same tokens on
every device. The draw is Gumbel-max over what is left: the token of largest log-probability plus noise that
is a function of (row key, text position, token id).
"""

import torch
from torch import Tensor

from vase_cli.config import SamplingParams
from vase_cli.randomness import gumbel, uniform
from vase_cli.ranking import best


def sample(logits: Tensor, params: SamplingParams, keys: Tensor, positions: Tensor) -> Tensor:
    """Choose the next token of each row.

    Args:
        logits: (B, V), any float dtype, finite.
        params: the same for all rows; temperature 0 is greedy.
        keys: (B,) int64, each row's "tokens" stream key.
        positions: (B,) int64, the text position of the token to choose.

    Returns:
        (B,) int64 token ids.
    """
    if params.temperature == 0.0:
        return logits.argmax(dim=-1)
    scaled = logits.float() / params.temperature
    ranked = _ranked(scaled, params)
    if ranked is None:
        token_ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
        log_weights = scaled
    else:
        token_ids, log_weights = ranked
    noise = gumbel(uniform(keys[:, None], positions[:, None], token_ids))
    return token_ids.gather(-1, (log_weights + noise).argmax(dim=-1, keepdim=True)).squeeze(-1)


def _ranked(scaled: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor] | None:
    """Token ids and log weights of the candidates, best first, ``-inf`` for what a filter removes.

    None if no filter is on: then nothing needs ranking.
    """
    vocabulary = scaled.shape[-1]
    top_k = min(params.top_k or vocabulary, vocabulary)
    if top_k == vocabulary and params.top_p == 1.0 and params.min_p == 0.0:
        return None
    token_ids = best(scaled, top_k)
    log_weights = scaled.gather(-1, token_ids)
    probabilities = torch.softmax(log_weights, dim=-1)
    # The mass before a token decides: the token that reaches top_p is kept, so at least one always is.
    dropped = probabilities.cumsum(dim=-1) - probabilities >= params.top_p
    dropped |= probabilities < params.min_p * probabilities[:, :1]
    dropped[:, 0] = False
    return token_ids, log_weights.masked_fill(dropped, -torch.inf)
