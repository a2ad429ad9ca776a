"""The mixture of experts in a layer of the fused forward: transformers' weights as they are, through kernels.

Which experts are the likeliest can hang on the last bit of a product, and another expert changes all that follows. So
a forward is compared with transformers' own while it follows the choices of that one, and the choices by themselves.

Shapes: T tokens, X experts, K experts of a token, E width of the residual stream, M width of an expert.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import linear


class Choice(NamedTuple):
    """What a router made of states (T, E): (T, K) experts in int32, the likeliest first, and their weights."""

    states: Tensor
    chosen: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Router:
    """Chooses ``count`` experts of X by a product with ``weight``, (X, E); ``followed`` is a choice to take instead."""

    weight: Tensor
    count: int
    normalize: bool
    followed: Choice | None = None

    def following(self, choice: Choice) -> "Router":
        """One that chooses as was chosen for the last tokens of a text."""
        return replace(self, followed=choice)

    def choose(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Experts, (T, K) int32, and their weights, (T, K), for states (T, E)."""
        from vase_cli.kernels.experts import logits
        from vase_cli.kernels.routing import route

        if self.followed is not None:
            tokens = states.shape[0]
            return self.followed.chosen[-tokens:].contiguous(), self.followed.weights[-tokens:].contiguous()
        return route(logits(states, self.weight), self.count, normalize=self.normalize)

    def error(self, choice: Choice) -> float:
        """How far this router is off another's choice, relatively: in the weights, or in the logits of the experts."""
        all_logits = linear(choice.states, self.weight).float()
        chosen, weights = self.choose(choice.states)
        own, other = (all_logits.gather(1, experts.long()) for experts in (chosen, choice.chosen))
        pairs = ((own, other), (weights.float(), choice.weights.float()))
        return max(float((got - expected).norm() / expected.norm()) for got, expected in pairs)


def is_mixture(mlp: Any) -> bool:
    """Whether a layer's MLP is a mixture of experts: layers of one model may differ."""
    return hasattr(mlp, "experts")


def is_stacked(mlp: Any) -> bool:
    """Whether a mixture's weights lie as :func:`mixture` takes them."""
    router, experts = mlp.gate, mlp.experts
    count, width = router.weight.shape
    down: tuple[int, ...] = tuple(experts.down_proj.shape)
    return (
        down[:2] == (count, width)
        and tuple(experts.gate_up_proj.shape) == (count, 2 * down[2], width)
        and experts.down_proj.is_contiguous()
        and experts.gate_up_proj.is_contiguous()
    )


def take_router(mlp: Any) -> Router:
    """The router of a mixture."""
    return Router(mlp.gate.weight, int(mlp.gate.top_k), bool(mlp.gate.norm_topk_prob))


def mixture(states: Tensor, router: Router, gate_up: Tensor, down: Tensor) -> Tensor:
    """States (T, E) to what their experts make of them, (T, E).

    ``states`` are contiguous; ``gate_up`` (X, 2M, E) and ``down`` (X, E, M) are the weights of all experts.
    """
    from vase_cli.kernels import experts, routing

    chosen, weights = router.choose(states)
    division = experts.division(states.shape[0], router.count, gate_up.shape[0])
    groups = routing.group(chosen, gate_up.shape[0], division.block)
    activated = experts.gate_up(states, gate_up, groups, router.count, division.gate_up)
    made = experts.down(activated, down, groups, weights, division.down)
    out = states.new_empty(states.shape)
    routing.join(made, router.count, out)
    return out


@contextmanager
def recorded_choices(model: Any) -> Iterator[dict[int, Choice]]:
    """Fill a dict with what transformers' routers choose in the next forward, by the number of the layer."""
    choices: dict[int, Choice] = {}

    def watch(number: int, router: Any) -> Any:
        def record(module: Any, args: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
            states = args[0].reshape(-1, args[0].shape[-1])
            choices[number] = Choice(states, output[2].int(), output[1].to(states.dtype))

        return router.register_forward_hook(record)

    layers = enumerate(model.model.layers)
    hooks = [watch(number, layer.mlp.gate) for number, layer in layers if is_mixture(layer.mlp)]
    try:
        yield choices
    finally:
        for hook in hooks:
            hook.remove()
