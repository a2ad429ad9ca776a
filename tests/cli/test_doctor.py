"""``vase doctor``: the table, its exit code, and the recipes that fit."""

import http.client
import importlib.metadata
import importlib.util
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import Outcome, Shell, a_device, files_under, open_shell

from vase_cli.cli import doctor
from vase_cli.config import default_recipe
from vase_cli.config.catalog import Catalog


@pytest.fixture
def vase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("the hub was asked"))
    return open_shell(tmp_path, monkeypatch, capsys)


def findings(outcome: Outcome) -> dict[str, tuple[str, str]]:
    """Status and text of each subject."""
    assert outcome.err == ""
    texts = [line[6:] for line in outcome.out.splitlines()]
    start = texts[0].index(sys.version.split()[0])
    return {
        text[:start].strip(): (line[:4].strip(), text[start:])
        for line, text in zip(outcome.out.splitlines(), texts, strict=True)
    }


def test_a_machine_that_can_work(vase: Shell) -> None:
    outcome = vase("doctor", "--offline")
    found = findings(outcome)
    assert outcome.code == 0
    assert list(found) == [
        "Python", "PyTorch", "memory", "GPU", "Triton", "compiled kernels", "FlashAttention2", "transformers",
        "huggingface-hub", "datasets", "math-verify", "hub cache", "recipes that fit", "recipe taken",
    ]  # fmt: skip
    assert found["PyTorch"][1].startswith(torch.__version__)
    assert found["GPU"] == ("note", "PyTorch sees none: everything runs on the CPU")
    status, text = found["FlashAttention2"]
    assert status == "note" and "pip install flash-attn --no-build-isolation" in text
    assert found["transformers"] == ("ok", importlib.metadata.version("transformers"))
    assert files_under(Path.cwd()) == set()


def test_a_missing_library_is_bad(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_math_verify(name: str) -> str:
        if name == "math-verify":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_math_verify)
    outcome = vase("doctor", "--offline")
    assert outcome.code == 1
    assert findings(outcome)["math-verify"] == ("bad", "is not installed: pip install math-verify")


def test_without_torch_the_rest_is_still_said(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = vase("doctor", "--offline")
    found = findings(outcome)
    assert outcome.code == 1
    status, text = found["PyTorch"]
    assert status == "bad" and text.endswith("pip install torch")
    assert found["transformers"][0] == "ok"
    assert "recipes that fit" not in found


def test_without_the_hub_library_the_rest_is_still_said(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else find_spec(name)
    )
    found = findings(vase("doctor"))
    assert "hub" not in found and "hub cache" not in found and found["huggingface-hub"]


@pytest.mark.parametrize("answers", [True, False])
def test_the_hub_is_asked_unless_offline(vase: Shell, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    asked: list[Any] = []

    class Answer:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def urlopen(url: str, timeout: float) -> Answer:
        asked.append((url, timeout))
        if not answers:
            raise urllib.error.URLError("no route to host")
        return Answer()

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(default_recipe, "Device", a_device("cuda", 140 * 2**30, "a GPU, 140.0 GiB free"))
    outcome = vase("doctor")
    found = findings(outcome)
    status, text = found["hub"]
    assert outcome.code == 0 and len(asked) == 1, "once, for all findings"
    expected = ("ok", "answers") if answers else ("note", "(no route to host): use --model FOLDER and --data FILE")
    assert status == expected[0] and text.endswith(expected[1])
    assert found["recipe taken"] == (
        ("ok", "qwen3-32b, the largest thinking model of the 10 recipes that fit this machine (a GPU, 140.0 GiB free); "
               "its files are not here, 61.0 GiB come from the hub")
        if answers else
        ("note", "tiny-reasoner, it solves recurrence only (`vase tasks show recurrence`); qwen3-32b fits this machine "
                 "(a GPU, 140.0 GiB free), but its files are not here and https://huggingface.co is not reachable "
                 "(no route to host)")
    )  # fmt: skip


def test_the_recipe_of_the_environment_is_the_one_taken(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASE_RECIPE", "qwen3-8b")
    assert findings(vase("doctor", "--offline"))["recipe taken"] == ("ok", "qwen3-8b, which $VASE_RECIPE names")
    monkeypatch.setenv("VASE_RECIPE", "qwen3-8bb")
    outcome = vase("doctor", "--offline")
    assert outcome.code == 1
    assert findings(outcome)["recipe taken"] == ("bad", "no recipe 'qwen3-8bb'; did you mean 'qwen3-8b'?")


def test_compiled_kernels_are_found_with_their_size(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: Path.cwd().parent / name for name in ("triton", "inductor")}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folders["triton"]))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folders["inductor"]))
    folders["triton"].mkdir()
    (folders["triton"] / "kernel.cubin").write_bytes(bytes(3 * 2**20))
    kept = f"kept in {folders['triton']} (3.0 MiB) and {folders['inductor']} (0 B)"
    assert findings(vase("doctor", "--offline"))["compiled kernels"] == ("ok", kept)
    (folders["inductor"]).write_text("no folder")
    outcome = vase("doctor", "--offline")
    status, text = findings(outcome)["compiled kernels"]
    assert outcome.code == 0 and status == "note"
    assert text.startswith(f"{folders['inductor']} cannot be written (Not a directory): kernels are compiled anew")
    assert text.endswith("set TORCHINDUCTOR_CACHE_DIR to a folder that can") and "TRITON" not in text


