"""An engine that runs out of memory goes on with fewer slots, and one that is timed counts every step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_engine import load_model, make_engine, make_requests, token_ids

from vase_cli.decoding import DecodeLoop
from vase_cli.engine import Engine
from vase_cli.errors import ModelError
from vase_cli.generation import Completion, Notice, Request


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
    notices = [event.sentence for event in events if isinstance(event, Notice)]
    assert len(notices) == len(calls)
    assert notices[0].startswith("out of memory: going on with 3 slots; ")
    assert engine.settings.slots == engine.cache.shape.slots == (3 if len(calls) == 1 else 2)


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
    line = r"^out of memory with one slot \(CUDA out of memory\. Tried to allocate 2 GiB\.\): use a smaller budget"
    with pytest.raises(ModelError, match=line):
        list(make_engine(model, slots=1).generate(make_requests()))


def test_a_timed_engine_counts_each_step_and_its_cuts(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    plain = make_engine(model, "vase-attnv")
    engine = Engine(model, plain._policy, plain._backend, plain.settings, timed=True)
    completions = list(engine.generate(make_requests()))
    steps, cuts = engine.timer.step_ms(), engine.timer.cut_ms()
    assert len(steps) == len(cuts) == engine.stats.decode_steps
    assert all(0.0 <= cut <= step for step, cut in zip(steps, cuts, strict=True))
    assert sum(one.cuts for one in completions) == engine.stats.cuts
    engine.timer.clear()
    assert engine.timer.step_ms() == []


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


def test_slot_use_is_counted_while_requests_wait(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    engine = make_engine(model, slots=2)
    list(engine.generate(make_requests()))
    stats = engine.stats
    assert 0 < stats.queued_busy_slot_steps <= stats.queued_slot_steps < 2 * stats.decode_steps
    assert stats.queued_busy_slot_steps >= 0.9 * stats.queued_slot_steps


@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_an_observer_sees_the_values_of_every_finished_text_and_changes_nothing(
    method: str, model_folder: Callable[..., Path]
):
    model = load_model(model_folder("qwen3"))
    plain = make_engine(model, method)
    expected = token_ids(plain, make_requests())
    seen = {}

    def observe(completion: Completion, values: torch.Tensor) -> None:
        seen[completion.request.id] = (completion, values.clone())

    engine = Engine(model, plain._policy, plain._backend, plain.settings, observer=observe)
    assert token_ids(engine, make_requests()) == expected
    assert {key: completion.token_ids for key, (completion, _) in seen.items()} == expected
    shape = model.facts.shape
    for completion, values in seen.values():
        assert values.shape == (shape.layers, completion.cached_tokens, shape.kv_heads, shape.head_dim)
        assert (values != 0).any(dim=-1).all()
        if method == "full":
            assert completion.cached_tokens == len(completion.request.prompt_token_ids + completion.token_ids) - 1


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
