"""The scheduler by itself: it knows no tensor."""

import pytest

from vase_cli.engine.requests import Request
from vase_cli.engine.scheduler import Scheduler
from vase_cli.engine.sequence import Sequence


def make_scheduler(rows: int, requests: int, lengths: str = "") -> Scheduler:
    """Requests that are named by their number, as long as the digits of ``lengths`` say, or all of a length.

    The first row fits nine, each other one less.
    """
    scheduler = Scheduler(
        rows,
        lambda request: int(request.id),
        lambda request: len(request.prompt_token_ids),
        lambda request, row: len(request.prompt_token_ids) <= 9 - row,
    )
    digits = lengths or "1" * requests
    scheduler.add(Request(str(number), (1,) * int(digits[number]), str(number)) for number in range(requests))
    return scheduler


def start_all(scheduler: Scheduler) -> list[Sequence]:
    started = []
    for sequence in scheduler.schedule():
        scheduler.start(sequence)
        started.append(sequence)
    return started


def ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


def test_free_rows_take_requests_in_their_order():
    scheduler = make_scheduler(rows=2, requests=4)
    first, second = start_all(scheduler)
    assert [(first.row, first.eviction_key), (second.row, second.eviction_key)] == [(0, 0), (1, 1)]
    assert start_all(scheduler) == [] and ids(scheduler.running()) == ["0", "1"]
    scheduler.finish(second)
    assert second.status == "finished"
    (third,) = start_all(scheduler)
    assert (third.request.id, third.row) == ("2", 1)
    for sequence in (first, third):
        scheduler.finish(sequence)
    assert ids(start_all(scheduler)) == ["3"] and scheduler.has_work


def test_the_longest_go_first_and_those_as_long_in_the_order_given():
    scheduler, seen = make_scheduler(rows=3, requests=8, lengths="25135325"), []
    scheduler.add([Request("8", (1,) * 3, "8")])
    while started := start_all(scheduler):
        seen.append(ids(started))
        for sequence in started:
            scheduler.finish(sequence)
    assert seen == [["1", "4", "7"], ["3", "5", "8"], ["0", "6", "2"]]


def test_a_request_waits_for_a_row_that_fits():
    scheduler = make_scheduler(rows=3, requests=4, lengths="9983")
    (first,) = start_all(scheduler)
    assert (first.request.id, first.row) == ("0", 0)
    scheduler.finish(first)
    started = start_all(scheduler)
    assert [(one.request.id, one.row) for one in started] == [("1", 0), ("2", 1), ("3", 2)]


def test_a_row_goes_on_taking_requests_that_are_refused_or_end_at_once():
    scheduler, seen = make_scheduler(rows=1, requests=4), []
    for sequence in scheduler.schedule():
        seen.append(sequence.request.id)
        if sequence.request.id in ("1", "3"):
            scheduler.start(sequence)
        if sequence.request.id == "1":
            scheduler.finish(sequence)
    assert seen == ["0", "1", "2", "3"] and ids(scheduler.running()) == ["3"]


def test_a_request_whose_start_fails_goes_on_waiting():
    scheduler = make_scheduler(rows=2, requests=2)
    with pytest.raises(MemoryError):
        for sequence in scheduler.schedule():
            if sequence.request.id == "1":
                raise MemoryError
            scheduler.start(sequence)
    assert ids(start_all(scheduler)) == ["1"]


def test_a_failure_behind_the_start_repeats_no_request():
    scheduler = make_scheduler(rows=2, requests=3)
    with pytest.raises(MemoryError):
        for sequence in scheduler.schedule():
            scheduler.start(sequence)
            if sequence.request.id == "1":
                raise MemoryError
    scheduler.restart(3)
    assert ids(start_all(scheduler)) == ["0", "1", "2"] and not list(scheduler.schedule())


def test_what_ran_waits_first_in_the_order_of_its_start():
    scheduler = make_scheduler(rows=3, requests=5)
    sequences = start_all(scheduler)
    for sequence, started_s in zip(sequences, (2.0, 3.0, 1.0), strict=True):
        sequence.started_s = started_s
    scheduler.restart(2)
    assert scheduler.running() == [] and ids(start_all(scheduler)) == ["2", "0"]
    scheduler.restart(4)
    assert ids(start_all(scheduler)) == ["2", "0", "1", "3"]
    scheduler.clear()
    for sequence in scheduler.running():
        scheduler.finish(sequence)
    assert not scheduler.has_work
