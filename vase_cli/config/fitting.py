"""What this machine has, and which recipes fit it."""

from dataclasses import dataclass

from vase_cli.config.catalog import Catalog
from vase_cli.device import available_ram_bytes, readable_bytes
from vase_cli.errors import ConfigError, VaseError

_BYTES_PER_PARAMETER = {"bfloat16": 2, "float16": 2, "float32": 4, "auto": 2}
_SHARE_FOR_WEIGHTS = 0.85
"""Of the free memory; the rest holds at least a few sequences' cache and the working set."""


@dataclass(frozen=True)
class Fitting:
    """The recipes whose weights fit a device, by name.

    Attributes:
        device_type: "cuda" or "cpu".
        description: the device and its free memory, for people.
    """

    device_type: str
    description: str
    recipes: tuple[str, ...]


def recipes_that_fit(catalog: Catalog, device: str) -> Fitting:
    """Which recipes fit the device, by the parameters their zoo entry states; nothing is loaded.

    Raises:
        ConfigError: not a device, or a GPU that is not there.
    """
    device_type, available, description = _device(device)
    fitting = []
    for name in catalog.files("recipes"):
        try:
            recipe, entry, _ = catalog.resolve(name, {})
        except VaseError:
            continue  # a broken file of the user's own: `vase recipes validate` says what is wrong with it
        asked = recipe.dtype or "auto"
        dtype = asked if asked != "auto" else "float32" if device_type == "cpu" else entry.dtype
        weights = (entry.parameters or 0) * _BYTES_PER_PARAMETER[dtype]
        if entry.parameters is not None and weights <= available * _SHARE_FOR_WEIGHTS:
            fitting.append(name)
    return Fitting(device_type, description, tuple(fitting))


def _device(device: str) -> tuple[str, int, str]:
    import torch

    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise ConfigError(f"'{device}' is not a device; write auto, cpu, cuda or cuda:0")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(number or 0)
    if kind == "cuda" and index >= count:
        raise ConfigError(f"no CUDA device {index}: PyTorch sees {count}; use --device cpu or auto")
    if kind != "cpu" and count:
        free, _ = torch.cuda.mem_get_info(index)
        return "cuda", free, f"{torch.cuda.get_device_name(index)}, {readable_bytes(free)} free"
    free = available_ram_bytes()
    return "cpu", free, f"no GPU, {readable_bytes(free)} of memory free"
