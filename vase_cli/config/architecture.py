"""What a model is built from besides the shape of its cache, by the names of a zoo entry and of a config."""

from typing import Any

from pydantic import Field

from vase_cli.config.types import Count, Flag, Text, record
from vase_cli.errors import ModelError

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

    A mixture of experts has ``experts``, ``experts_per_token`` and ``expert_mlp``, a dense model none of them.
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
        """The facts by their names in a transformers config."""
        return {key: value for name, key in _CONFIG_NAMES.items() if (value := getattr(self, name)) is not None}

    def check(self, config: object, where: str) -> None:
        """Refuse a model of another config: ModelError, which begins with ``where``, for a fact that it contradicts."""
        for name, expected in self.config_values().items():
            if (actual := getattr(config, name, None)) != expected:
                raise ModelError(f"{where}: {name} is {actual}, in the zoo entry {expected}: not the same model")

    def unread_expert_parameters(self, layers: int, tokens: int) -> float:
        """Parameters of experts in ``layers`` layers that none of ``tokens`` tokens is routed to; 0 for a dense model.

        The expected number where every token is routed to ``experts_per_token`` of the experts, each as likely as any
        other: one is left out by all with a probability of (1 - experts_per_token / experts) ** tokens.
        """
        if self.experts is None or self.experts_per_token is None or self.expert_mlp is None:
            return 0.0
        unread = self.experts * (1 - self.experts_per_token / self.experts) ** tokens
        return layers * unread * 3 * self.hidden * self.expert_mlp
