"""Logits and the exact distribution that sampling must follow."""

import math

import torch

from vase_cli.config.schema import SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.0, -4.0])


def exact(params: SamplingParams) -> list[float]:
    """The distribution from its definition: temperature, top-k, top-p, min-p, each renormalised."""
    logits = LOGITS.double() / params.temperature
    order = sorted(range(len(logits)), key=lambda token: (-logits[token].item(), token))
    order = order[: params.top_k or len(order)]
    weights = {token: math.exp(logits[token].item()) for token in order}
    total, mass, kept = sum(weights.values()), 0.0, []
    for token in order:
        if mass / total >= params.top_p:
            break
        kept.append(token)
        mass += weights[token]
    largest = weights[order[0]]
    kept = [token for token in kept if weights[token] >= params.min_p * largest]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]
