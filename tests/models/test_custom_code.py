"""Code that comes with a model is never run, whatever its JSON files ask for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.engines import load_model, make_engine, make_requests, token_ids

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError
from vase_cli.models.describe import describe
from vase_cli.models.tokenizer import load_tokenizer

OWN_CODE = """open({trace!r}, "w").close()
from transformers import Qwen3Config as OwnConfig, Qwen3ForCausalLM as OwnModel
from transformers import PreTrainedTokenizerFast as OwnTokenizer
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The file that the code leaves where it runs."""
    return tmp_path / "it ran"


@pytest.fixture
def folder(model_folder: Callable[..., Path], tmp_path: Path, trace: Path) -> Path:
    """A model with code of its own, which all its files name."""
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    (folder / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    change(folder / "config.json", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})
    change(folder / "generation_config.json", custom_generate="own")
    return folder


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_model_type_that_transformers_has_is_served_by_its_own_class(
    folder: Path, trace: Path, model_folder: Callable[..., Path]
):
    plain_folder = model_folder("qwen3")
    plain, model = load_model(plain_folder), load_model(folder)
    assert type(model.model).__module__ == "transformers.models.qwen3.modeling_qwen3"
    engines = (make_engine(one, max_new_tokens=5) for one in (model, plain))
    texts, expected = (token_ids(engine, make_requests()) for engine in engines)
    assert texts == expected
    prompts = [load_tokenizer(ModelEntry("m", path=path)).encode_text("1 + 1") for path in (folder, plain_folder)]
    assert prompts[0] == prompts[1]
    assert not trace.exists()


@pytest.mark.parametrize("model_type", ["own-type", None, ["qwen3"]])
def test_another_model_type_is_refused_in_one_line(folder: Path, trace: Path, model_type: object):
    change(folder / "config.json", model_type=model_type)
    with pytest.raises(ModelError) as caught:
        describe(ModelEntry("m", path=folder), None, torch.device("cpu"))
    line = str(caught.value)
    assert line.startswith(f"{folder}: model type '{model_type}' needs code that comes with the model, which is never")
    assert "\n" not in line and not trace.exists()


def test_a_tokenizer_class_that_transformers_lacks_runs_no_code(folder: Path, trace: Path):
    change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    try:
        tokenizer = load_tokenizer(ModelEntry("m", path=folder))
    except ModelError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
    else:
        assert tokenizer.encode_text("1 + 1").token_ids
    assert not trace.exists()
