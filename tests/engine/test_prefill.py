"""Prompts in packs: no token depends on which are together, in which order, or on pauses between layers."""

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import load_model, make_engine, make_requests, token_ids

from vase_cli.attention.base import PromptPack
from vase_cli.attention.sdpa import SDPA
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Completion, NewTokens, Notice, Request
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.step import ForwardStep


class Recorded:
    """A forward step of one prompt without a cache, which keeps the states of each layer."""

    def __init__(self) -> None:
        self.states: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]] = []

    def attend(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
        assert layer == len(self.states)
        self.states.append((queries, keys, values, scale))
        return SDPA().prefill(queries[0], keys[0], values[0], scale)[None]


class PackModel(LanguageModel):
    """Transformers' forward of each prompt by itself, handed to the cache pack by pack and layer by layer."""

    packs = True
    seen: list[tuple[int, ...]]  # the bounds of each pack that was begun
    layers_done: int
    fails_after: int | None  # so many layers of all packs, for want of memory

    def prefill(
        self, token_ids: torch.Tensor, pack: PromptPack, step: ForwardStep
    ) -> Generator[None, None, torch.Tensor]:
        """One pause behind each layer."""
        self.seen.append(pack.bounds)
        prompts = [Recorded() for _ in pack.spans()]
        logits = [
            self.forward(token_ids[span][None], pack.positions[span][None], prompt)
            for prompt, span in zip(prompts, pack.spans(), strict=True)
        ]
        for layer, parts in enumerate(zip(*(prompt.states for prompt in prompts), strict=True)):
            if self.layers_done == self.fails_after:
                self.fails_after = None
                raise torch.OutOfMemoryError("CUDA out of memory.")
            queries, keys, values = (torch.cat([part[which] for part in parts], dim=1) for which in range(3))
            step.attend(layer, queries, keys, values, parts[0][3])
            self.layers_done += 1
            yield
        return torch.cat(logits)


def load_packs(folder: Path) -> PackModel:
    model = load_model(folder)
    model.__class__ = PackModel
    model.seen, model.layers_done, model.fails_after = [], 0, None
    return model


def lengths(bounds: Sequence[int]) -> list[int]:
    return [end - start for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize(("together", "chunk"), [(1, 2048), (8192, 2048), (100, 7), (8192, 1)])
@pytest.mark.parametrize("method", ["full", "vase-attnv", "rkv"])
def test_tokens_do_not_depend_on_packs_or_pauses(
    method: str, together: int, chunk: int, run_ahead: bool, model_folder: Callable[..., Path]
):
    folder, requests = model_folder("qwen3", layers=3), make_requests()
    expected = token_ids(make_engine(load_model(folder), method, max_new_tokens=12), requests)
    model = load_packs(folder)
    changes = {"prefill_tokens": together, "prefill_chunk": chunk, "run_ahead": run_ahead, "max_new_tokens": 12}
    engine = make_engine(model, method, **changes)
    assert token_ids(engine, requests) == expected
    assert token_ids(engine, requests[::-1]) == expected
    assert (max(len(lengths(bounds)) for bounds in model.seen) > 1) == (together > 1)


def test_a_pack_is_as_large_as_the_settings_allow_and_a_longer_prompt_is_alone(model_folder: Callable[..., Path]):
    model = load_packs(model_folder("qwen3"))
    requests = [Request(str(length), (5,) * length, str(length)) for length in (10, 20, 31, 30, 80, 1, 58, 1)]
    engine = make_engine(model, max_num_seqs=8, prefill_tokens=60, max_new_tokens=2)
    assert len(list(engine.generate(requests))) == 8
    assert [lengths(bounds) for bounds in model.seen] == [[80], [58], [31], [30, 20, 10], [1, 1]]
    assert engine.stats.prefill_tokens == sum(len(request.prompt_token_ids) for request in requests)


def test_a_model_or_backend_without_packs_takes_prompts_one_by_one(model_folder: Callable[..., Path]):
    class OneByOne(SDPA):
        supports_packs = False

        def prefill(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
            return super().prefill(queries, keys, values, scale)

    folder, requests = model_folder("qwen3"), make_requests()
    model = load_packs(folder)
    usual = make_engine(model)
    assert token_ids(Engine(model, usual._policy, OneByOne(), usual.settings), requests) == token_ids(usual, requests)
    first = len(requests)
    assert all(len(bounds) == 2 for bounds in model.seen[:first])
    assert len(model.seen[first]) == 5
    model.seen.clear()
    model.__class__ = type("Plain", (PackModel,), {"packs": False})
    token_ids(make_engine(model), requests)
    assert all(len(bounds) == 2 for bounds in model.seen)


def test_rows_that_generate_go_on_while_a_long_prompt_is_computed(model_folder: Callable[..., Path]):
    model = load_packs(model_folder("qwen3", layers=6))
    model.eos_token_ids = frozenset()
    requests = [
        Request("short", (3, 4, 5), "short"),
        Request("brief", (6,) * 62, "brief", max_new_tokens=1),
        Request("long", (7,) * 60, "long", max_new_tokens=2),
    ]
    engine = make_engine(model, max_num_seqs=2, prefill_chunk=20, max_new_tokens=70)
    heard: list[tuple[str, ...]] = []
    for event in engine.stream(requests):
        if isinstance(event, NewTokens):
            heard.append(tuple(token.request.id for token in event.tokens))
    # 20 tokens of work are two of six layers of 60 tokens: three parts, and a step of the short text behind each.
    assert heard[:2] == [("short", "brief"), ("short",)]
    assert heard.index(("long",)) == 4 and heard[2:4] == [("short",)] * 2
    assert heard[5] == ("short", "long")


def test_without_rows_that_generate_nothing_is_interrupted(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model = load_packs(model_folder("qwen3", layers=6))
    engine = make_engine(model, prefill_chunk=1)
    layers = []
    monkeypatch.setattr(engine, "_decode", lambda loop, running: layers.append(model.layers_done))
    with pytest.raises(AttributeError):
        list(engine.stream(make_requests()[:3]))
    assert layers == [6]


@pytest.mark.parametrize("layers_before", [0, 1, 5])
def test_out_of_memory_in_the_middle_of_a_pack_loses_nothing(layers_before: int, model_folder: Callable[..., Path]):
    folder, requests = model_folder("qwen3", layers=3), make_requests()
    expected = token_ids(make_engine(load_model(folder), "vase-attnv"), requests)
    model = load_packs(folder)
    model.fails_after = layers_before
    events = list(make_engine(model, "vase-attnv", prefill_chunk=3).stream(requests))
    assert {event.request.id: event.token_ids for event in events if isinstance(event, Completion)} == expected
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "going on with 3 slots" in notice.message
    began = {token.request.id for event in events if isinstance(event, NewTokens) for token in event.tokens}
    assert {request.id for request in notice.restarted} <= began


def test_a_generation_abandoned_in_the_middle_of_a_pack_leaves_the_engine_usable(model_folder: Callable[..., Path]):
    model = load_packs(model_folder("qwen3", layers=3))
    expected = token_ids(make_engine(model, "vase-attnv"), make_requests())
    engine = make_engine(model, "vase-attnv", prefill_chunk=1)
    events = engine.stream(make_requests())
    model.layers_done = 0
    for _ in events:
        if engine._prefill is not None and engine._prefill.logits is None and model.layers_done % 3:
            break
    else:
        pytest.fail("no pack was interrupted")
    events.close()
    assert token_ids(engine, make_requests()) == expected


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_a_prompt_that_is_not_finite_fails_alone_in_its_pack(
    method: str, value: float, model_folder: Callable[..., Path]
):
    folder, requests = model_folder("qwen3", layers=3, tie_word_embeddings=False), make_requests(80)[:4]
    requests[1] = Request("poisoned", (85, *requests[1].prompt_token_ids), "poisoned")
    model = load_packs(folder)
    with torch.no_grad():
        model.model.get_input_embeddings().weight[85] = value
    alone = {}
    for request in (requests[0], *requests[2:]):
        alone |= token_ids(make_engine(model, method, max_new_tokens=6), [request])
    model.seen.clear()
    completions = {one.request.id: one for one in make_engine(model, method, max_new_tokens=6).generate(requests)}
    assert len(model.seen) == 1
    failed = completions.pop("poisoned")
    assert failed.finish_reason == "error" and "poisoned: keys or values of layer 0 are not finite" in failed.error
    assert {key: one.token_ids for key, one in completions.items()} == alone


def test_a_prompt_that_is_refused_leaves_its_place_in_the_pack_to_the_next(model_folder: Callable[..., Path]):
    model = load_packs(model_folder("qwen3"))
    prompts = {"a": (1,) * 5, "none": (), "b": (2,) * 6, "long": (3,) * 200, "c": (4,) * 7, "d": (5,) * 8, "e": (6,)}
    completions = make_engine(model, max_new_tokens=3).generate(
        [Request(name, prompt, name) for name, prompt in prompts.items()]
    )
    refused = {one.request.id for one in completions if one.error is not None}
    assert refused == {"none", "long"}
    assert lengths(model.seen[0]) == [8, 7, 6, 5]


def test_a_repetition_penalty_sees_the_prompt_of_each_row(model_folder: Callable[..., Path]):
    from vase_cli.config.schema import SamplingParams

    folder, requests = model_folder("qwen3"), make_requests()
    sampling = SamplingParams(temperature=1.0, top_k=30, repetition_penalty=1.5)
    expected = token_ids(make_engine(load_model(folder), sampling=sampling), requests)
    assert token_ids(make_engine(load_packs(folder), sampling=sampling), requests) == expected
    assert (
        token_ids(make_engine(load_packs(folder), sampling=SamplingParams(temperature=1.0, top_k=30)), requests)
        != expected
    )


@pytest.mark.parametrize("begun", [1, 3])
def test_a_text_that_is_a_prompt_goes_on_as_it_did(begun: int, model_folder: Callable[..., Path]):
    """A draw belongs to its position in the text, whether a step or a prefill leads to it."""
    from vase_cli.config.schema import SamplingParams

    folder, requests = model_folder("qwen3"), make_requests()[:4]
    drawn = {"method": "full", "sampling": SamplingParams(temperature=1.0), "max_new_tokens": 8}
    texts = token_ids(make_engine(load_packs(folder), **drawn), requests)
    longer = [
        replace(request, prompt_token_ids=(*request.prompt_token_ids, *texts[request.id][:begun]))
        for request in requests
    ]
    going_on = token_ids(make_engine(load_packs(folder), **drawn), longer)
    for request in requests:
        rest = texts[request.id][begun:]
        assert rest and going_on[request.id][: len(rest)] == rest
