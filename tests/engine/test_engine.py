"""The engine against transformers, against a cache written with plain lists, and against itself in other company."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.engines import (
    EVICTING,
    FAMILIES,
    METHODS,
    generate_with_lists,
    load_model,
    make_engine,
    make_requests,
    token_ids,
)

from vase_cli import plugins
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.requests import Completion, NewTokens, Request
from vase_cli.errors import ConfigError


@pytest.mark.parametrize("family", FAMILIES)
def test_full_gives_the_tokens_of_transformers_generate(family: str, model_folder: Callable[..., Path]):
    from transformers import AutoModelForCausalLM

    folder = model_folder(family)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = {}
    for request in make_requests():
        prompt = torch.tensor([request.prompt_token_ids])
        out = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=40,
            pad_token_id=0, use_cache=True,
        )  # fmt: skip
        expected[request.id] = tuple(out[0, prompt.shape[1] :].tolist())
    got = token_ids(make_engine(load_model(folder)), make_requests())
    assert got == expected
    assert len({len(set(tokens)) for tokens in got.values()}) > 1, "the model is too dull to tell anything"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", EVICTING)
def test_a_budget_that_is_never_reached_changes_nothing(method: str, family: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder(family))
    expected = token_ids(make_engine(model), make_requests())
    for budget in (110, 400):
        assert token_ids(make_engine(model, method, budget=budget), make_requests()) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_tokens_do_not_depend_on_neighbors_or_order(method: str, family: str, model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder(family)), make_requests()
    changes = {"sampling": SamplingParams(temperature=1.0), "seed": 3}
    together = token_ids(make_engine(model, method, **changes), requests)
    assert token_ids(make_engine(model, method, **changes), requests[::-1]) == together
    engine = make_engine(model, method, **changes)
    assert {key: value for request in requests for key, value in token_ids(engine, [request]).items()} == together
    assert token_ids(make_engine(model, method, **(changes | {"seed": 4})), requests) != together


@pytest.mark.parametrize("protect_prompt", [False, True])
@pytest.mark.parametrize("method", EVICTING)
def test_evicted_generation_equals_a_cache_of_plain_lists(
    method: str, protect_prompt: bool, model_folder: Callable[..., Path]
):
    model = load_model(model_folder("qwen3"))
    policy = plugins.load("eviction", method)(protect_prompt=protect_prompt)
    requests = [make_requests()[index] for index in (1, 3, 4, 5)]
    completions = {c.request.id: c for c in make_engine(model, policy, max_new_tokens=30).generate(requests)}
    for request in requests:
        tokens, cuts, _ = generate_with_lists(model, policy, 16, 4, request, 30)
        assert completions[request.id].token_ids == tokens
        assert completions[request.id].cuts == cuts
    assert sum(completion.cuts for completion in completions.values()) >= 12


@pytest.mark.parametrize("method", ["vase-attnv", "vase-dkv"])
def test_cache_bytes_do_not_depend_on_output_length(method: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset()
    held = []
    for new_tokens in (300, 3000):
        engine = make_engine(
            model, method, max_new_tokens=new_tokens, max_total_tokens=4000, max_num_seqs=1, budget=64, window=16
        )
        (completion,) = engine.generate(make_requests()[:1])
        tensors = {name: value for name, value in vars(engine.cache).items() if isinstance(value, torch.Tensor)}
        allocated = sum(tensor.untyped_storage().nbytes() for name, tensor in tensors.items() if name != "_rows")
        assert allocated == engine.cache.shape.bytes
        assert len(completion.token_ids) == new_tokens and completion.cached_tokens <= 64 + 16
        held.append(allocated)
    assert held[0] == held[1]


def test_every_end_token_stops_a_text_and_limits_are_told_apart(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    assert len(model.eos_token_ids) == 2
    model.eos_token_ids = frozenset()
    requests = make_requests()
    texts = token_ids(make_engine(model), requests)
    for end in {tokens[5] for tokens in texts.values()}:
        model.eos_token_ids = frozenset({end, 10_000})
        for completion in make_engine(model).generate(requests):
            whole = texts[completion.request.id]
            if end in whole:
                assert completion.finish_reason == "stop"
                assert completion.token_ids == whole[: whole.index(end) + 1]
            else:
                assert completion.finish_reason == "length" and completion.token_ids == whole


@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_the_total_limit_counts_the_prompt(method: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    model.eos_token_ids = frozenset()
    engine = make_engine(model, method, max_new_tokens=None, max_total_tokens=46)
    for completion in engine.generate(make_requests()):
        prompt = len(completion.request.prompt_token_ids)
        if prompt >= 46:
            assert completion.finish_reason == "error" and "raise --max-total-tokens" in completion.error
            assert completion.request.id in completion.error and f"{prompt} tokens" in completion.error
        else:
            assert completion.finish_reason == "length"
            assert prompt + len(completion.token_ids) == 46


def test_an_empty_prompt_is_an_error_of_its_own_request_only(model_folder: Callable[..., Path]):
    requests = [Request("task/empty/0", (), "task/empty"), *make_requests()[:3]]
    completions = {c.request.id: c for c in make_engine(load_model(model_folder())).generate(requests)}
    assert completions["task/empty/0"].error == "task/empty/0: the prompt is empty"
    assert sum(completion.error is None for completion in completions.values()) == 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["prompt", "text"])
def test_states_that_are_not_finite_end_one_text_and_name_sequence_and_layer(
    place: str, method: str, value: float, model_folder: Callable[..., Path]
):
    folder = model_folder("qwen3", layers=3, tie_word_embeddings=False)
    requests = make_requests()
    clean = token_ids(make_engine(load_model(folder), method), requests)
    model = load_model(folder)
    if place == "prompt":
        victim = requests[1]
        poison = max(set(victim.prompt_token_ids), key=victim.prompt_token_ids.index)
    else:
        victim = max(requests, key=lambda request: len(clean[request.id]))
        poison = clean[victim.id][6]
    with torch.no_grad():
        model.model.get_input_embeddings().weight[poison] = value
    reached = {r.id: poison in r.prompt_token_ids or poison in clean[r.id][:-1] for r in requests}
    assert reached[victim.id] and not all(reached.values())
    for completion in make_engine(model, method).generate(requests):
        if reached[completion.request.id]:
            assert completion.finish_reason == "error"
            # A method that reads no states may have evicted the first bad one before the logits showed it.
            layer = "[01]" if method in ("streaming", "random") else "0"
            start = f"{completion.request.id}: keys or values of layer {layer} are not finite after"
            assert re.match(start, completion.error), completion.error
        else:
            assert completion.token_ids == clean[completion.request.id]


def test_stream_tells_every_token_in_order_before_its_completion(model_folder: Callable[..., Path]):
    engine = make_engine(load_model(model_folder()), "vase-attnv")
    heard: dict[str, list[int]] = {}
    for event in engine.stream(make_requests()):
        if isinstance(event, NewTokens):
            for token in event.tokens:
                heard.setdefault(token.request.id, []).append(token.token_id)
        elif isinstance(event, Completion):
            assert tuple(heard[event.request.id]) == event.token_ids


def test_an_abandoned_generation_leaves_the_engine_usable(model_folder: Callable[..., Path]):
    model = load_model(model_folder())
    engine = make_engine(model, "vase-attnv")
    generation = engine.generate(make_requests())
    next(generation)
    generation.close()
    assert token_ids(engine, make_requests()) == token_ids(make_engine(model, "vase-attnv"), make_requests())


def test_settings_that_cannot_work_are_refused(model_folder: Callable[..., Path]):
    model = load_model(model_folder())
    with pytest.raises(ConfigError, match="budget 4 is not larger than the window of 4"):
        make_engine(model, "snapkv", budget=4)
    with pytest.raises(ConfigError, match="n_large is 13"):
        make_engine(model, plugins.load("eviction", "vase-attnv")(n_large=13))
    with pytest.raises(ConfigError, match="needs a budget"):
        make_engine(model, "snapkv", budget=None)
