"""What a run ran on: versions, the checkout's commit, the machine. No library is imported for its version."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import vase_cli
from vase_cli.device import gpu_names

_LIBRARIES = ("torch", "triton", "transformers", "flash-attn", "datasets", "math-verify")
_CHECKOUT = Path(vase_cli.__file__).resolve().parent.parent


def environment(checkout: Path = _CHECKOUT) -> dict[str, Any]:
    """Collect ``vase_version``, ``versions``, ``git`` and ``hardware`` of run.json."""
    import psutil

    process = psutil.Process()  # which may use fewer cores than the machine has, but on macOS
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    return {
        "vase_version": vase_cli.__version__,
        "versions": {"python": platform.python_version(), **{name: library_version(name) for name in _LIBRARIES}},
        "git": _git(checkout),
        "hardware": {"cpu": _cpu(), "cores": cores, "ram_bytes": psutil.virtual_memory().total, "gpus": gpu_names()},
    }


def library_version(library: str) -> str | None:
    """The version of an installed distribution."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(library)
    return None


def _git(checkout: Path) -> dict[str, Any] | None:
    """Commit and state of the package's own checkout; None for an installed wheel or without git."""
    # Both files beside the package: site-packages may lie in someone else's repository.
    if not (checkout / "pyproject.toml").is_file() or not (checkout / ".git").exists():
        return None
    # A git hook's GIT_DIR would point git at another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*command: str) -> str:
        call = ["git", "--no-optional-locks", "-C", str(checkout), *command]
        return subprocess.run(call, capture_output=True, text=True, timeout=10, check=True, env=variables).stdout

    try:
        changes = git("status", "--porcelain", "--", "vase_cli", "zoo", "recipes")
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(changes.strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
