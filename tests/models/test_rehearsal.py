"""A one-layer model runs while weights are read: it has the widths of the real one, and is never in its way."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from vase_cli.config.schema import ModelEntry
from vase_cli.models import rehearsal as rehearsals
from vase_cli.models.describe import ModelFacts, describe, read_config
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.rehearsal import rehearsal

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a CUDA device happens on the CPU."""
    one_layer = rehearsals._one_layer
    monkeypatch.setattr(rehearsals, "_one_layer", lambda config, facts, _: one_layer(config, facts, CPU))
    for name in ("set_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    plain: Any = LanguageModel.__init__
    monkeypatch.setattr(LanguageModel, "__init__", lambda self, *made: plain(self, *made[:3], CPU, made[4]))


def parts(folder: Path) -> tuple[Any, ModelFacts]:
    entry = ModelEntry("tiny", path=folder)
    return read_config(entry), describe(entry, None, CPU)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
def test_one_layer_has_the_widths_of_the_real_ones(family: str, model_folder: Callable[..., Path]) -> None:
    config, facts = parts(model_folder(family, layers=3, vocab_size=5000))
    before = torch.random.get_rng_state()
    model: Any = rehearsals._one_layer(config, facts, CPU)
    assert torch.equal(torch.random.get_rng_state(), before), "nobody's random numbers are others for it"
    real = AutoModelForCausalLM.from_config(config)
    (layer,) = model.model.layers
    shapes = {name: parameter.shape for name, parameter in layer.named_parameters()}
    assert shapes == {name: parameter.shape for name, parameter in real.model.layers[2].named_parameters()}
    assert model.get_input_embeddings().num_embeddings == 1024
    assert config.num_hidden_layers == 3, "the real config is another one"


@pytest.mark.usefixtures("on_cpu")
def test_it_runs_beside_and_is_waited_for(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[tuple[int, str]] = []
    monkeypatch.setattr(
        LanguageModel, "fuse", lambda self: fused.append((self.facts.shape.layers, threading.current_thread().name))
    )
    with rehearsal(*parts(model_folder("qwen3")), CUDA):
        pass
    assert fused == [(1, "rehearsal")]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("where", ["_one_layer", "_run"])
def test_a_fault_is_left_to_the_real_model(
    where: str, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    if where == "_run":
        monkeypatch.setattr(LanguageModel, "fuse", fail)
    else:
        monkeypatch.setattr(rehearsals, where, fail)
    done = False
    with rehearsal(*parts(model_folder("qwen3")), CUDA):
        done = True
    assert done and not len(recwarn), "a fault of a thread would be a warning here"
    with pytest.raises(KeyError), rehearsal(*parts(model_folder("qwen3")), CUDA):
        raise KeyError


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("share", "expected"), [(1.05, 0), (1.15, 1)])
def test_real_weights_are_not_left_without_room(
    share: float, expected: int, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, facts = parts(model_folder("qwen3"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(share * facts.weights_bytes), 2**40))
    fused: list[int] = []
    monkeypatch.setattr(LanguageModel, "fuse", lambda _: fused.append(1))
    with rehearsal(config, facts, CUDA):
        pass
    assert len(fused) == expected


def test_nothing_runs_on_a_cpu(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsals, "_one_layer", lambda *_: pytest.fail("a model was made"))
    with rehearsal(*parts(model_folder("qwen3")), CPU):
        assert "rehearsal" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.gpu
def test_it_runs_to_its_end_on_a_gpu(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    fuse = LanguageModel.fuse
    monkeypatch.setattr(LanguageModel, "fuse", lambda self: ended.append(fuse(self) is None))
    with rehearsal(*parts(model_folder("qwen3", hidden_size=64, intermediate_size=64)), CUDA):
        pass
    assert ended == [True]
