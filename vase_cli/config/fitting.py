"""Which recipes fit this machine."""

from dataclasses import dataclass

from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_given
from vase_cli.device import free_memory, resolve_device
from vase_cli.errors import VaseError

_SHARE_FOR_WEIGHTS = 0.85
"""Of the free memory; the rest holds at least a few sequences' cache and the working set."""


@dataclass(frozen=True)
class Fitting:
    """The recipes whose weights fit a device; ``description`` says of the device what it is and how much is free."""

    device_type: str
    description: str
    recipes: tuple[str, ...]


def recipes_that_fit(catalog: Catalog, device: str) -> Fitting:
    """Which recipes fit the device, by the parameters their zoo entry states; nothing is loaded.

    Raises:
        VaseError: not a device, or one that is not there.
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
        weights = (entry.parameters or 0) * (4 if dtype == "float32" else 2)
        if entry.parameters is not None and weights <= available * _SHARE_FOR_WEIGHTS:
            fitting.append(name)
    return Fitting(device_type, description, tuple(fitting))


def _device(name: str) -> tuple[str, int, str]:
    device = resolve_device(check_given("device", name))
    return device.type, *free_memory(device)
