"""The Hugging Face hub: whether it answers, and what its client has stored of a model.

The client and the standard library's wait until a function needs them.
"""

import json
from pathlib import Path

_SECONDS = 5.0  # to wait for an answer


def address() -> str:
    """The hub's address, of ``$HF_ENDPOINT`` or the public one."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def cache_folder() -> Path:
    """The folder that downloads are stored in; it need not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def silence() -> str | None:
    """Why the hub gives no files, as a clause; None where it answers. Waits 5 seconds at most."""
    import http.client
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "the hub is not asked ($HF_HUB_OFFLINE)"
    try:
        with urllib.request.urlopen(address(), timeout=_SECONDS):
            return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{address()} is not reachable ({getattr(error, 'reason', error)})"


def cached_model(hub_id: str, revision: str | None) -> Path | None:
    """The folder of a model in the cache, None unless all its weights are there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except (OSError, ValueError):  # the client's rules for ids are stricter than those of zoo entries
        return None
    folder = Path(config).parent if isinstance(config, str) else None
    return folder if folder is not None and weight_files(folder) else None


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights, empty if there are none, one of them is missing, or their index is broken."""
    index = folder / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values()) if index.exists() else {"model.safetensors"}
        files = [folder / name for name in sorted(names)]
        return files if all(file.is_file() for file in files) else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
