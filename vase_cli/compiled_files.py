"""Where what is compiled is kept between runs: kernels, and Python's own files where Python cannot keep them.

What the user has set stays.
"""

import atexit
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

_FOLDERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}


class KernelFolder(NamedTuple):
    """A compiler's folder, which need not exist, and the variable that names it."""

    variable: str
    path: Path

    def fault(self) -> str | None:
        """Why nothing can be written there, in one line; None where it can."""
        if (reason := _why_not_written(self.path)) is None:
            return None
        problem = f"{self.path} cannot be written ({reason})"
        return f"{problem}: kernels are compiled anew in every run; set {self.variable} to a folder that can"

    def size_bytes(self) -> int:
        """What the folder holds."""
        total = 0
        for file in (Path(parent, name) for parent, _, names in os.walk(self.path) for name in names):
            with contextlib.suppress(OSError):  # a compiler at work renames its files
                total += file.lstat().st_size
        return total


def _why_not_written(folder: Path) -> str | None:
    """Why no file can be made in a folder that need not exist; None where one can. Nothing is left there."""
    try:
        with tempfile.TemporaryFile(dir=next(path for path in (folder, *folder.parents) if path.exists())):
            return None
    except OSError as error:
        return error.strerror or str(error)


def own_cache(name: str) -> Path:
    """A folder of ours within the user's folder for caches; it need not exist."""
    import platformdirs

    return platformdirs.user_cache_path("vase", appauthor=False) / name


def kernel_folders() -> list[KernelFolder]:
    """The folders of Triton and of ``torch.compile``, which learn them from the environment when they first compile."""
    paths = {variable: Path(os.environ.get(variable) or own_cache(name)) for variable, name in _FOLDERS.items()}
    if (home := os.environ.get("TRITON_HOME")) and not os.environ.get("TRITON_CACHE_DIR"):
        paths["TRITON_CACHE_DIR"] = Path(home, ".triton", "cache")
    return [KernelFolder(variable, path) for variable, path in paths.items()]


def keep_kernels() -> tuple[str, ...]:
    """Make both compilers use their folders in this process, and one that ends with it where nothing can be written.

    Returns a line for each folder that cannot be written.
    """
    faults = []
    for folder in kernel_folders():
        path = folder.path
        if fault := folder.fault():
            faults.append(f"warning: {fault}")
            path = Path(tempfile.mkdtemp(prefix="vase-kernels-"))
            atexit.register(shutil.rmtree, path, ignore_errors=True)
        os.environ[folder.variable] = str(path)
    return tuple(faults)


def keep_bytecode() -> None:
    """Keep what Python compiles in a folder of ours, where PyTorch comes without compiled files and can get none.

    PyTorch is then compiled in every process, which takes seconds. For this process, from here on.
    """
    spec = importlib.util.find_spec("torch")
    if sys.pycache_prefix is not None or spec is None or spec.origin is None:
        return
    compiled, ours = Path(importlib.util.cache_from_source(spec.origin)), own_cache("python")
    never = not compiled.exists() and (sys.dont_write_bytecode or not os.access(compiled.parents[1], os.W_OK))
    if never and _why_not_written(ours) is None:
        sys.pycache_prefix, sys.dont_write_bytecode = str(ours), False
