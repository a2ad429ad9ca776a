"""What names a model: each file of a folder that may change a token, and the commit of a hub model."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vase_cli.config.schema import ModelEntry
from vase_cli.models import identity
from vase_cli.models.identity import at_commit, model_files, weights_digest

COUNTED = (
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer.model", "sentencepiece.bpe.model", "qwen.tiktoken", "source.spm", "bpe.codes", "tekken.json",
    "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "weights.pt", "weights.pth",
    "adapter_config.json", "additional_chat_templates/rag.jinja",
)  # fmt: skip
LEFT_OUT = (
    "README.md", "readme.txt", "LICENSE", "LICENSE.txt", "NOTICE", ".gitattributes", ".DS_Store", "plot.PNG",
    "entry.yaml", "m.thresholds.yaml", "m.thresholds.safetensors", "train.py", "data.jsonl", "runs/run.json",
    "checkpoint-5/config.json", "additional_chat_templates/README.md",
)  # fmt: skip


def put(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_every_file_that_may_change_a_token_counts_and_no_other(tmp_path: Path):
    for name in (*COUNTED, *LEFT_OUT):
        put(tmp_path / name)
    before = model_files(tmp_path)
    assert list(before) == sorted(COUNTED)
    for number, name in enumerate((*COUNTED, *LEFT_OUT)):
        put(tmp_path / name, b"y" * (2 + number))
    after = model_files(tmp_path)
    assert after.keys() == before.keys() and not [name for name in COUNTED if after[name] == before[name]]
    put(tmp_path / "normalizer.json")
    assert model_files(tmp_path).keys() - after.keys() == {"normalizer.json"}


def test_digests_follow_the_content_not_the_folder(tmp_path: Path):
    for folder in ("first", "second"):
        put(tmp_path / folder / "config.json", b"{}")
        put(tmp_path / folder / "model.safetensors", b"a" * 5000)
    assert model_files(tmp_path / "first") == model_files(tmp_path / "second")
    put(tmp_path / "second" / "model.safetensors", b"a" * 2500 + b"b" + b"a" * 2499)
    first, second = model_files(tmp_path / "first"), model_files(tmp_path / "second")
    assert [name for name in first if first[name] != second[name]] == ["model.safetensors"]


def test_a_large_file_is_read_at_both_ends_only(tmp_path: Path):
    size, path = 2**31, tmp_path / "model.safetensors"
    digests = []
    for place in (None, 0, size - 1, size):
        with path.open("wb") as file:  # mostly a hole
            file.truncate(size)
            if place is not None:
                file.seek(place)
                file.write(b"x")
        digests.append(model_files(tmp_path)["model.safetensors"])
    assert len(set(digests)) == 4


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "config.json", b"{}")
    before = model_files(tmp_path)
    monkeypatch.setattr(identity.hashlib, "blake2b", None)
    assert model_files(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_what_is_no_file_is_not_opened(tmp_path: Path):
    put(tmp_path / "model.safetensors")
    alone = model_files(tmp_path), weights_digest(ModelEntry("tiny", path=tmp_path))
    for name in ("pipe.safetensors", "vocab.json", "model.safetensors.index.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    (tmp_path / "zeros.bin").symlink_to("/dev/zero")
    (tmp_path / "folder.safetensors").mkdir()
    assert (model_files(tmp_path), weights_digest(ModelEntry("tiny", path=tmp_path))) == alone


def test_a_link_counts_as_the_file_that_it_leads_to(tmp_path: Path):
    put(tmp_path / "blobs" / "1a2b", b"weights")
    put(tmp_path / "plain" / "model.safetensors", b"weights")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "model.safetensors").symlink_to(tmp_path / "blobs" / "1a2b")
    assert model_files(tmp_path / "linked") == model_files(tmp_path / "plain")


def test_shards_within_folders_count_where_an_index_names_them(tmp_path: Path):
    put(tmp_path / "shards" / "1.safetensors")
    put(tmp_path / "shards" / "2.safetensors")
    index = {"weight_map": {"a": "shards/1.safetensors", "b": "gone.safetensors"}}
    put(tmp_path / "model.safetensors.index.json", json.dumps(index).encode())
    assert model_files(tmp_path).keys() == {"model.safetensors.index.json", "shards/1.safetensors"}
    for broken in (b"{", b"[]", b'{"weight_map": [1]}', b'{"weight_map": {"a": 3}}', b"[" * 100_000):
        put(tmp_path / "model.safetensors.index.json", broken)
        assert model_files(tmp_path).keys() == {"model.safetensors.index.json"}


def test_the_weights_digest_names_the_weights_of_a_folder(tmp_path: Path):
    folders = {"first": [b"a" * 5000], "second": [b"a" * 4999 + b"b"], "sharded": [b"a" * 2500] * 2}
    for folder, parts in folders.items():
        for number, part in enumerate(parts):
            put(tmp_path / folder / f"model-{number}.safetensors", part)
    digests = {weights_digest(ModelEntry("tiny", path=tmp_path / folder)) for folder in folders}
    assert len(digests) == 3 and None not in digests
    put(tmp_path / "first" / "README.md")
    put(tmp_path / "first" / "pytorch_model.bin")  # transformers reads it only where there is no safetensors file
    assert weights_digest(ModelEntry("tiny", path=tmp_path / "first")) in digests
    assert weights_digest(ModelEntry("hub", hub_id="organization/model")) is None


def test_the_weights_digest_tells_pickled_weights_apart(tmp_path: Path):
    found = set()
    for content in (b"1", b"22"):
        put(tmp_path / "pytorch_model.bin", content)
        found.add(weights_digest(ModelEntry("tiny", path=tmp_path)))
    assert len(found) == 2


# Hub models, from a local cache and without a network.

OLD, NEW = "1" * 40, "2" * 40


def put_into_cache(cache: Path, commit: str, folder: Path, hub_id: str = "me/tiny") -> Path:
    """Store a model in a hub cache, its branch main at ``commit``."""
    model = cache / f"models--{hub_id.replace('/', '--')}"
    shutil.copytree(folder, model / "snapshots" / commit)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / "main").write_text(commit)
    return model


@pytest.fixture
def cache(tmp_path: Path, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub cache with two commits of a model, main at the newer one; the folder is that of the model."""
    model = put_into_cache(tmp_path / "hub", OLD, model_folder("qwen3", seed=1))
    put_into_cache(tmp_path / "hub", NEW, model_folder("qwen3", seed=2))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    identity._commit.cache_clear()
    yield model
    identity._commit.cache_clear()


