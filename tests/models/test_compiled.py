"""Decode steps through ``torch.compile``: traced whole, and left alone where that fails."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.engines import load_model, make_engine, make_requests, token_ids

from vase_cli.engine.requests import Completion, Notice
from vase_cli.models.compiled import CompiledForward


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
@pytest.mark.parametrize("method", ["full", "vase-attnv"])
def test_a_step_is_traced_whole_and_makes_the_same_tokens(
    method: str, family: str, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """Traced and run as it is: generating code needs a compiler that a laptop may lack."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    model = load_model(model_folder(family))
    expected = token_ids(make_engine(model, method), make_requests())
    model.compile()
    calls = []
    plain = CompiledForward.__call__
    monkeypatch.setattr(CompiledForward, "__call__", lambda *args: calls.append(1) or plain(*args))
    engine = make_engine(model, method)
    events = list(engine.stream(make_requests()))
    assert not [event for event in events if isinstance(event, Notice)]
    assert {event.request.id: event.token_ids for event in events if isinstance(event, Completion)} == expected
    assert len(calls) == engine.stats.decode_steps + 1, "one more for the compilation itself"


def test_what_a_compiler_advises_is_not_a_failure(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    def advising(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        warnings.warn("a faster precision is available", UserWarning, stacklevel=2)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=advising))
    model = load_model(model_folder("qwen3"))
    model.compile()
    events = list(make_engine(model).stream(make_requests()[:1]))
    assert not [event for event in events if isinstance(event, Notice)]
    assert model.compiled and not len(recwarn)


def test_a_compilation_that_fails_is_said_once_and_costs_nothing_else(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model = load_model(model_folder("qwen3"))
    expected = token_ids(make_engine(model), make_requests())

    def fail(*args: object) -> None:
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(CompiledForward, "__call__", fail)
    model.compile()
    events = list(make_engine(model).stream(make_requests()))
    notices = [event.message for event in events if isinstance(event, Notice)]
    assert notices == ["torch.compile failed, going on without it: no C++ compiler"]
    assert {event.request.id: event.token_ids for event in events if isinstance(event, Completion)} == expected
    assert not model.compiled