def test_a_cache_that_cannot_be_written_is_bad(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    outcome = vase("doctor", "--offline")
    assert outcome.code == 1
    status, text = findings(outcome)["hub cache"]
    assert status == "bad" and text.endswith("(Permission denied): set HF_HOME to a folder that can")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "no CUDA device 0: PyTorch sees 0"),
        ("cuda:3", "no CUDA device 3: PyTorch sees 0"),
    ],
)
def test_a_device_that_is_not_there_is_bad(vase: Shell, device: str, message: str) -> None:
    outcome = vase("doctor", "--offline", "--device", device)
    found = findings(outcome)
    assert outcome.code == 1
    status, text = found["recipes that fit"]
    assert status == "bad" and text.startswith(message)
    assert found["GPU"][0] == ("bad" if device.startswith("cuda") else "note")


@pytest.mark.parametrize("device", ["tpu", "cpu:1"])
def test_what_is_not_a_device_is_refused(vase: Shell, device: str) -> None:
    refusal = vase.refused("doctor", "--offline", "--device", device)
    assert refusal == f"--device: '{device}' is not a device; write auto, cpu, cuda, cuda:0 or mps"


@pytest.mark.parametrize(
    ("device_type", "free_gib", "fit", "do_not_fit"),
    [
        ("cpu", 2, {"tiny-reasoner"}, {"qwen3-0.6b", "qwen3-8b"}),
        # Four bytes a parameter on a CPU: 0.6B fits 6 GiB, 1.7B does not.
        ("cpu", 6, {"tiny-reasoner", "qwen3-0.6b"}, {"qwen3-1.7b", "qwen3-8b"}),
        ("cuda", 24, {"qwen3-0.6b", "qwen3-8b"}, {"qwen3-14b", "qwen3-32b"}),
        ("cuda", 140, {"qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b"}, set()),
    ],
)
def test_recipes_that_fit(
    vase: Shell,
    monkeypatch: pytest.MonkeyPatch,
    device_type: str,
    free_gib: int,
    fit: set[str],
    do_not_fit: set[str],
) -> None:
    monkeypatch.setattr(default_recipe, "Device", a_device(device_type, free_gib * 2**30, "a machine"))
    _, text = findings(vase("doctor", "--offline"))["recipes that fit"]
    fitting = set(text.split(", "))
    assert fit <= fitting and not fitting & do_not_fit


def test_a_users_own_recipes_count_and_broken_ones_do_not_hide_them(vase: Shell, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("model: qwen3-0.6b\nbudget: 512\n")
    (own / "broken.yaml").write_text("modle: qwen3-0.6b\n")
    _, text = findings(vase("doctor", "--offline", "--recipes", own))["recipes that fit"]
    assert "mine" in text.split(", ") and "broken" not in text
    assert "nowhere: not a folder; name one with recipes in it" in vase.refused("doctor", "--recipes", "nowhere")


def test_a_gpu_is_measured_by_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((device.index + 1) * 2**30, 2**40))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 0)
    catalog = Catalog.open()
    first, second, processor = (default_recipe.Candidates.find(catalog, name) for name in ("auto", "cuda:1", "cpu"))
    assert (first.device.type, first.device.description) == ("cuda", "GPU 0, 1.0 GiB free")
    assert second.device.description == "GPU 1, 2.0 GiB free"
    assert len(second.fitting) > len(first.fitting) > 0
    assert processor.device.type == "cpu"


def test_an_address_that_is_none_is_a_note(vase: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(address: str, timeout: float) -> object:
        raise http.client.InvalidURL("URL can't contain control characters")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    status, text = findings(vase("doctor"))["hub"]
    assert status == "note" and "is not reachable (URL can't contain control characters)" in text
