"""A model's generation_config.json: keys that would change its tokens and that nothing here serves."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from vase_cli.config.schema import ModelEntry
from vase_cli.errors import ModelError, first_line
from vase_cli.models.describe import location, quiet

FILE = "generation_config.json"


def _above(least: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and value > least


def _between_0_and_1(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < 1


def _not_1(value: Any) -> bool:
    return bool(value != 1)


# For each key, whether a value of it does something.
_FILTERS: dict[str, Callable[[Any], bool]] = {  # of sampling
    "typical_p": _not_1,
    "top_h": lambda value: True,
    "epsilon_cutoff": _between_0_and_1,
    "eta_cutoff": _between_0_and_1,
}
_UNSERVED: dict[str, Callable[[Any], bool]] = {
    "num_beams": _above(1),
    "num_beam_groups": _above(1),
    "penalty_alpha": _above(0),
    "dola_layers": bool,
    "guidance_scale": _not_1,
    "sequence_bias": bool,
    "encoder_repetition_penalty": _not_1,
    "encoder_no_repeat_ngram_size": _above(0),
    "no_repeat_ngram_size": _above(0),
    "bad_words_ids": bool,
    "force_words_ids": bool,
    "constraints": bool,
    "min_length": _above(0),
    "min_new_tokens": _above(0),
    "forced_bos_token_id": lambda value: True,
    "forced_eos_token_id": lambda value: True,
    "forced_decoder_ids": bool,
    "exponential_decay_length_penalty": bool,
    "suppress_tokens": bool,
    "begin_suppress_tokens": bool,
    "stop_strings": bool,
    "token_healing": bool,
    "watermarking_config": bool,
}


def read_generation_config(entry: ModelEntry) -> dict[str, Any]:
    """The keys of a model's generation_config.json that have a value; none where there is no such file.

    ModelError, which names file, key and value, if one changes tokens in a way that is not served.
    """
    with quiet():
        try:
            found = cached_file(location(entry), FILE, revision=entry.revision)
        except OSError:  # there is none, as the config was found
            return {}
    where = str(found) if entry.path is not None else f"{FILE} of {entry.hub_id}"
    try:
        written = json.loads(Path(str(found)).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{where}: cannot be read as JSON: {first_line(error)}") from None
    if not isinstance(written, dict):
        raise ModelError(f"{where}: not a JSON object")
    keys = {key: value for key, value in written.items() if value is not None}
    if (key := _unserved(keys)) is not None:
        value = json.dumps(keys[key], ensure_ascii=True)
        shown = value if len(value) <= 40 else f"{value[:40]}..."
        raise ModelError(f"{where}: {key}: {shown} changes what the model writes, and is not served; remove the key")
    return keys


def _unserved(keys: Mapping[str, Any]) -> str | None:
    checks = _UNSERVED if keys.get("do_sample") is False else {**_UNSERVED, **_FILTERS}
    return next((key for key, does in checks.items() if key in keys and does(keys[key])), None)