def test_a_hub_model_that_is_not_pinned_is_taken_at_the_commit_of_its_branch(cache: Path):
    entry = at_commit(ModelEntry("tiny", hub_id="me/tiny"))
    assert entry.revision == NEW
    assert at_commit(ModelEntry("tiny", hub_id="me/tiny", revision="main")).revision == NEW
    pinned = ModelEntry("tiny", hub_id="me/tiny", revision=OLD)
    assert at_commit(pinned) is pinned
    (cache / "refs" / "main").write_text(OLD)  # a branch that moves while a process runs
    assert at_commit(ModelEntry("tiny", hub_id="me/tiny")) == entry


def test_all_files_are_of_the_commit_that_was_found_first(cache: Path):
    code = f"""
import pathlib
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
plan = plan_run(Recipe("mine", "mine", method="full", device="cpu"), ModelEntry("mine", hub_id="me/tiny"))
pathlib.Path({str(cache / "refs" / "main")!r}).write_text({OLD!r})
factory = EngineFactory(plan)
print(plan.entry.revision, plan.files, factory.tokenizer._tokenizer.name_or_path)
print(float(factory.load().model.get_input_embeddings().weight.sum()))
for commit in {(NEW, OLD)!r}:
    pinned = ModelEntry("mine", hub_id="me/tiny", revision=commit)
    again = EngineFactory(plan_run(plan.recipe, pinned))
    print(float(again.load().model.get_input_embeddings().weight.sum()))
"""
    environment = {**os.environ, "HF_HUB_CACHE": str(cache.parent), "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert out.returncode == 0, out.stderr
    named, loaded, new, old = out.stdout.splitlines()
    assert named == f"{NEW} None me/tiny"
    assert loaded == new != old


def test_a_model_that_is_not_cached_is_refused_in_one_line(cache: Path):
    from vase_cli.errors import ModelError

    with pytest.raises(ModelError, match=r"^me/other cannot be loaded \(.*\): check the name and the network, or give"):
        at_commit(ModelEntry("other", hub_id="me/other"))
