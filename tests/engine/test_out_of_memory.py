"""An engine that runs out of memory goes on with fewer slots, and one that is timed counts every step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import load_model, make_engine, make_requests, token_ids

from vase_cli.config.schema import SamplingParams
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, EngineStats, FinishedRow, NewTokens, Notice, Request
from vase_cli.errors import ModelError


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: set[int]) -> None:
    """Let some calls of a method run out of memory."""
    plain, seen = getattr(owner, name), iter(range(10_000))

    def patched(*args: object, **kwargs: object) -> object:
        if next(seen) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, patched)


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (DecodeLoop, "step", {17}),
        (DecodeLoop, "step", {0, 30}),
        (DecodeLoop, "prepare", {0}),
        (Engine, "_cut", {3}),
    ],
)
def test_out_of_memory_shrinks_the_slots_and_loses_nothing(
    owner: type, name: str, calls: set[int], model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model, requests = load_model(model_folder("qwen3")), make_requests()
    expected = token_ids(make_engine(model, "vase-attnv"), requests)
    fail_at(monkeypatch, owner, name, calls)
    engine = make_engine(model, "vase-attnv")
    events = list(engine.stream(requests))
    texts = [event for event in events if isinstance(event, Completion)]
    assert {one.request.id: one.token_ids for one in texts} == expected
    assert len(texts) == len(requests)
    notices = [event.message for event in events if isinstance(event, Notice)]
    assert len(notices) == len(calls)
    assert notices[0].startswith("out of memory: going on with 3 slots; ")
    assert engine.settings.max_num_seqs == engine.cache.shape.max_num_seqs == (3 if len(calls) == 1 else 2)


def test_out_of_memory_in_a_prefill_keeps_the_request(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model, requests = load_model(model_folder("qwen3")), make_requests()
    expected = token_ids(make_engine(model), requests)
    fail_at(monkeypatch, type(model), "prefill", {2, 6})
    assert token_ids(make_engine(model), requests) == expected


def test_out_of_memory_with_one_slot_is_one_line(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    model = load_model(model_folder("qwen3"))
    fail_at(monkeypatch, DecodeLoop, "step", {5})
    line = r"^out of memory with one slot \(CUDA out of memory\. Tried to allocate 2 GiB\): use a smaller budget"
    with pytest.raises(ModelError, match=line):
        list(make_engine(model, max_num_seqs=1).generate(make_requests()))


def test_a_timed_engine_counts_each_step_and_its_cuts(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    engine = make_engine(model, "vase-attnv", timed=True)
    completions = list(engine.generate(make_requests()))
    steps, cuts = engine.timer.step_ms(), engine.timer.cut_ms()
    assert len(steps) == len(cuts) == engine.stats.decode_steps
    assert all(0.0 <= cut <= step for step, cut in zip(steps, cuts, strict=True))
    assert sum(one.cuts for one in completions) == engine.stats.cuts
    engine.timer.clear()
    assert engine.timer.step_ms() == []
    plain = make_engine(model, "vase-attnv")
    list(plain.generate(make_requests()))
    assert plain.timer.step_ms() == plain.timer.cut_ms() == []


def test_occupied_rows_decode_as_if_they_were_prefilled(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset()
    engine = make_engine(model, "vase-attnv", max_new_tokens=9, max_total_tokens=60)
    requests = [Request(str(row), (1,) * 30, str(row)) for row in range(3)]
    engine.occupy(requests, [16, 17, 19])
    completions = {one.request.id: one for one in engine.generate(())}
    assert {key: len(one.token_ids) for key, one in completions.items()} == {"0": 9, "1": 9, "2": 9}
    # From 16, 17 and 19 tokens, nine more are fed; a row is cut at 20.
    assert {key: one.cuts for key, one in completions.items()} == {"0": 2, "1": 2, "2": 3}
    assert {key: one.cached_tokens for key, one in completions.items()} == {"0": 17, "1": 18, "2": 16}


def test_a_request_may_ignore_end_tokens(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset()
    whole = token_ids(make_engine(model), make_requests())
    model.eos_token_ids = frozenset(tokens[5] for tokens in whole.values())
    requests = [replace(request, ignore_eos=number % 2 == 0) for number, request in enumerate(make_requests())]
    for completion in make_engine(model).generate(requests):
        goes_on = completion.request.ignore_eos
        assert completion.finish_reason == ("length" if goes_on else "stop")
        assert (completion.token_ids == whole[completion.request.id]) == goes_on


def test_the_figures_of_engines_add_up():
    assert EngineStats(3, 0.5, 9, 4, 2.0, 1) + EngineStats(1, 0.25, 2, 3, 4.0, 5) == EngineStats(4, 0.75, 11, 7, 6.0, 6)


@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_what_a_finished_row_holds_is_seen_before_its_completion(method: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    expected = token_ids(make_engine(model, method), make_requests())
    seen, finished = {}, {}
    for event in make_engine(model, method).stream(make_requests()):
        if isinstance(event, FinishedRow):
            assert event.completion.request.id not in finished
            seen[event.completion.request.id] = (event.completion, event.values.clone(), event.positions.clone())
        elif isinstance(event, Completion):
            finished[event.request.id] = event.token_ids
    assert finished == expected
    shape = model.facts.shape
    for completion, values, positions in seen.values():
        assert completion.token_ids == expected[completion.request.id]
        assert values.shape == (shape.layers, completion.cached_tokens, shape.kv_heads, shape.head_dim)
        assert (values != 0).any(dim=-1).all()
        assert positions.shape == (shape.layers, shape.kv_heads, completion.cached_tokens)
        text_tokens = len(completion.request.prompt_token_ids + completion.token_ids) - 1  # the last is not fed
        assert (positions.diff(dim=-1) > 0).all() and (positions[..., -1] == text_tokens - 1).all()
        if method == "full":
            assert completion.cached_tokens == text_tokens
    assert seen.keys() == expected.keys()


def test_a_request_may_have_a_limit_of_its_own(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset()
    texts = token_ids(make_engine(model), make_requests())
    limited = [replace(request, max_new_tokens=3 + 9 * number) for number, request in enumerate(make_requests())]
    for completion in make_engine(model).generate(limited):
        number = int(completion.request.id.split("/")[1])
        assert completion.finish_reason == "length"
        assert completion.token_ids == texts[completion.request.id][: 3 + 9 * number]
        assert len(completion.token_ids) == min(40, 3 + 9 * number)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("method", ["full", "vase-attnv", "rkv", "streaming"])
def test_a_host_that_runs_ahead_makes_the_same_texts(method: str, slots: int, model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset(range(0, 97, 7))  # texts end early, and often

    changes = {"max_num_seqs": slots, "max_new_tokens": 25, "sampling": SamplingParams(temperature=1.0)}

    def texts(run_ahead: bool) -> dict[str, tuple[object, ...]]:
        engine = make_engine(model, method, run_ahead=run_ahead, **changes)
        heard: dict[str, list[int]] = {}
        finished = {}
        for event in engine.stream(make_requests()):
            if isinstance(event, NewTokens):
                for token in event.tokens:
                    heard.setdefault(token.request.id, []).append(token.token_id)
            elif isinstance(event, Completion):
                assert event.request.id not in finished
                finished[event.request.id] = event.token_ids, event.finish_reason, event.cuts, event.cached_tokens
        assert {key: tuple(tokens) for key, tokens in heard.items()} == {key: one[0] for key, one in finished.items()}
        assert engine.cache.lengths.sum() == 0
        return finished

    assert texts(True) == texts(False)


@pytest.mark.parametrize(("name", "call"), [("step", 0), ("step", 7), ("step", 20), ("prefill", 0), ("prefill", 5)])
def test_out_of_memory_loses_nothing_that_is_in_flight(
    name: str, call: int, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset(range(0, 97, 7))
    expected = token_ids(make_engine(model, "vase-attnv"), make_requests())
    fail_at(monkeypatch, DecodeLoop if name == "step" else type(model), name, {call})
    engine = make_engine(model, "vase-attnv", run_ahead=True)
    assert token_ids(engine, make_requests()) == expected


def test_out_of_memory_while_shrinking_shrinks_further(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model = load_model(model_folder("qwen3"))
    expected = token_ids(make_engine(model, "vase-attnv"), make_requests())
    engine = make_engine(model, "vase-attnv")
    fail_at(monkeypatch, DecodeLoop, "step", {5})
    fail_at(monkeypatch, Engine, "_allocate", {0})
    assert token_ids(engine, make_requests()) == expected
    assert engine.settings.max_num_seqs == 2


def test_out_of_memory_for_every_number_of_slots_is_one_line(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine(load_model(model_folder("qwen3")), "vase-attnv")
    fail_at(monkeypatch, DecodeLoop, "step", {5})
    fail_at(monkeypatch, Engine, "_allocate", set(range(9)))
    with pytest.raises(ModelError, match=r"^out of memory with one slot"):
        list(engine.generate(make_requests()))
