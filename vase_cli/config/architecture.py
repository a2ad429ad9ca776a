"""What a model is built from besides the shape of its cache, in a zoo entry's words and in a config's."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from vase_cli.config.yaml import Fields, Rule, flag, text, whole

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


@dataclass(frozen=True)
class Architecture:
    """Facts that random weights are built from; checked against the loaded model's config.

    ``family`` is transformers' model type, ``hidden`` the width of the residual stream, ``mlp`` that of a dense MLP,
    ``tied`` whether the head is the embedding. A mixture of experts also has ``experts``, ``experts_per_token`` and
    ``expert_mlp``, the width of one; a dense model has none of the three.
    """

    family: str
    hidden: int
    mlp: int
    vocabulary: int
    tied: bool
    experts: int | None = None
    experts_per_token: int | None = None
    expert_mlp: int | None = None

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
        """Of a mixture's experts in so many layers, the elements that so many tokens cannot reach."""
        if self.experts is None or self.experts_per_token is None or self.expert_mlp is None:
            return 0
        unread = max(0, self.experts - tokens * self.experts_per_token)
        return layers * unread * 3 * self.hidden * self.expert_mlp


def read_architecture(section: Fields) -> Architecture:
    """The section ``architecture`` of a zoo entry.

    Raises:
        ConfigError: a key that is missing, unknown or no fact of its kind.
    """
    rules: dict[str, Rule[Any]] = {name: whole() for name in _CONFIG_NAMES} | {"family": text, "tied": flag}
    section.only(rules)
    mixture = [name for name in rules if name.startswith("expert")]
    needed = [name for name in rules if name not in mixture or any(one in section for one in mixture)]
    if missing := [name for name in needed if name not in section]:
        raise section.error(None, f"{missing[0]} is missing; this architecture is {', '.join(needed)}")
    return Architecture(**{name: section.get(name, rules[name]) for name in section})
