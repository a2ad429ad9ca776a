"""The repetition penalty against transformers' and against plain loops; and that it costs nothing where it is off."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.engines import generate_with_lists, load_model, make_engine, make_requests, token_ids

from vase_cli import plugins
from vase_cli.config.schema import SamplingParams
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.engine import Engine
from vase_cli.engine.sampling import sample
from vase_cli.kernels import ops
from vase_cli.kernels.ops import TorchOps, penalized

GREEDY = SamplingParams(repetition_penalty=1.3)
DRAWN = SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("penalty", [0.7, 1.05, 2.0])
def test_logits_are_those_of_transformers(penalty: float, dtype: torch.dtype):
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 300, generator=generator).to(dtype)
    texts = torch.randint(0, 300, (5, 40), generator=generator)
    seen = torch.zeros(5, 300, dtype=torch.bool).scatter_(1, texts, True)
    before = logits.clone()
    got = penalized(logits, seen, penalty)
    assert torch.equal(got, RepetitionPenaltyLogitsProcessor(penalty)(texts, logits.float()))
    assert torch.equal(logits, before) and not torch.equal(got, logits.float())


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_penalty_comes_before_temperature_and_filters(params: SamplingParams):
    logits, keys = torch.randn(6, 90, generator=torch.Generator().manual_seed(3)), torch.arange(6)
    seen = torch.rand(6, 90, generator=torch.Generator().manual_seed(4)) < 0.5
    off = SamplingParams(**{**vars(params), "repetition_penalty": 1.0})
    by_hand = sample(penalized(logits, seen, params.repetition_penalty), off, keys, keys, TorchOps())
    for got, expected in zip(sample(logits, params, keys, keys, TorchOps(), seen), by_hand, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("slots", [1, 3])
def test_full_gives_the_tokens_of_transformers_generate(slots: int, model_folder: Callable[..., Path]):
    from transformers import AutoModelForCausalLM

    folder = model_folder("qwen3")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = {}
    for request in make_requests():
        prompt = torch.tensor([request.prompt_token_ids])
        out = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=40, pad_token_id=0,
            repetition_penalty=1.3,
        )  # fmt: skip
        expected[request.id] = tuple(out[0, prompt.shape[1] :].tolist())
    model = load_model(folder)
    got = token_ids(make_engine(model, sampling=GREEDY, max_num_seqs=slots), make_requests())
    assert got == expected
    assert got != token_ids(make_engine(model), make_requests())


@pytest.mark.parametrize("slots", [1, 3])
def test_evicted_texts_are_those_of_a_plain_loop(slots: int, model_folder: Callable[..., Path]):
    """What was evicted counts too: the penalty is on the text, not on the cache."""
    model = load_model(model_folder("qwen3"))
    policy = plugins.load("eviction", "vase-attnv")()
    requests = [make_requests()[index] for index in (1, 3, 4, 5)]
    engine = make_engine(model, policy, sampling=GREEDY, max_new_tokens=30, max_num_seqs=slots)
    got = token_ids(engine, requests)
    for request in requests:
        tokens, cuts, _ = generate_with_lists(model, policy, 16, 4, request, 30, penalty=1.3)
        assert got[request.id] == tokens and cuts > 0


@pytest.mark.parametrize("run_ahead", [False, True])
def test_a_text_depends_neither_on_neighbors_nor_on_who_had_its_row(run_ahead: bool, model_folder: Callable[..., Path]):
    model, requests = load_model(model_folder("qwen3")), make_requests()
    model.eos_token_ids = frozenset(range(0, 97, 7))  # texts end early, and rows change hands
    changes = {"sampling": DRAWN, "run_ahead": run_ahead}
    engine = make_engine(model, "vase-attnv", **changes)
    together = token_ids(engine, requests)
    assert token_ids(make_engine(model, "vase-attnv", **changes), requests[::-1]) == together
    alone = [token_ids(engine, [request]) for request in requests]
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == together
    assert engine._state.seen is not None and not engine._state.seen.any(), "a row that is free has seen nothing"


def test_a_prompt_takes_the_place_of_what_an_interrupted_prefill_left(model_folder: Callable[..., Path]):
    model = load_model(model_folder("qwen3"))
    expected = token_ids(make_engine(model, sampling=GREEDY), make_requests())
    engine = make_engine(model, sampling=GREEDY)
    assert engine._state.seen is not None
    engine._state.seen.fill_(True)
    assert token_ids(engine, make_requests()) == expected


def test_a_restart_with_fewer_slots_changes_no_text(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    model, step, calls = load_model(model_folder("qwen3")), DecodeLoop.step, iter(range(10_000))
    expected = token_ids(make_engine(model, "vase-attnv", sampling=DRAWN), make_requests())

    def full_once(self: DecodeLoop, longest: int) -> None:
        if next(calls) == 17:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", full_once)
    engine = make_engine(model, "vase-attnv", sampling=DRAWN)
    assert token_ids(engine, make_requests()) == expected
    assert engine.settings.max_num_seqs == 3 and engine._state.seen is not None and len(engine._state.seen) == 3


def test_without_a_penalty_nothing_is_made_or_called(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ops, "penalized", None)
    engine: Engine = make_engine(load_model(model_folder("qwen3")), "vase-attnv")
    assert engine._state.seen is None
    token_ids(engine, make_requests())


def test_values_that_are_no_penalty_are_refused():
    from vase_cli.errors import ConfigError

    for value in (0, -1.0, float("nan"), float("inf"), 1e-7, 1e7, "1.1"):
        with pytest.raises(ConfigError, match=r"^repetition_penalty: "):
            SamplingParams(repetition_penalty=value)  # type: ignore[arg-type]
    assert SamplingParams(repetition_penalty=1).recorded() == SamplingParams().recorded()
    assert "repetition_penalty" not in SamplingParams().recorded()
    assert SamplingParams(repetition_penalty=1.05).recorded()["repetition_penalty"] == 1.05
