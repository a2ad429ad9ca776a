"""Thresholds of the value range: fitted from a measurement, written beside a zoo entry, read and checked.

Letters: L layers, H KV heads, n sampled tokens.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vase_cli.calibration.quantiles import TokenSample, rank_of
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import SUFFIX, FitRule, ThresholdFacts, facts_text
from vase_cli.errors import ConfigError, DataError, file_error
from vase_cli.models.describe import weights_digest
from vase_cli.models.thresholds import TENSOR, numbers_digest
from vase_cli.runs.files import write_atomically
from vase_cli.tensor_files import tensor_bytes


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
        write_atomically(numbers, tensor_bytes({TENSOR: values.float()}))
        said = replace(facts, numbers=numbers.name, digest=numbers_digest(numbers))
        write_atomically(path, facts_text(said).encode())
    except OSError as error:
        raise file_error("write", path, error, ConfigError) from error
    return path


def _quantile(values: Tensor, level: float) -> Tensor:
    """(L, H): along the first dimension of (n, L, H), the smallest that a share ``level`` does not exceed."""
    return values.sort(dim=0).values[rank_of(level, values.shape[0])]
