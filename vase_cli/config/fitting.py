"""Which recipes fit this machine, by the parameters of their zoo entries; nothing is loaded."""

from vase_cli.config.catalog import Catalog
from vase_cli.config.resolve import check_option
from vase_cli.device import Device, resolve_device
from vase_cli.errors import VaseError

_SHARE_FOR_WEIGHTS = 0.85  # of the free memory; the rest is for the cache of a few sequences and the working set


def recipes_that_fit(catalog: Catalog, device: str) -> tuple[Device, list[str]]:
    """The device of this name, and the recipes whose weights fit it; VaseError if it is none, or not there."""
    target = Device(resolve_device(check_option("device", device)))
    most_bytes, fitting = target.available_bytes() * _SHARE_FOR_WEIGHTS, []
    for name in catalog.files("recipes"):
        try:
            recipe, entry = catalog.resolve(name, {})
        except VaseError:
            continue  # a broken file of the user's own: `vase recipes validate` says what is wrong with it
        dtype = recipe.dtype or "auto"
        if dtype == "auto":
            dtype = "float32" if target.type == "cpu" else entry.dtype
        width = 4 if dtype == "float32" else 2  # bytes
        if entry.parameters is not None and entry.parameters * width <= most_bytes:
            fitting.append(name)
    return target, fitting
