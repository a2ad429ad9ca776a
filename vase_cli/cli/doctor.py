"""``vase doctor``: what this machine has, and what is missing."""

import importlib.util
import os
import platform
import tempfile
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from vase_cli import hub, plugins
from vase_cli.cli import options
from vase_cli.cli.output import echo
from vase_cli.compiled_files import kernel_folders
from vase_cli.config.catalog import Catalog
from vase_cli.config.default_recipe import PROMPTS, Candidates
from vase_cli.config.resolve import check_option
from vase_cli.device import available_ram_bytes, gpu_names, readable_bytes
from vase_cli.errors import ConfigError, VaseError
from vase_cli.runs.environment import library_version


class Finding(NamedTuple):
    """A line of the table; "bad" makes the exit code 1."""

    subject: str
    status: Literal["ok", "note", "bad"]
    text: str


def doctor(
    device: Annotated[str | None, options.shared("device")] = None,
    zoo: Annotated[Path | None, options.shared("zoo")] = None,
    recipes: Annotated[Path | None, options.shared("recipes")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the hub.")] = False,
) -> None:
    """Check Python, PyTorch, the device, FlashAttention, the hub, and say which recipes fit this machine."""
    device = check_option("device", device or "auto")
    findings = list(_findings(device, Catalog.open(zoo=zoo, recipes=recipes), offline=offline))
    width = max(len(finding.subject) for finding in findings)
    for subject, status, text in findings:
        echo(f"{status:4}  {subject:{width}}  {text}")
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(1)


def _findings(device: str, catalog: Catalog, *, offline: bool) -> Iterator[Finding]:
    yield Finding("Python", "ok", platform.python_version())
    torch_found = yield from _torch(device)
    for name in ("transformers", "huggingface-hub", "datasets", "math-verify"):
        version = library_version(name)
        yield Finding(name, "ok" if version else "bad", version or f"is not installed: pip install {name}")
    silent: str | None = "the hub is not asked (--offline)"
    if hub_found := importlib.util.find_spec("huggingface_hub") is not None:
        silent = yield from _hub(silent if offline else None)
    if torch_found and hub_found:
        try:
            candidates = Candidates.find(catalog, device)
            fitting = [candidate.recipe.name for candidate in candidates.fitting]
            yield Finding("recipes that fit", "ok" if fitting else "note", ", ".join(fitting) or "none")
        except VaseError as error:
            yield Finding("recipes that fit", "bad", str(error))
            return
        yield _recipe_taken(catalog, candidates, silent)


def _recipe_taken(catalog: Catalog, candidates: Candidates, silent: str | None) -> Finding:
    """What `vase run` takes without a recipe; a task that a model was made for may take another."""
    subject = "recipe taken"
    try:
        if named := os.environ.get("VASE_RECIPE"):
            catalog.resolve(named, {})
            return Finding(subject, "ok", f"{named}, which $VASE_RECIPE names")
        choice = candidates.choose(PROMPTS, or_own=True, silence=lambda: silent)
        return Finding(subject, "note" if choice.limited else "ok", f"{choice.recipe}, {choice.why}")
    except VaseError as error:
        return Finding(subject, "bad", str(error))


def _torch(device: str) -> Generator[Finding, None, bool]:
    """Findings on PyTorch and the devices; returns True if PyTorch can be imported."""
    try:
        import torch
    except ImportError as error:
        yield Finding("PyTorch", "bad", f"cannot be imported ({error}): pip install torch")
        return False
    cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Finding("PyTorch", "ok", f"{torch.__version__}, {cuda}, {torch.get_num_threads()} CPU threads")
    yield Finding("memory", "ok", f"{readable_bytes(available_ram_bytes())} free")
    for index, name in enumerate(gpus := gpu_names()):
        free, total = map(readable_bytes, torch.cuda.mem_get_info(index))
        yield Finding(f"cuda:{index}", "ok", f"{name}, {free} of {total} free")
    if not gpus:
        missing = "PyTorch sees none: everything runs on the CPU"
        yield Finding("GPU", "bad" if device.startswith("cuda") else "note", missing)
    triton, missing = library_version("triton"), "is not installed: a GPU would be slow without it; pip install triton"
    yield Finding("Triton", "ok" if triton else "note", triton or missing)
    yield _compiled_kernels()
    try:
        plugins.make("attention", "flash_attention_2").check(torch.device("cuda"), torch.bfloat16, 128)
        yield Finding("FlashAttention2", "ok", metadata.version("flash-attn"))
    except ConfigError as refusal:
        yield Finding("FlashAttention2", "note", str(refusal))
    return True


def _compiled_kernels() -> Finding:
    """Where compiled kernels are kept between runs, and how much they are by now."""
    faults = [fault for folder in kernel_folders() if (fault := folder.fault())]
    if faults:
        return Finding("compiled kernels", "note", "; ".join(faults))
    kept = [f"{folder.path} ({readable_bytes(folder.size_bytes())})" for folder in kernel_folders()]
    return Finding("compiled kernels", "ok", f"kept in {' and '.join(kept)}")


def _hub(silent: str | None) -> Generator[Finding, None, str | None]:
    """Findings on the hub and its cache; returns why the hub gives no files, if it is not asked as ``silent`` says."""
    if silent is None:
        silent = hub.silence()
        missing = f"{silent}: use --model FOLDER and --data FILE"
        yield Finding("hub", "note" if silent else "ok", missing if silent else f"{hub.address()} answers")
    folder = hub.cache_folder()
    try:
        with tempfile.TemporaryFile(dir=next(path for path in (folder, *folder.parents) if path.exists())):
            yield Finding("hub cache", "ok", f"{folder} can be written")
    except OSError as error:
        reason = error.strerror or error
        yield Finding("hub cache", "bad", f"{folder} cannot be written ({reason}): set HF_HOME to a folder that can")
    return silent
