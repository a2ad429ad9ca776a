"""Which recipes fit this machine."""

from dataclasses import dataclass

from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_option
from vase_cli.device import Device, resolve_device
from vase_cli.errors import VaseError

_SHARE_FOR_WEIGHTS = 0.85  # of the free memory; the rest is for the cache of a few sequences and the working set


@dataclass(frozen=True)
class Fitting:
    """Recipes whose weights fit a device; ``description`` is the device's name and free memory."""

    device_type: str
    description: str
    recipes: tuple[str, ...]


def recipes_that_fit(catalog: Catalog, device: str) -> Fitting:
    """Find the recipes that fit the device by the parameters of their zoo entries; nothing is loaded.

    Raises:
        VaseError: not a device, or one that is not there.
    """
    target = Device(resolve_device(check_option("device", device)))
    available, fitting = target.available_bytes(), []
    for name in catalog.files("recipes"):
        try:
            recipe, entry = catalog.resolve(name, {})
        except VaseError:
            continue  # a broken file of the user's own: `vase recipes validate` says what is wrong with it
        dtype = recipe.dtype or "auto"
        if dtype == "auto":
            dtype = "float32" if target.type == "cpu" else entry.dtype
        width = 4 if dtype == "float32" else 2  # bytes
        if entry.parameters is not None and entry.parameters * width <= available * _SHARE_FOR_WEIGHTS:
            fitting.append(name)
    return Fitting(target.type, target.description, tuple(fitting))
