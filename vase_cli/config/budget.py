"""A budget as written ("4x" or 4096) -> tokens per KV head, and the sentence that says how."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from vase_cli.errors import ConfigError

_RATIO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)x", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """``tokens`` kept per KV head after a cut; ``sentence`` says where the figure comes from."""

    tokens: int
    sentence: str
    warning: str | None = None


def parse_budget(spec: int | str) -> int | Fraction:
    """Tokens (an ``int``), or for "Nx" the ratio N (a ``Fraction``, so that the division is exact).

    Raises:
        ConfigError: neither of the two, below 1 token, or a ratio below 1.
    """
    if isinstance(spec, bool) or not isinstance(spec, (int, str)):
        raise _not_a_budget(spec)
    if isinstance(spec, int):
        tokens = spec
    elif ratio := _RATIO.fullmatch(spec.strip()):
        value = Fraction(ratio[1])
        if value < 1:
            raise ConfigError(
                f"budget {spec!r} is too small: N of 'Nx' must be at least 1; '4x' keeps a quarter of the full cache"
            )
        return value
    elif re.fullmatch(r"[-+]?[0-9]{1,18}", spec.strip()):
        tokens = int(spec)
    else:
        raise _not_a_budget(spec)
    if tokens < 1:
        raise ConfigError(
            f"budget {tokens} is not a positive number of tokens, such as 4096; method 'full' evicts nothing"
        )
    return tokens


def resolve_budget(
    spec: int | str | None, *, task: str | None, window: int, token_limit: int, dense_tokens: Mapping[str, float]
) -> Budget:
    """The budget of one task (None: a prompt of no task) for any method but ``full``, which takes none.

    Nx is the task's mean full-cache length (``dense_tokens``, in tokens), or where none is known ``token_limit``, over
    N, rounded up to a multiple of ``window``. Tokens are taken as they are. A budget that ``token_limit`` never
    reaches evicts nothing and is a warning.

    Raises:
        ConfigError: no budget, one that :func:`parse_budget` refuses, or one not above ``window``.
    """
    of_task = f" for {task}" if task else ""
    if spec is None:
        raise ConfigError(f"no budget{of_task}; give tokens or a ratio, such as --budget 4096 or --budget 4x")
    parsed = parse_budget(spec)
    if isinstance(parsed, int):
        tokens = parsed
        sentence = f"{tokens} tokens, as given"
    else:
        dense = dense_tokens.get(task) if task else None
        length = Fraction(str(dense)) if dense else Fraction(token_limit)
        tokens = math.ceil(length / parsed / window) * window
        if dense:
            source = f"{dense:,.10g} mean full-cache tokens of {task}"
        else:
            source = f"the limit of {token_limit:,} tokens, no mean full-cache length{of_task} being known,"
        sentence = f"{_ratio(parsed)} -> {tokens} tokens: {source} / {_ratio(parsed)[:-1]}, rounded up to {window}s"
    if tokens <= window:
        how = f" ({sentence})" if isinstance(parsed, Fraction) else ""
        raise ConfigError(
            f"budget {tokens}{of_task}{how}: not above the window of {window} tokens, which are always kept; "
            "raise the budget or lower the window"
        )
    warning = None
    if tokens >= token_limit:
        warning = f"budget {tokens}{of_task}: the limit is {token_limit} tokens, so nothing will ever be evicted"
    return Budget(tokens, sentence, warning)


def _ratio(value: Fraction) -> str:
    return f"{float(value):g}x"


def _not_a_budget(spec: object) -> ConfigError:
    return ConfigError(
        f"budget {spec!r} is not a number of tokens nor a ratio; write 4096, or 4x for a quarter of the full cache"
    )
