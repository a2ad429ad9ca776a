"""``vase doctor``: what this machine has, and what is missing."""

import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from vase_cli.cli import options
from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_given
from vase_cli.errors import VaseError

_HUB_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Finding:
    """One line of the table; only "bad" makes the exit code 1."""

    subject: str
    status: Literal["ok", "note", "bad"]
    text: str


def doctor(
    device: options.Device = None,
    zoo: options.Zoo = None,
    recipes: options.Recipes = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the hub.")] = False,
) -> None:
    """Check Python, PyTorch, the device, FlashAttention, the hub, and say which recipes fit this machine."""
    if device is not None:
        check_given("device", device)
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    findings = [_python(), _torch()]
    torch_found = findings[-1].status == "ok"
    if torch_found:
        findings += [*_device(device or "auto"), _triton(), _flash_attention()]
    findings += [_library(name) for name in ("transformers", "huggingface-hub", "datasets", "math-verify")]
    if importlib.util.find_spec("huggingface_hub"):
        findings += [*([] if offline else [_hub()]), _hub_cache()]
    if torch_found:
        findings.append(_recipes(device or "auto", catalog))
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        typer.echo(f"{finding.status:4}  {finding.subject.ljust(width)}  {finding.text}")
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(1)


def _python() -> Finding:
    return Finding("Python", "ok", platform.python_version())


def _torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("PyTorch", "bad", f"cannot be imported ({error}): pip install torch")
    cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return Finding("PyTorch", "ok", f"{torch.__version__}, {cuda}, {torch.get_num_threads()} CPU threads")


def _device(device: str) -> list[Finding]:
    import torch

    from vase_cli.device import available_ram_bytes, readable_bytes

    findings = [Finding("memory", "ok", f"{readable_bytes(available_ram_bytes())} free")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        findings.append(
            Finding(f"cuda:{index}", "ok", f"{name}, {readable_bytes(free)} of {readable_bytes(total)} free")
        )
    if count == 0:
        status: Literal["note", "bad"] = "bad" if device.startswith("cuda") else "note"
        findings.append(Finding("GPU", status, "PyTorch sees none: everything runs on the CPU"))
    return findings


def _flash_attention() -> Finding:
    import torch

    from vase_cli import plugins

    backend = plugins.load("attention", "flash_attention_2")()
    refusal = backend.refusal(torch.device("cuda"), torch.bfloat16, 128)
    if refusal is None:
        return Finding("FlashAttention2", "ok", importlib.metadata.version("flash-attn"))
    return Finding("FlashAttention2", "note", refusal)


def _triton() -> Finding:
    try:
        return Finding("Triton", "ok", importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        return Finding("Triton", "note", "is not installed: a GPU would be slow without it; pip install triton")


def _library(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "bad", f"is not installed: pip install {name}")


def _hub() -> Finding:
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=_HUB_TIMEOUT_S):
            return Finding("hub", "ok", f"{constants.ENDPOINT} answers")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(
            "hub", "note", f"{constants.ENDPOINT} is not reachable ({reason}): use --model FOLDER and --data FILE"
        )


def _hub_cache() -> Finding:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding("hub cache", "ok", f"{folder} can be written")
    except OSError as error:
        return Finding(
            "hub cache",
            "bad",
            f"{folder} cannot be written ({os.strerror(error.errno or 0)}): set HF_HOME to a folder that can",
        )


def _recipes(device: str, catalog: Catalog) -> Finding:
    from vase_cli.config.fitting import recipes_that_fit

    try:
        fitting = recipes_that_fit(catalog, device)
    except VaseError as error:
        return Finding("recipes that fit", "bad", str(error))
    return Finding("recipes that fit", "ok" if fitting.recipes else "note", ", ".join(fitting.recipes) or "none")
