"""Thresholds of the value range that a zoo entry names: read, and checked against the model.

Shapes: L layers, H KV heads.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vase_cli.config.schema import ModelEntry, ModelShape
from vase_cli.config.threshold_facts import ThresholdFacts, read_facts
from vase_cli.errors import ConfigError, DataError
from vase_cli.models.identity import weights_digest
from vase_cli.tensor_files import load_tensors, require_tensor

TENSOR = "thresholds"


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of one model."""

    values: Tensor  # (L, H) float32 on the CPU; a token whose value range is larger is an outlier
    digest: str  # names the numbers, for a run's record
    facts: ThresholdFacts


def load_thresholds(entry: ModelEntry, shape: ModelShape, commit: str | None = None) -> Thresholds | None:
    """The thresholds that a zoo entry names, checked against the model's config; None where it names none.

    ``commit`` is what the entry's revision stands for. Thresholds say either; those of a model that is not pinned may
    say none.

    ConfigError if they are of another model, revision, weights or shape, or the facts break a rule; DataError if the
    numbers are missing, cut, or not those that the facts speak of.
    """
    if entry.thresholds is None:
        return None
    path = Path(entry.thresholds)
    facts = read_facts(path)
    again = f"calibrate {entry.name} again, or leave `thresholds` out of its zoo entry"
    expected = {
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "model": entry.hub_id or facts.model,
        "revision": commit or entry.revision,
        "weights": weights_digest(entry),
    }
    for key, value in expected.items():
        found = getattr(facts, key)
        if found != value and (key != "revision" or found != entry.revision):
            where = f"{path}:{facts.lines[key]}" if key in facts.lines else str(path)
            problem = f"thresholds of {found or 'none'}, the model has {value or 'none'}"
            raise ConfigError(f"{where}: {key}: {problem}; {again}")
    numbers = path.parent / facts.numbers
    tensors, _ = load_tensors(numbers)
    values = require_tensor(numbers, tensors, TENSOR, (shape.layers, shape.kv_heads), torch.float32)
    if numbers_digest(numbers) != facts.digest:
        raise DataError(f"{numbers}: not the numbers that {path.name} speaks of; {again}")
    if not bool(values.isfinite().all()):
        layer, head = (~values.isfinite()).nonzero()[0].tolist()
        problem = f"layer {layer}, KV head {head}: {float(values[layer, head])} is no threshold"
        raise DataError(f"{numbers}: {problem}; {again}")
    return Thresholds(values, facts.digest, facts)


def numbers_digest(path: Path) -> str:
    """Name the content of a file of thresholds: 16 hexadecimal digits."""
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
