"""Thresholds of the value range: fitted to a measurement, and written beside a zoo entry.

Shapes: L layers, H KV heads, n sampled tokens.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from vase_cli.calibration.quantiles import TokenSample, quantiles
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import SUFFIX, FitRule, ThresholdFacts, facts_text
from vase_cli.errors import ConfigError, DataError, file_access
from vase_cli.models.identity import weights_digest
from vase_cli.models.thresholds import TENSOR, numbers_digest
from vase_cli.runs.files import write_file
from vase_cli.tensor_files import tensor_bytes


def fit(sample: TokenSample, rule: FitRule) -> Tensor:
    """Fit the threshold of each head to a sample of the tokens that a cut chooses from: (L, H) float32 on the CPU.

    ``quantile:Q`` is the range that the share Q of the tokens does not exceed; ``share:S`` the one that the share S
    exceeds (the paper protects a quarter of the budget: 0.25); ``mad:K`` is the median plus K times the median of the
    absolute deviations from it. DataError if no token was measured.
    """
    if not len(sample):
        raise DataError("no token was measured after the first ones of each text: take longer texts, or more of them")
    ranges = sample.values("range")
    if rule.kind != "mad":
        return quantiles(ranges, [rule.amount if rule.kind == "quantile" else 1.0 - rule.amount])[0].cpu()
    median = quantiles(ranges, [0.5])[0]
    return (median + rule.amount * quantiles((ranges - median).abs(), [0.5])[0]).cpu()


def share_over(sample: TokenSample, thresholds: Tensor) -> Tensor:
    """Share of a sample's tokens whose range is above its head's threshold: (L, H) float32 on the CPU."""
    ranges = sample.values("range")
    return (ranges > thresholds.to(ranges.device)).float().mean(dim=0).cpu()


def write_thresholds(folder: Path, name: str, values: Tensor, entry: ModelEntry, **measured: Any) -> Path:
    """Write ``NAME.thresholds.safetensors`` and then ``NAME.thresholds.yaml``, whose path it returns.

    ``values`` are (L, H) thresholds of the model of ``entry``, ``measured`` the facts ``task``, ``problems``,
    ``tokens``, ``rule``, ``seed`` and ``date``. ConfigError or RunError if the files cannot be written.
    """
    path = folder / f"{name}{SUFFIX}"
    numbers = path.with_suffix(".safetensors")
    with file_access("write", path, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(numbers, tensor_bytes({TENSOR: values.float()}), ConfigError)
    facts = ThresholdFacts(
        numbers=numbers.name,
        digest=numbers_digest(numbers),
        model=entry.hub_id or entry.name,
        revision=entry.revision,
        weights=weights_digest(entry),
        layers=values.shape[0],
        kv_heads=values.shape[1],
        **measured,
    )
    write_file(path, facts_text(facts).encode(), ConfigError)
    return path
