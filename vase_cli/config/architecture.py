"""What a model is built from besides the shape of its cache, in a zoo entry's words and in a config's."""

import dataclasses
from typing import Any

from pydantic import Field

from vase_cli.config.types import Count, Flag, Text, record

_CONFIG_NAMES = {
    "family": "model_type",
    "hidden": "hidden_size",
    "mlp": "intermediate_size",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_mlp": "moe_intermediate_size",
}


@record
class Architecture:
    """Facts that random weights are built from; checked against the loaded model's config.

    A mixture of experts has all of ``experts``, ``experts_per_token`` and ``expert_mlp``, a dense model none of them.
    """

    family: Text = Field(description="Transformers' model type.")
    hidden: Count = Field(description="Width of the residual stream.")
    mlp: Count = Field(description="Width of a dense MLP.")
    vocabulary: Count = Field(description="Rows of the embedding.")
    tied: Flag = Field(description="Whether the head is the embedding.")
    experts: Count | None = Field(default=None, description="Experts of a layer.")
    experts_per_token: Count | None = Field(default=None, description="Experts that a token is routed to.")
    expert_mlp: Count | None = Field(default=None, description="Width of one expert.")

    def __post_init__(self) -> None:
        missing = [name for name in _CONFIG_NAMES if getattr(self, name) is None]
        if 0 < len(missing) < 3:
            raise ValueError(f"{missing[0]} is missing; this architecture is {', '.join(_CONFIG_NAMES)}")

    def config_values(self) -> dict[str, Any]:
        """The facts by the names that a transformers config has for them."""
        facts = dataclasses.asdict(self)
        return {_CONFIG_NAMES[name]: value for name, value in facts.items() if value is not None}

    def difference(self, config: object) -> str:
        """The first fact of which a config says another value; empty if it says them all."""
        for name, stated in self.config_values().items():
            found = getattr(config, name, None)
            if found != stated:
                return f"{name}={found}, not {stated} as"
        return ""

    def unread_expert_parameters(self, layers: int, tokens: int) -> int:
        """Elements of a mixture's experts, in so many layers, that so many tokens cannot reach."""
        if self.experts is None or self.experts_per_token is None or self.expert_mlp is None:
            return 0
        unread = max(0, self.experts - tokens * self.experts_per_token)
        return layers * unread * 3 * self.hidden * self.expert_mlp
