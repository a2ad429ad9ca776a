"""Where compiled kernels are kept: the user's folders, ours, and what happens where nothing can be written."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from vase_cli.compiled_files import keep_bytecode, keep_kernels, kernel_folders

VARIABLES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_HOME")


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder for caches, which is not there yet; no variable names another."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the product sets is undone, too
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache" / "vase")
    return tmp_path / "cache" / "vase"


def test_both_compilers_keep_kernels_in_the_users_cache(caches: Path) -> None:
    assert keep_kernels() == ()
    assert os.environ["TRITON_CACHE_DIR"] == str(caches / "triton")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(caches / "torchinductor")
    assert not caches.exists(), "a compiler makes its folder when it needs one"


def test_folders_that_the_user_names_stay(caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    expected = [tmp_path / "home" / ".triton" / "cache", tmp_path / "inductor"]
    assert [folder.path for folder in kernel_folders()] == expected
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    assert keep_kernels() == ()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "mine")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")


def test_the_size_is_that_of_all_files(caches: Path) -> None:
    triton, inductor = kernel_folders()
    (triton.path / "a" / "b").mkdir(parents=True)
    (triton.path / "a" / "kernel.cubin").write_bytes(bytes(300))
    (triton.path / "a" / "b" / "kernel.ptx").write_bytes(bytes(50))
    assert (triton.size_bytes(), inductor.size_bytes()) == (350, 0)


def test_a_folder_that_cannot_be_written_costs_one_line_and_is_replaced_for_this_process(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")  # no folder can be made within it, whoever runs this
    code = """
import os
from pathlib import Path
from vase_cli.compiled_files import keep_kernels
print(*keep_kernels(), sep="\\n")
assert keep_kernels() == (), "said once"
folder = Path(os.environ["TRITON_CACHE_DIR"])
(folder / "kernel").write_text("compiled")
print(folder)
"""
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(blocked / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    warning, folder = done.stdout.splitlines()
    assert warning == (
        f"warning: {blocked / 'triton'} cannot be written (Not a directory): kernels are compiled anew in every run; "
        "set TRITON_CACHE_DIR to a folder that can"
    )
    assert not Path(folder).exists(), "nothing is left of it"


CODE = """
from vase_cli.compiled_files import keep_bytecode, own_cache
keep_bytecode()
import torch
print(own_cache("python"))
"""


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("option", ["-B", "-Xpycache_prefix=elsewhere", "-s"])
def test_bytecode_is_kept_where_it_would_be_made_in_every_process(tmp_path: Path, option: str, compiled: bool) -> None:
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]), "PYTHONDONTWRITEBYTECODE": ""}
    environment = os.environ | paths | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if compiled:
        subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
    call = [sys.executable, option, "-c", CODE]
    done = subprocess.run(call, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    ours = [path.name.partition(".")[0] for path in Path(done.stdout.strip()).rglob("torch/*.pyc")]
    assert ours == (["__init__"] if option == "-B" and not compiled else [])
    beside = (package / "__pycache__").exists()
    assert beside == (compiled or option == "-s"), "where Python itself writes, or may not"


def test_bytecode_stays_where_it_is_without_a_folder_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    monkeypatch.setattr(
        importlib.util, "find_spec", partial(importlib.machinery.PathFinder.find_spec, path=[str(tmp_path)])
    )
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "file").write_text("")
    for folder, expected in ((tmp_path / "file" / "python", None), (tmp_path / "python", str(tmp_path / "python"))):
        monkeypatch.setattr("vase_cli.compiled_files.own_cache", lambda _, folder=folder: folder)
        keep_bytecode()
        assert sys.pycache_prefix == expected
