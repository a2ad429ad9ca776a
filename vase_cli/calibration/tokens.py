"""The tokens behind a calibration's figures: outliers, what stands around them, and one whole text of T tokens."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from vase_cli.calibration.folder import CalibrationState, Text
from vase_cli.calibration.value_statistics import FIRST_POSITIONS, median_ranges, ratio_to_median

_MOST_OUTLIERS = 64
_MOST_TOKENS = 32
_CONTEXT = 8
_EXAMPLE_HEADS = 3

Pieces = Callable[[Sequence[int]], list[str]]
Tensors = Mapping[str, Tensor]


def examine(state: CalibrationState, tensors: Tensors, pieces: Pieces) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Look the largest tokens up in the finished texts; ``pieces`` gives the text of each of some token ids.

    Returns keys of calibration.json about the texts, "lengths" of the measured ones, and their tokens; and for
    calibration.safetensors "example.range", (heads, T) float32, if there is an example.
    """
    outliers: list[dict[str, Any]] = []
    counts: Counter[int] = Counter()
    lengths: list[int] = []
    ends: Counter[str] = Counter()
    number, ranges = state.statistics.example() or (None, None)
    example, example_tensors = None, {}
    for text in state.texts():
        ends[text.finish_reason] += 1
        if text.finish_reason == "error":
            continue
        lengths.append(len(text.all_token_ids))
        counts.update(text.all_token_ids[:-1])  # the last token is never fed back, so it has no value state
        places = (tensors["top.text"] == text.index).nonzero().tolist()
        outliers += [_outlier(text, tuple(place), tensors) for place in places]
        if ranges is not None and number == text.index:
            example, example_tensors["example.range"] = _example(text, ranges, tensors, pieces)
    outliers.sort(key=itemgetter("layer", "head", "problem", "position"))  # which of equal ratios comes first
    outliers.sort(key=lambda outlier: outlier["ratio"] or 0.0, reverse=True)  # a head without a median comes last
    facts = {
        "texts": len(lengths),
        "truncated": ends["length"],
        "failed": ends["error"],
        "lengths": {
            "texts": len(lengths),
            "mean": statistics.fmean(lengths),
            "sd": statistics.stdev(lengths) if len(lengths) > 1 else None,
            "min": min(lengths),
            "median": float(statistics.median(lengths)),
            "max": max(lengths),
        },
        "outliers": [_in_words(outlier, counts, pieces) for outlier in outliers[:_MOST_OUTLIERS]],
        "outlier_tokens": _by_token(outliers, counts, pieces),
        "example": example,
    }
    return facts, example_tensors


def _outlier(text: Text, place: tuple[int, int, int], tensors: Tensors) -> dict[str, Any]:
    """Describe the outlier at (layer, head, rank), its tokens still numbers."""
    token_ids, median = text.all_token_ids, float(median_ranges(tensors)[place[:2]])
    value_range, position = float(tensors["top.range"][place]), int(tensors["top.position"][place])
    in_prompt = position < len(text.prompt_token_ids)
    return {
        "layer": place[0],
        "head": place[1],
        "range": value_range,
        "ratio": value_range / median if median > 0 else None,
        "problem": text.problem_id,
        "position": position,
        "text_tokens": len(token_ids),
        "place": position / len(token_ids),
        "segment": "first" if position < FIRST_POSITIONS else "prompt" if in_prompt else "completion",
        "token_id": token_ids[position],
        "before": token_ids[max(0, position - _CONTEXT) : position],
        "after": token_ids[position + 1 : position + 1 + _CONTEXT],
    }


def _in_words(outlier: Mapping[str, Any], counts: Counter[int], pieces: Pieces) -> dict[str, Any]:
    (token,) = pieces([outlier["token_id"]])
    around = {key: "".join(pieces(outlier[key])) for key in ("before", "after")}
    return {**outlier, "token": token, **around, "share": counts[outlier["token_id"]] / counts.total()}


def _by_token(outliers: Sequence[Mapping[str, Any]], counts: Counter[int], pieces: Pieces) -> list[dict[str, Any]]:
    entries = Counter(outlier["token_id"] for outlier in outliers)
    most = sorted(entries.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_TOKENS]
    return [
        {
            "token_id": token_id,
            "token": pieces([token_id])[0],
            "entries": count,
            "share_of_outliers": count / len(outliers),
            "share_of_text": counts[token_id] / counts.total(),
        }
        for token_id, count in most
    ]


def _example(text: Text, ranges: Tensor, tensors: Tensors, pieces: Pieces) -> tuple[dict[str, Any], Tensor]:
    """Describe the example, with its ranges in the heads of heaviest tail by max/p50 and in the median head."""
    token_ids, medians = text.all_token_ids, median_ranges(tensors)
    order = ratio_to_median(tensors["max.rest"][0], medians).flatten().argsort(descending=True, stable=True).tolist()
    chosen = dict.fromkeys([*order[:_EXAMPLE_HEADS], order[len(order) // 2]])
    heads = [divmod(head, medians.shape[1]) for head in chosen]
    length = ranges.shape[-1]
    facts = {
        "problem": text.problem_id,
        "prompt_tokens": len(text.prompt_token_ids),
        "text_tokens": len(token_ids),
        "shown_tokens": length,
        "tokens": pieces(token_ids[:length]),
        "heads": [list(head) for head in heads],
        "thresholds": [float(tensors["thresholds"][head]) for head in heads],
        "medians": [float(medians[head]) for head in heads],
    }
    return facts, torch.stack([ranges[head] for head in heads])
