"""The tokens behind a calibration's figures: which ones are outliers, what stands around them, and one whole text.

Letters: L layers, H KV heads, K largest tokens of a head, T tokens shown of the example.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vase_cli.calibration.folder import CalibrationState
from vase_cli.calibration.value_statistics import FIRST_POSITIONS

_MOST_OUTLIERS = 64
_MOST_TOKENS = 32
_CONTEXT = 8
_EXAMPLE_HEADS = 3

Pieces = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class Examined:
    """What is said of the texts and their tokens in calibration.json, by its keys.

    Attributes:
        texts, truncated, failed: how many were measured, ran into a limit, and failed.
        lengths: prompt and completion tokens of the measured texts.
        outliers, outlier_tokens, example: as in the file.
        example_ranges: (heads, T) float32, None without an example.
    """

    texts: int
    truncated: int
    failed: int
    lengths: dict[str, Any]
    outliers: list[dict[str, Any]]
    outlier_tokens: list[dict[str, Any]]
    example: dict[str, Any] | None
    example_ranges: Tensor | None


def examine(state: CalibrationState, tensors: Mapping[str, Tensor], medians: Tensor, pieces: Pieces) -> Examined:
    """Look the largest tokens up in the texts.

    Args:
        state: the finished texts and what was measured of them.
        tensors: those of calibration.safetensors.
        medians: (L, H) float32, the median range of each head.
        pieces: the text of each of some token ids.
    """
    places: dict[int, list[tuple[int, int, int]]] = {}
    for layer, head, rank in (tensors["top.text"] >= 0).nonzero().tolist():
        places.setdefault(int(tensors["top.text"][layer, head, rank]), []).append((layer, head, rank))
    found: list[dict[str, Any]] = []
    counts: Counter[int] = Counter()
    lengths: list[int] = []
    truncated = failed = 0
    shown = state.statistics.example()
    example: dict[str, Any] | None = None
    example_ranges: Tensor | None = None
    for text in state.texts():
        if text["finish_reason"] == "error":
            failed += 1
            continue
        token_ids = [*text["prompt_token_ids"], *text["token_ids"]]
        lengths.append(len(token_ids))
        truncated += text["finish_reason"] == "length"
        counts.update(token_ids[:-1])  # the last token is never fed back, so it has no value state
        for layer, head, rank in places.get(text["index"], ()):
            value_range = float(tensors["top.range"][layer, head, rank])
            position = int(tensors["top.position"][layer, head, rank])
            found.append(_outlier(text, token_ids, layer, head, value_range, position, float(medians[layer, head])))
        if shown is not None and shown[0] == text["index"]:
            example, example_ranges = _example(text, token_ids, shown[1], tensors, medians, pieces)
    found.sort(key=_order)
    measured = sum(counts.values())
    return Examined(
        texts=len(lengths),
        truncated=truncated,
        failed=failed,
        lengths=_spread(lengths),
        outliers=[_told(one, counts, measured, pieces) for one in found[:_MOST_OUTLIERS]],
        outlier_tokens=_by_token(found, counts, measured, pieces),
        example=example,
        example_ranges=example_ranges,
    )


def _outlier(
    text: Mapping[str, Any],
    token_ids: Sequence[int],
    layer: int,
    head: int,
    value_range: float,
    position: int,
    median: float,
) -> dict[str, Any]:
    """An outlier, its tokens still numbers."""
    prompt_tokens = len(text["prompt_token_ids"])
    segment = "first" if position < FIRST_POSITIONS else "prompt" if position < prompt_tokens else "completion"
    return {
        "layer": layer,
        "head": head,
        "range": value_range,
        "ratio": value_range / median if median > 0 else None,
        "problem": text["problem_id"],
        "position": position,
        "text_tokens": len(token_ids),
        "place": position / len(token_ids),
        "segment": segment,
        "token_id": token_ids[position],
        "before": list(token_ids[max(0, position - _CONTEXT) : position]),
        "after": list(token_ids[position + 1 : position + 1 + _CONTEXT]),
    }


def _order(outlier: Mapping[str, Any]) -> tuple[float, int, int, str, int]:
    """By falling ratio; a head without a median comes last."""
    ratio = outlier["ratio"]
    falling = 0.0 if ratio is None else -ratio
    return falling, outlier["layer"], outlier["head"], outlier["problem"], outlier["position"]


def _told(outlier: Mapping[str, Any], counts: Mapping[int, int], measured: int, pieces: Pieces) -> dict[str, Any]:
    (token,) = pieces([outlier["token_id"]])
    around = {key: "".join(pieces(outlier[key])) for key in ("before", "after")}
    return {**outlier, "token": token, **around, "share": counts[outlier["token_id"]] / measured}


def _by_token(
    found: Sequence[Mapping[str, Any]], counts: Mapping[int, int], measured: int, pieces: Pieces
) -> list[dict[str, Any]]:
    entries = Counter(outlier["token_id"] for outlier in found)
    most = sorted(entries.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_TOKENS]
    return [
        {
            "token_id": token_id,
            "token": pieces([token_id])[0],
            "entries": count,
            "share_of_outliers": count / len(found),
            "share_of_text": counts[token_id] / measured,
        }
        for token_id, count in most
    ]


def _example(
    text: Mapping[str, Any],
    token_ids: Sequence[int],
    ranges: Tensor,
    tensors: Mapping[str, Tensor],
    medians: Tensor,
    pieces: Pieces,
) -> tuple[dict[str, Any], Tensor]:
    """The text shown in detail, and its ranges in the heads of heaviest tail and in the median head."""
    heads = _example_heads(tensors["max.rest"][0], medians)
    shown = ranges.shape[-1]
    told = {
        "problem": text["problem_id"],
        "prompt_tokens": len(text["prompt_token_ids"]),
        "text_tokens": len(token_ids),
        "shown_tokens": shown,
        "tokens": pieces(token_ids[:shown]),
        "heads": [list(one) for one in heads],
        "thresholds": [float(tensors["thresholds"][one]) for one in heads],
        "medians": [float(medians[one]) for one in heads],
    }
    return told, torch.stack([ranges[one] for one in heads])


def _example_heads(maxima: Tensor, medians: Tensor) -> list[tuple[int, int]]:
    """(layer, head) of the heaviest tails by max/p50, and of the head in the middle."""
    tails = torch.where(medians > 0, maxima / medians, 0.0).flatten()
    order = tails.argsort(descending=True, stable=True).tolist()
    heaviest = order[:_EXAMPLE_HEADS]
    middle = order[len(order) // 2]
    chosen = heaviest if middle in heaviest else [*heaviest, middle]
    return [divmod(one, medians.shape[1]) for one in chosen]


def _spread(lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "texts": len(lengths),
        "mean": statistics.fmean(lengths),
        "sd": statistics.stdev(lengths) if len(lengths) > 1 else None,
        "min": min(lengths),
        "median": float(statistics.median(lengths)),
        "max": max(lengths),
    }
