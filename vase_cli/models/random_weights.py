"""A model of a zoo entry's size with random weights: as fast as the real one, and nothing to download."""

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ConfigError, ModelError, first_line
from vase_cli.models.describe import ModelFacts, describe, quiet
from vase_cli.models.language_model import INTERFACE, LanguageModel


@dataclass(frozen=True)
class RandomWeights:
    """Stands for the files of a model in a :func:`~vase_cli.engine.plan.plan_run`."""

    max_tokens: int  # of the longest text that the model will see
    seed: int

    def describe(self, entry: ModelEntry, dtype: str | None, device: torch.device) -> ModelFacts:
        """As :func:`vase_cli.models.describe.describe`, from the entry's own facts; ConfigError if it lacks them."""
        return describe(entry, dtype, device, self._config(entry))

    def load(self, entry: ModelEntry, dtype: str | None, device: torch.device) -> LanguageModel:
        """Draw the weights on the device, N(0, 0.02) and norms of 1; no token ends a text.

        Errors as in :meth:`describe`; torch.OutOfMemoryError if there is no room for the weights.
        """
        config = self._config(entry)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            facts = describe(entry, dtype, device, config)
            with quiet(), device:
                model = AutoModelForCausalLM.from_config(config, dtype=facts.torch_dtype, attn_implementation=INTERFACE)
        return LanguageModel(facts, model.eval(), frozenset(), device, entry.name)

    def _config(self, entry: ModelEntry) -> PreTrainedConfig:
        if entry.shape is None or entry.architecture is None:
            problem = f"zoo entry {entry.name} does not say its shape and architecture, which random weights need"
            raise ConfigError(f"{problem}: add them, or name the model with --model")
        values = entry.architecture.config_values() | {
            "num_hidden_layers": entry.shape.layers,
            "num_attention_heads": entry.shape.heads,
            "num_key_value_heads": entry.shape.kv_heads,
            "head_dim": entry.shape.head_dim,
            "max_position_embeddings": self.max_tokens,
            "initializer_range": 0.02,
        }
        try:
            with quiet():
                return AutoConfig.for_model(**values)
        except Exception as error:  # a family's own code
            raise ModelError(f"{entry.name}: no such model can be built ({first_line(error)})") from error
