"""Thresholds of the value range: fitted from a measurement, written beside a zoo entry, read and checked.

Letters: L layers, H KV heads, n sampled tokens.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vase_cli.config import ModelEntry, ModelShape
from vase_cli.errors import ConfigError, DataError
from vase_cli.models import weights_digest
from vase_cli.quantiles import TokenSample, rank_of
from vase_cli.run_files import failure, write_atomically
from vase_cli.tensor_files import load_tensors, require_tensor, save_tensors
from vase_cli.threshold_facts import SUFFIX, FitRule, ThresholdFacts, facts_text, parse_rule, read_facts

__all__ = [
    "FitRule",
    "Thresholds",
    "facts_of",
    "fit",
    "load_thresholds",
    "parse_rule",
    "share_over",
    "write_thresholds",
]

_NAME = "thresholds"


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of one model.

    Attributes:
        values: (L, H) float32 on the CPU; a token whose value range is larger is an outlier.
        digest: names the numbers, for a run's record.
        facts: what they were made from.
    """

    values: Tensor
    digest: str
    facts: ThresholdFacts


def fit(sample: TokenSample, rule: FitRule) -> Tensor:
    """The threshold of each head by a rule.

    ``quantile:Q`` is the range that the share Q of the tokens does not exceed; ``share:S`` the one that the share S
    exceeds (the paper protects a quarter of the budget: 0.25); ``mad:K`` is the median plus K times the median of the
    absolute deviations from it.

    Args:
        sample: the tokens that a cut chooses from, with the metric "range".
        rule: which.

    Returns:
        (L, H) float32 on the CPU.

    Raises:
        DataError: no token was measured.
    """
    if not len(sample):
        raise DataError("no token was measured after the first ones of each text: take longer texts, or more of them")
    ranges = sample.values("range")
    if rule.kind != "mad":
        return _quantile(ranges, rule.amount if rule.kind == "quantile" else 1.0 - rule.amount).cpu()
    median = _quantile(ranges, 0.5)
    return (median + rule.amount * _quantile((ranges - median).abs(), 0.5)).cpu()


def share_over(sample: TokenSample, thresholds: Tensor) -> Tensor:
    """(L, H) float32 on the CPU: the share of a sample's tokens whose range is above its head's threshold."""
    ranges = sample.values("range")
    return (ranges > thresholds.to(ranges.device)).float().mean(dim=0).cpu()


def facts_of(
    entry: ModelEntry, values: Tensor, *, task: str, problems: int, tokens: int, rule: str, seed: int, date: str
) -> ThresholdFacts:
    """The facts of new thresholds, (L, H); ``numbers`` and ``digest`` are filled in when they are written."""
    return ThresholdFacts(
        numbers="",
        digest="",
        model=entry.hub_id or entry.name,
        revision=entry.revision,
        weights=weights_digest(entry),
        task=task,
        problems=problems,
        tokens=tokens,
        rule=rule,
        seed=seed,
        date=date,
        layers=values.shape[0],
        kv_heads=values.shape[1],
    )


def write_thresholds(folder: Path, name: str, values: Tensor, facts: ThresholdFacts) -> Path:
    """Write ``NAME.thresholds.safetensors`` and then ``NAME.thresholds.yaml``, whose path it returns.

    Raises:
        RunError: they cannot be written.
    """
    path = folder / f"{name}{SUFFIX}"
    numbers = path.with_suffix(".safetensors")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(numbers, {_NAME: values.float()})
        said = replace(facts, numbers=numbers.name, digest=_digest(numbers))
        write_atomically(path, facts_text(said).encode())
    except OSError as error:
        raise failure("write", path, error, ConfigError) from error
    return path


def load_thresholds(entry: ModelEntry, shape: ModelShape) -> Thresholds | None:
    """The thresholds that a zoo entry names, checked against the model; None where it names none.

    Args:
        entry: the model.
        shape: of the loaded config.

    Raises:
        ConfigError: they are of another model, revision, weights or shape, or the facts break a rule.
        DataError: the numbers are missing, cut, or not those that the facts speak of.
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
        "revision": entry.revision,
        "weights": weights_digest(entry),
    }
    for key, value in expected.items():
        found = getattr(facts, key)
        if found != value:
            where = f"{path}:{facts.lines[key]}" if key in facts.lines else str(path)
            raise ConfigError(
                f"{where}: {key}: thresholds of {found or 'none'}, the model has {value or 'none'}; {again}"
            )
    numbers = path.parent / facts.numbers
    values = require_tensor(numbers, load_tensors(numbers)[0], _NAME, (shape.layers, shape.kv_heads), torch.float32)
    if _digest(numbers) != facts.digest:
        raise DataError(f"{numbers}: not the numbers that {path.name} speaks of; {again}")
    if not bool(values.isfinite().all()):
        layer, head = (int(one) for one in (~values.isfinite()).nonzero()[0])
        raise DataError(
            f"{numbers}: layer {layer}, KV head {head}: {float(values[layer, head])} is no threshold; {again}"
        )
    return Thresholds(values, facts.digest, facts)


def _quantile(values: Tensor, level: float) -> Tensor:
    """(L, H): along the first dimension of (n, L, H), the smallest that a share ``level`` does not exceed."""
    return values.sort(dim=0).values[rank_of(level, values.shape[0])]


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
