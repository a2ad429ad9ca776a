"""``torch.compile`` around a model's decode step, for families that :mod:`vase_cli.models.fused` does not know.

Attention and cache stay outside of what is compiled, as one opaque operation for each layer. The running step reaches
that operation through a context variable, as an operation takes tensors and numbers only.

Shapes: B rows, Hq query heads, H KV heads, D head dim, V vocabulary.
"""

from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor

from vase_cli.models.step import ForwardStep

WORTHWHILE_STEPS = 20_000
"""Compiling takes about a minute and saves a few milliseconds a step: shorter runs go without it."""

_running: ContextVar[ForwardStep] = ContextVar("running step")


@torch.library.custom_op("vase::attend", mutates_args=())
def attend(queries: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float) -> Tensor:
    """The running step's attention; shapes as in :meth:`vase_cli.models.step.ForwardStep.attend`."""
    return _running.get().attend(layer, queries, keys, values, scale).contiguous()


@attend.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float) -> Tensor:
    return queries.new_empty(queries.shape)


class CompiledForward:
    """A decode step, token ids and positions, (B, 1) int64, to logits, (B, V), whose attention calls :func:`attend`."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._forward = torch.compile(forward, dynamic=False, fullgraph=True)

    def __call__(self, token_ids: Tensor, positions: Tensor, step: ForwardStep) -> Tensor:
        """Run it; compiles on the first call."""
        token = _running.set(step)
        try:
            return self._forward(token_ids, positions)
        finally:
            _running.reset(token)
