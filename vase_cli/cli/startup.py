"""What makes a command that runs a model start soon: PyTorch and transformers are thousands of files of Python."""

import contextlib
import ctypes
import gc
import importlib.metadata
import sys
import threading
from collections.abc import Iterator

from vase_cli.compiled_files import keep_bytecode

UNUSED = ("accelerate", "peft", "scipy", "sklearn", "torchaudio", "torchvision")
"""Packages that transformers imports where it finds them, and that no text model of ours needs: they take seconds."""


@contextlib.contextmanager
def quick_imports(device: str) -> Iterator[None]:
    """Import PyTorch and transformers in as little time as possible, while ``device`` wakes up."""
    threading.Thread(target=_wake, args=(device,), name="wake", daemon=True).start()
    keep_bytecode()
    with _unsearched(), _unlisted(), _hidden(UNUSED):
        yield


@contextlib.contextmanager
def _unsearched() -> Iterator[None]:
    """Do without searches for cycles: imports make a million objects and drop next to none.

    What is there afterwards is left out of every later search.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def _unlisted() -> Iterator[None]:
    """Spare transformers the list of all modules of all installed packages, which looks at each of their files.

    It wants versions of a few packages, and finds them by the names of the packages.
    """
    listed = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = dict
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = listed


@contextlib.contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """Let packages that are not imported yet seem not to be installed."""
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for package in hidden:
            if sys.modules.get(package, ...) is None:
                del sys.modules[package]


def _wake(device: str) -> None:
    """Make the driver of a CUDA device ready, which Python does not have to wait for; nothing is said of a fault."""
    kind, _, index = device.partition(":")
    if kind in ("auto", "cuda"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            driver, number = ctypes.CDLL("libcuda.so.1"), int(index or 0)
            if driver.cuInit(0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), number)
