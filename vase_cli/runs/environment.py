"""What a run ran on: versions, the checkout's commit, the machine. Nothing heavy is imported to find out."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vase_cli

_LIBRARIES = ("torch", "transformers", "flash-attn", "datasets", "math-verify")
_CHECKOUT = Path(vase_cli.__file__).resolve().parent.parent


def environment(gpus: Sequence[str] = ()) -> dict[str, Any]:
    """The keys ``vase_version``, ``versions``, ``git`` and ``hardware`` of run.json.

    Args:
        gpus: names of the GPUs, which only the caller can know.
    """
    return {
        "vase_version": vase_cli.__version__,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _LIBRARIES}},
        "git": _git(_CHECKOUT),
        "hardware": {"cpu": _cpu(), "cores": _cores(), "ram_bytes": _ram_bytes(), "gpus": list(gpus)},
    }


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(checkout: Path) -> dict[str, Any] | None:
    """Commit and state of the package's own checkout; None for an installed wheel or without git."""
    # Both files beside the package: site-packages may lie in someone else's repository.
    if not (checkout / "pyproject.toml").is_file() or not (checkout / ".git").exists():
        return None
    # A git hook's GIT_DIR would point git at another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    git = ["git", "--no-optional-locks", "-C", str(checkout)]
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "vase_cli", "zoo", "recipes"]):
        try:
            done = subprocess.run(
                [*git, *command], capture_output=True, text=True, timeout=10, check=True, env=variables
            )
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip())
    return {"commit": answers[0], "dirty": bool(answers[1])}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
