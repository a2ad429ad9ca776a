"""Rows by need: what a text may take of one, which text comes first, and how many rows there are.

B rows are as long as the B longest texts, one each, and texts get rows longest first. So the k-th text fits the k-th
row, and every later one fits whichever row falls free: it is no longer than the shortest row.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from vase_cli.engine.requests import Request


class Need(NamedTuple):
    """What one text may come to."""

    text_tokens: int  # prompt and generated tokens; 0 for a prompt that leaves nothing of the limit, and is refused
    new_tokens: int  # generated tokens
    certain: bool  # whether the text is sure to come to that many


def need_of(request: Request, max_new_tokens: int | None, max_total_tokens: int) -> Need:
    """What a request may come to under its own limit and those of its engine; None is no limit on new tokens."""
    prompt_tokens = len(request.prompt_token_ids)
    limits = (max_total_tokens - prompt_tokens, max_new_tokens, request.max_new_tokens)
    new_tokens = min(limit for limit in limits if limit is not None)
    return Need(prompt_tokens + new_tokens if new_tokens > 0 else 0, max(0, new_tokens), request.ignore_eos)


def rows_for(needs: Sequence[Need], most: int) -> int:
    """How many rows serve these texts soonest, ``most`` at most; they are longest first, the order they are served in.

    A step takes longer with more rows, though by far less than in proportion, and reads no idle row's states. More
    rows never take more steps. So:

    * Where any text may end early, all rows that there are texts for: a row that falls free is filled at once, and
      with fewer rows the texts would stand behind each other. That the last few texts may have the rows to themselves
      costs a little of each step; half the rows would cost up to as many steps again.
    * Where every text is sure to come to its limit, the fewest rows that take no more steps than ``most`` would: rows
      that would idle at the end only make each step longer.
    """
    most = max(1, min(most, len(needs)))
    if not all(need.certain for need in needs):
        return most
    least = decode_steps(needs, most)
    return 1 + bisect_left(range(1, most), -least, key=lambda rows: -decode_steps(needs, rows))


def decode_steps(needs: Sequence[Need], rows: int) -> int:
    """Decode steps that texts take which all come to their limit, each in the first row that is free.

    A text's first token comes from its prefill; in return a row is filled again one step after its text has ended.
    """
    free_at = [0] * rows
    for need in needs:
        heapq.heapreplace(free_at, free_at[0] + need.new_tokens)
    return max(free_at)
