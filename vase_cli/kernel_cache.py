"""Where compiled kernels are kept between runs: those of Triton, and of ``torch.compile``.

Both compilers are told by the environment, and look there when they first compile. What the user has set stays.
"""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

_FOLDERS = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "torchinductor"}


class KernelFolder(NamedTuple):
    """A compiler's folder, which need not exist, and the variable that names it."""

    variable: str
    path: Path

    def fault(self) -> str | None:
        """Why nothing can be written there, in one line; None where it can. Nothing is left there."""
        try:
            with tempfile.TemporaryFile(dir=next(path for path in (self.path, *self.path.parents) if path.exists())):
                return None
        except OSError as error:
            problem = f"{self.path} cannot be written ({error.strerror or error})"
            return f"{problem}: kernels are compiled anew in every run; set {self.variable} to a folder that can"

    def size_bytes(self) -> int:
        """What the folder holds."""
        total = 0
        for file in (Path(parent, name) for parent, _, names in os.walk(self.path) for name in names):
            with contextlib.suppress(OSError):  # a compiler at work renames its files
                total += file.lstat().st_size
        return total


def folders() -> list[KernelFolder]:
    """The folders of both compilers: the user's, or within the user's folder for caches."""
    import platformdirs

    ours = platformdirs.user_cache_path("vase", appauthor=False)
    paths = {variable: Path(os.environ.get(variable) or ours / name) for variable, name in _FOLDERS.items()}
    if (home := os.environ.get("TRITON_HOME")) and not os.environ.get("TRITON_CACHE_DIR"):
        paths["TRITON_CACHE_DIR"] = Path(home, ".triton", "cache")
    return [KernelFolder(variable, path) for variable, path in paths.items()]


def keep_kernels() -> tuple[str, ...]:
    """Make both compilers use their folders in this process, and one that ends with it where nothing can be written.

    Returns a line for each folder that cannot be written.
    """
    faults = []
    for folder in folders():
        path = folder.path
        if fault := folder.fault():
            faults.append(f"warning: {fault}")
            path = Path(tempfile.mkdtemp(prefix="vase-kernels-"))
            atexit.register(shutil.rmtree, path, ignore_errors=True)
        os.environ[folder.variable] = str(path)
    return tuple(faults)
