"""Rows by need: how long they are, how many there are, and that no text depends on which one it gets."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import RowsOfAnyLength, load_model, make_engine, make_requests, token_ids

from vase_cli.config.architecture import Architecture
from vase_cli.config.schema import ModelEntry, ModelShape, Recipe, SamplingParams
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.engine import Engine
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import Demand, GenerationLimits, plan_run
from vase_cli.engine.requests import Completion, FinishedRow, Request
from vase_cli.engine.rows import Need, decode_steps, need_of, rows_for
from vase_cli.errors import ConfigError
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.random_weights import RandomWeights


def some(prompt_tokens: int, max_new_tokens: int | None = None, *, ignore_eos: bool = False) -> Request:
    name = f"{prompt_tokens} and {max_new_tokens}"
    return Request(name, (5,) * prompt_tokens, name, max_new_tokens=max_new_tokens, ignore_eos=ignore_eos)


@pytest.mark.parametrize(
    ("request_", "limit", "total", "text", "new"),
    [
        (some(10), 7, 100, 17, 7),
        (some(10, 5), 7, 100, 15, 5),
        (some(10, 9), 7, 100, 17, 7),
        (some(10, 9), None, 100, 19, 9),
        (some(10), None, 100, 100, 90),
        (some(95, 9), 7, 100, 100, 5),
        (some(100, 9), 7, 100, 0, 0),
        (some(130), None, 100, 0, 0),
    ],
)
def test_a_text_needs_its_prompt_and_its_own_limit(request_: Request, limit: int, total: int, text: int, new: int):
    assert need_of(request_, limit, total) == Need(text, new, False)
    assert need_of(replace(request_, ignore_eos=True), limit, total) == Need(text, new, True)


def test_a_demand_is_of_the_texts_that_can_be_and_the_longest_is_first():
    demand = Demand.of(GenerationLimits(None, 20, 100), [some(3), some(90), some(200), some(40, 5), some(5, 9)])
    assert [need.text_tokens for need in demand.needs or ()] == [100, 45, 23, 14, 0]
    assert demand.longest_prompt_tokens == 90
    assert Demand.of(GenerationLimits(None, 20, 100), []) == Demand(GenerationLimits(None, 20, 100), 1, ())


def steps_of_rows(new_tokens: Sequence[int], rows: int) -> int:
    """Step by step: a row that is free takes the next text, which keeps it for as many steps as it has tokens."""
    waiting, busy, steps = list(new_tokens), [0] * rows, 0
    while waiting or any(busy):
        busy = [left or (waiting.pop(0) if waiting else 0) for left in busy]
        busy = [max(0, left - 1) for left in busy]
        steps += 1
    return steps


@pytest.mark.parametrize("seed", range(20))
def test_texts_of_certain_length_get_the_fewest_rows_that_take_no_more_steps(seed: int):
    draw = random.Random(seed)
    lengths = sorted((draw.randint(1, 40) for _ in range(draw.randint(1, 14))), reverse=True)
    needs = [Need(3 + tokens, tokens, True) for tokens in lengths]
    for most in (1, 2, 5, 14):
        steps = {rows: steps_of_rows(lengths, rows) for rows in range(1, min(most, len(needs)) + 1)}
        assert steps == {rows: decode_steps(needs, rows) for rows in steps}
        assert rows_for(needs, most) == min(rows for rows, count in steps.items() if count == min(steps.values()))


def test_texts_that_may_end_early_get_all_rows_there_are_texts_for():
    certain, uncertain = Need(20, 10, True), Need(20, 10, False)
    assert rows_for([certain] * 33, 32) == 17, "two waves are as long with half the rows"
    assert rows_for([*[certain] * 32, uncertain], 32) == 32
    assert [rows_for([uncertain] * count, 32) for count in (0, 1, 31, 64)] == [1, 1, 31, 32]


def a_factory(*, ragged: bool = True) -> EngineFactory:
    """Of method full for a small model with random weights, which are never drawn."""
    recipe = Recipe("tiny", "tiny", method="full", device="cpu", sampling=SamplingParams(), window=4)
    shape = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16)
    architecture = Architecture("qwen3", hidden=32, mlp=48, vocabulary=101, tied=False)
    entry = ModelEntry("tiny", hub_id="nobody/nothing", shape=shape, architecture=architecture)
    plan = plan_run(recipe, entry, weights=RandomWeights(4000, seed=0))
    return EngineFactory(replace(plan, backend=RowsOfAnyLength()) if ragged else plan)


def test_memory_is_planned_over_what_the_texts_need():
    limits = GenerationLimits(None, None, 4000)
    demand = Demand.of(limits, [some(10, 20 * number) for number in range(1, 17)])
    lengths = [need.text_tokens for need in demand.needs or ()]
    for ragged, tokens in ((True, sum(lengths[:9])), (False, 9 * lengths[0])):
        memory = a_factory(ragged=ragged).memory
        nine = memory([demand], 9, available_bytes=10**9)
        assert nine.cache_bytes == tokens * 2 * 2 * 2 * 16 * 4 + 4 * lengths[0] + 4 * 9 + 8 * 10 * ragged
        just = nine.total_bytes * 10 // 9 + 10
        assert memory([demand], "auto", available_bytes=just).max_num_seqs == 9
        assert memory([demand], "auto", available_bytes=just, reserved_bytes=10**4).max_num_seqs < 9
        with pytest.raises(ConfigError, match=r"10 slots do not fit: .*; use --slots 9 or less, or auto"):
            memory([demand], 10, available_bytes=just)
    memory = a_factory().memory
    assert memory([demand], "auto", available_bytes=10**9).max_num_seqs == 16
    assert memory([demand], 20, available_bytes=10**9).max_num_seqs == 20
    assert memory([demand], "auto", most_num_seqs=5, available_bytes=10**9).max_num_seqs == 5


def test_auto_takes_the_rows_that_the_task_with_most_of_them_needs():
    limits, memory = GenerationLimits(None, None, 4000), a_factory().memory
    certain = Demand.of(limits, [some(10, 100, ignore_eos=True)] * 18)
    few = Demand.of(limits, [some(10, 100)] * 5)
    assert memory([certain], "auto", available_bytes=10**9).max_num_seqs == 9
    assert memory([certain, few], "auto", available_bytes=10**9).max_num_seqs == 9
    assert memory([certain, few], 16, available_bytes=10**9).max_num_seqs == 16
    many = Demand.of(limits, [some(10, 100)] * 12)
    assert memory([certain, many], "auto", available_bytes=10**9).max_num_seqs == 12


def limited() -> list[Request]:
    """Requests that may come to between 4 and 79 tokens, in no order of their lengths."""
    limits = (9, 40, 3, 3, 21, 40, 5, 11, 30)
    return [replace(one, max_new_tokens=limit) for one, limit in zip(make_requests(), limits, strict=True)]


def engine_for(model: LanguageModel, requests: Sequence[Request], *, ragged: bool = True, **changes: object) -> Engine:
    """An engine whose rows are as long as these requests need, or all as long as the longest."""
    demand = Demand.of(GenerationLimits(None, None, 200), requests)
    backend = RowsOfAnyLength() if ragged else None
    tokens = tuple(need.text_tokens for need in demand.needs or ())
    return make_engine(model, **({"max_new_tokens": None, "text_tokens": tokens, "backend": backend} | changes))


DRAWN = {"sampling": SamplingParams(temperature=1.0), "seed": 3}


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 4, 9, 12])
def test_a_text_is_the_same_in_rows_of_any_length(slots: int, run_ahead: bool, model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder("qwen3")), limited()
    changes = DRAWN | {"max_num_seqs": slots, "run_ahead": run_ahead}
    uniform = engine_for(model, requests, ragged=False, **changes)
    expected = token_ids(uniform, requests)
    engine = engine_for(model, requests, **changes)
    needs = sorted((len(one.prompt_token_ids) + (one.max_new_tokens or 0) for one in requests), reverse=True)
    wanted = tuple(needs[:slots] + [1] * (slots - len(needs)))
    assert engine.cache.shape.row_tokens == (wanted if slots > 1 else None)
    assert uniform.cache.shape.storage_slots == slots * needs[0]
    assert engine.cache.shape.storage_slots == sum(wanted)
    assert token_ids(engine, requests) == expected
    assert token_ids(engine, requests[::-1]) == expected
    alone = [token_ids(engine, [request]) for request in requests]
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == expected


def test_what_a_finished_row_holds_is_its_own(model_folder: Callable[..., Path]):
    """The states of a text, from a row of its own length, from the longest, and from rows all as long."""
    model, requests = load_model(model_folder("qwen3")), limited()
    model.eos_token_ids = frozenset()

    def held(engine: Engine, asked: Sequence[Request]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        return {
            event.completion.request.id: (event.values.clone(), event.positions.clone())
            for event in engine.stream(asked)
            if isinstance(event, FinishedRow)
        }

    expected = held(engine_for(model, requests, ragged=False), requests)
    engine = engine_for(model, requests)
    of_alone = [held(engine, [request]) for request in requests]
    for got in (held(engine, requests), dict(itertools.chain.from_iterable(part.items() for part in of_alone))):
        assert got.keys() == expected.keys()
        for name, parts in got.items():
            assert all(torch.equal(part, other) for part, other in zip(parts, expected[name], strict=True))
            tokens = parts[0].shape[1]
            assert parts[0].any(dim=-1).all() and (parts[1] == torch.arange(tokens)).all()


def test_a_run_that_goes_on_with_what_is_missing_has_the_rows_of_its_start(model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder("qwen3")), limited()
    expected = token_ids(engine_for(model, requests, **DRAWN), requests)
    for start in range(0, 9, 2):
        missing = requests[start:]
        got = token_ids(engine_for(model, requests, **DRAWN), missing)
        assert got == {request.id: expected[request.id] for request in missing}


def test_out_of_memory_keeps_the_longest_rows(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    model, requests = load_model(model_folder("qwen3")), limited()
    expected = token_ids(engine_for(model, requests, **DRAWN), requests)
    engine = engine_for(model, requests, **DRAWN)
    rows = engine.cache.shape.row_tokens
    step, calls = DecodeLoop.step, iter(range(10**6))

    def fail(self: DecodeLoop, longest: int) -> None:
        if next(calls) in (5, 20):
            raise torch.OutOfMemoryError("no more")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", fail)
    assert token_ids(engine, requests) == expected
    assert rows is not None and engine.cache.shape.row_tokens == rows[:2]


def test_a_text_that_its_row_cannot_hold_is_refused_and_the_others_go_on(model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder("qwen3")), limited()
    engine = engine_for(model, requests)
    foreign = Request("task/foreign/0", (3,) * 60, "task/foreign", max_new_tokens=50)
    completions = {one.request.id: one for one in engine.generate([*requests, foreign])}
    error = (
        "task/foreign/0: the text may come to 110 tokens, and the longest row holds 79; lower its limit on new tokens"
    )
    assert completions.pop("task/foreign/0").error == error
    assert all(one.error is None for one in completions.values()) and len(completions) == len(requests)


def test_rows_that_are_cut_are_all_of_one_length(model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder("qwen3")), limited()
    evicting = {"method": "vase-attnv", "window": 4, "max_new_tokens": 40}
    cut = engine_for(model, requests, budget=16, **evicting)
    assert (cut.cache.shape.row_tokens, cut.cache.shape.tokens, cut.cache.shape.cut) == (None, 20, True)
    never = engine_for(model, requests, budget=90, **evicting)
    assert not never.cache.shape.cut and never.cache.shape.row_tokens == (79, 70, 60, 56)
    assert token_ids(never, requests) == token_ids(engine_for(model, requests), requests)


def test_states_that_are_not_finite_are_cleaned_from_their_row_alone(model_folder: Callable[..., Path]):
    folder = model_folder("qwen3", layers=3, tie_word_embeddings=False)
    requests = limited()
    clean = token_ids(engine_for(load_model(folder), requests), requests)
    model = load_model(folder)
    poison = requests[4].prompt_token_ids[0]
    with torch.no_grad():
        model.model.get_input_embeddings().weight[poison] = torch.nan
    engine = engine_for(model, requests)
    failed = []
    for event in engine.stream(requests):
        if isinstance(event, Completion) and event.error:
            failed.append(event.request.id)
        elif isinstance(event, Completion):
            assert event.token_ids == clean[event.request.id]
    assert requests[4].id in failed and len(failed) < len(requests)
    assert engine.cache.keys.isfinite().all() and engine.cache.values.isfinite().all()


@pytest.mark.parametrize("certain", [True, False])
def test_the_order_is_by_what_is_known(certain: bool, model_folder: Callable[..., Path]):
    """Where rows are cut, texts of certain length go by it; of others it says nothing, and they keep their order."""
    engine = make_engine(load_model(model_folder()), "snapkv", budget=16, max_new_tokens=None)
    lengths = [engine.settings.length(some(*sizes, ignore_eos=certain)) for sizes in ((30, 40), (3, 9), (10, 80))]
    assert lengths == ([70, 12, 90] if certain else [20, 12, 20])
