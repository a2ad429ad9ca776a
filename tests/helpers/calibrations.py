"""A made-up calibration of any shape: facts, numbers as nested lists, and a validation, as a folder holds them."""

from pathlib import Path
from typing import Any, NamedTuple

LEVELS = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
# A head's quantiles as multiples of its median.
SHAPE = [0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.1, 1.2, 1.3, 1.5, 1.6]
PEAK_RATIO = 12.0


class Calibration(NamedTuple):
    facts: dict[str, Any]
    numbers: dict[str, Any]
    validation: dict[str, Any] | None


def median_range(layer: int, head: int) -> float:
    return 1.0 + layer + 0.25 * head


def outlier(ratio: float | None, token: str = "\n", before: str = "= 34", after: str = "5: 12") -> dict[str, Any]:
    place = {"layer": 2, "head": 1, "problem": "17", "position": 31, "text_tokens": 1611, "place": 0.02}
    said = {"segment": "completion", "token_id": 12, "token": token, "before": before, "after": after}
    return {"range": 9.1, "ratio": ratio, "share": 0.0613} | place | said


def calibration(layers: int = 3, heads: int = 2, tokens: int = 12, **facts: Any) -> Calibration:
    """All heads are alike but the last of the last layer, whose largest range is PEAK_RATIO times its median."""
    last = layers - 1, heads - 1
    base = [[median_range(layer, head) for head in range(heads)] for layer in range(layers)]
    largest = [[1.9 * p50 for p50 in row] for row in base]
    largest[-1][-1] = PEAK_RATIO * median_range(*last)
    segments = ("first", "prompt", "completion", "rest")
    numbers: dict[str, Any] = {}
    for segment in segments:
        numbers[f"quantiles.{segment}"] = [
            [[[step * p50 for step in SHAPE] for p50 in row] for row in base] for _ in range(3)
        ]
        numbers[f"max.{segment}"] = [[[*row] for row in largest] for _ in range(3)]
    numbers["first.mean_range"] = [[[0.4 * p50, *[p50] * 6, 0.0] for p50 in row] for row in base]
    medians = [median_range(*last), median_range(0, 0)]
    numbers["example.range"] = [[p50 * (0.4 if at == 0 else 1.0) for at in range(tokens)] for p50 in medians]
    numbers["example.range"][0][tokens * 7 // 12] = PEAK_RATIO * medians[0]
    numbers["example.range"][1][tokens * 9 // 12] = 2.5 * medians[1]
    example = {
        "problem": "0",
        "prompt_tokens": tokens // 3,
        "text_tokens": tokens + 8,
        "shown_tokens": tokens,
        "tokens": [f" t{position}" for position in range(tokens)],
        "heads": [list(last), [0, 0]],
        "thresholds": [2 * p50 for p50 in medians],
        "medians": medians,
    }
    known = {
        "format": 1,
        "model": "tiny-reasoner",
        "hub_id": None,
        "revision": None,
        "weights": "0123456789abcdef",
        "files": {"config.json": "0123456789abcdef"},
        "shape": {"layers": layers, "heads": 8, "kv_heads": heads, "head_dim": 64},
        "dtype": "float32",
        "device": "cpu",
        "task": "recurrence",
        "problems": 64,
        "texts": 63,
        "truncated": 2,
        "failed": 1,
        "tokens": 38912,
        "sampling": {"temperature": 0.6, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        "seed": 7,
        "date": "2026-11-30T12:40:00+00:00",
        "vase_version": "0.3.0",
        "rule": "quantile:0.95",
        "metrics": ["range", "norm", "variance"],
        "levels": LEVELS,
        "counts": {"first": 512, "prompt": 3000, "completion": 35400, "rest": 38400},
        "sample_tokens": 32768,
        "lengths": {"recurrence": {"texts": 63, "mean": 608.1, "sd": None, "min": 520, "median": 607.0, "max": 1702}},
        "outliers": [outlier(4.2), outlier(None, " the")],
        "outlier_tokens": [
            {"token_id": 12, "token": "\n", "entries": 40, "share_of_outliers": 0.25, "share_of_text": 0.061}
        ],
        "example": example,
    }
    return Calibration(known | facts, numbers, validation())


def validation() -> dict[str, Any]:
    run = {"loop_share": 0.02, "truncated_share": 0.125, "mean_completion_tokens": 560.4, "mean_cached_tokens": 1610.0}
    run |= {"samples": 48, "method": "x", "outliers": None}
    full = {"label": "full", "accuracy": 0.92, "standard_error": 0.03}
    full |= {"difference": None, "difference_standard_error": None}
    random = {"label": "random", "accuracy": 0.5, "standard_error": None}
    random |= {"difference": -0.42, "difference_standard_error": 0.05}
    asked = {"task": "recurrence", "problems": 48, "budget": 512, "n_large": 128, "seed": 0, "complete": False}
    return {"format": 1, **asked, "runs": [run | full, run | random]}


def write_calibration(folder: Path, measured: Calibration) -> None:
    """The files of a finished calibration folder, but for the page."""
    import json

    import torch

    from vase_cli.tensor_files import tensor_bytes

    (folder / "calibration.json").write_text(json.dumps(measured.facts))
    (folder / "validation.json").write_text(json.dumps(measured.validation))
    tensors = {name: torch.tensor(values) for name, values in measured.numbers.items()}
    (folder / "calibration.safetensors").write_bytes(tensor_bytes(tensors))
