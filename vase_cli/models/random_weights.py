"""A model of a zoo entry's size with random weights: as fast as the real one, and nothing to download."""

from dataclasses import dataclass

import torch

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ConfigError
from vase_cli.models.describe import ModelFacts, describe, make_config
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import initialize


@dataclass(frozen=True)
class RandomWeights:
    """Stands for the files of a model in an :class:`~vase_cli.engine.assembly.Assembly`.

    Attributes:
        max_tokens: the longest text that the model will see.
        seed: of the weights.
    """

    max_tokens: int
    seed: int

    def describe(self, entry: ModelEntry, dtype: str | None, device: torch.device) -> ModelFacts:
        """As :func:`vase_cli.models.describe.describe`, from the entry's own facts.

        Raises:
            ConfigError: the entry lacks them.
            ModelError: a family that is unknown or cannot be served.
        """
        return describe(entry, dtype, device, config=make_config(entry.name, self._values(entry)))

    def load(self, entry: ModelEntry, dtype: str | None, device: torch.device) -> LanguageModel:
        """Draw the weights on the device, N(0, 0.02) and norms of 1; no token ends a text.

        Raises:
            ConfigError, ModelError: as in :meth:`describe`.
            torch.OutOfMemoryError: no room for the weights.
        """
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return initialize(entry, make_config(entry.name, self._values(entry)), dtype, device)

    def _values(self, entry: ModelEntry) -> dict[str, object]:
        if entry.shape is None or entry.architecture is None:
            raise ConfigError(
                f"zoo entry {entry.name} does not say its shape and architecture, which random weights need: "
                "add them, or name the model with --model"
            )
        return entry.architecture.config_values() | {
            "num_hidden_layers": entry.shape.layers,
            "num_attention_heads": entry.shape.heads,
            "num_key_value_heads": entry.shape.kv_heads,
            "head_dim": entry.shape.head_dim,
            "max_position_embeddings": self.max_tokens,
            "initializer_range": 0.02,
        }
