"""What a model is made of, as a run records it: the files of a folder, or the commit of a hub model."""

import functools
import hashlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from transformers.utils import cached_file

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError, file_access
from vase_cli.models.describe import loading_errors, quiet

_MIB = 2**20
_WHOLE_BYTES = 64 * _MIB  # a larger file counts by its size and both ends: gigabytes are not read for it
_TEMPLATES = "additional_chat_templates"  # the one folder within a model's that transformers reads
_COMMIT = re.compile("[0-9a-f]{40}")
_UNREAD = re.compile(
    r"\..*|(readme|license|notice).*|.*\.thresholds\.safetensors"
    r"|.*\.(md|rst|pdf|html|py|ipynb|sh|ya?ml|jsonl|csv|parquet|log|png|jpe?g|gif|svg|webp)",
    re.IGNORECASE,
)
"""Names of files that transformers reads nothing from: what people read, data, code, and our own files."""


def model_files(folder: Path) -> dict[str, str]:
    """A digest of each file of a model folder that may change a token, by name; one more, less or changed shows.

    A digest is BLAKE2, 16 hexadecimal digits, of a file's size and content, of a file over 64 MiB of its first and
    last mebibyte. Pipes, devices and links to nowhere are no files. ModelError for what cannot be read.
    """
    with file_access("read", folder, ModelError):
        names = {path.name for path in folder.iterdir() if not _UNREAD.fullmatch(path.name)}
        names |= {f"{_TEMPLATES}/{path.name}" for path in (folder / _TEMPLATES).glob("*.jinja")}
    names |= {name for index in sorted(names) if index.endswith(".index.json") for name in _shards(folder / index)}
    digests = {name: _digest(folder / name) for name in sorted(names)}
    return {name: digest for name, digest in digests.items() if digest is not None}


def weights_digest(entry: ModelEntry) -> str | None:
    """Name the weights of a model folder, 16 hexadecimal digits, for what was measured of them; None for the hub's.

    BLAKE2 of name, size, and first and last mebibyte of each safetensors file; where there are none, of each
    ``pytorch_model*.bin``.
    """
    if entry.path is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    weights = set(entry.path.glob("*.safetensors")) - set(entry.path.glob("*.thresholds.safetensors"))
    for path in sorted(filter(Path.is_file, weights or entry.path.glob("pytorch_model*.bin"))):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(_ends(path))
    return digest.hexdigest()


def at_commit(entry: ModelEntry) -> ModelEntry:
    """The entry of a hub model at the commit that its revision stands for now, so that all its files are of one state.

    Without a network that is the commit of the local cache. A folder, or an entry that names a commit, stays as it is.
    ModelError for a model that is not found, gated or offline.
    """
    if entry.path is not None or _COMMIT.fullmatch(entry.revision or ""):
        return entry
    with quiet(), loading_errors(entry):
        commit = _commit(str(entry.hub_id), entry.revision)
    return entry if commit is None else replace(entry, revision=commit)


@functools.cache
def _commit(hub_id: str, revision: str | None) -> str | None:
    """The commit, one for the whole process; None where the model has no config."""
    found = cached_file(hub_id, "config.json", revision=revision)
    parts = () if found is None else Path(found).parts
    return next((part for part in reversed(parts) if _COMMIT.fullmatch(part)), None)


def _shards(index: Path) -> Iterator[str]:
    """The files that an index of weights names, which may lie in folders within the model's."""
    try:
        with file_access("read", index, ModelError):
            shards = json.loads(index.read_bytes())["weight_map"].values()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ModelError):
        return  # transformers says what is wrong with it, if it reads it
    yield from (name for name in shards if isinstance(name, str))


def _digest(path: Path) -> str | None:
    """The digest of a file; None if there is none of that name."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _digest_of(
        path.absolute(), found.st_size, (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
    )


@functools.cache
def _digest_of(path: Path, size: int, state: tuple[int, ...]) -> str:
    """The digest, worked out once for each ``state`` of a file."""
    with file_access("read", path, ModelError):
        content = path.read_bytes() if size <= _WHOLE_BYTES else _ends(path)
    return hashlib.blake2b(f"{size}\n".encode() + content, digest_size=8).hexdigest()


def _ends(path: Path) -> bytes:
    """The first and the last mebibyte of a file, which overlap in a small one."""
    with file_access("read", path, ModelError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        first = file.read(_MIB)
        file.seek(max(0, size - _MIB))
        return first + file.read()
