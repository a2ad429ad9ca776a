"""The forward of a model of one layer, run while the weights of the real one are read.

What that imports, loads or compiles is there when the real model comes: kernels depend on widths, not on depth.
"""

import contextlib
import copy
import threading
from collections.abc import Iterator
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from vase_cli.models.describe import ModelFacts, quiet
from vase_cli.models.language_model import INTERFACE, LanguageModel

_VOCABULARY = 1024  # no weights of a vocabulary beside the real ones
_ROOM = 1.1  # of the real weights' bytes: what must be free for both


@contextlib.contextmanager
def rehearsal(config: PreTrainedConfig, facts: ModelFacts, device: torch.device) -> Iterator[None]:
    """Run it beside what the context does, and wait for its end; nothing is said of a fault, the real model has it too.

    Nothing runs for a device without kernels, or with hardly more memory than the weights take.
    """
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < _ROOM * facts.weights_bytes:
        yield
        return
    thread = None
    with contextlib.suppress(Exception):
        model = _one_layer(config, facts, device)  # here, as it sets the default dtype of the process for a moment
        thread = threading.Thread(target=_run, args=(model, facts, device), name="rehearsal", daemon=True)
        thread.start()
    try:
        yield
    finally:
        if thread is not None:
            thread.join()


def _one_layer(config: PreTrainedConfig, facts: ModelFacts, device: torch.device) -> torch.nn.Module:
    small = copy.deepcopy(config)
    small.num_hidden_layers, small.vocab_size, small.pad_token_id = 1, min(config.vocab_size, _VOCABULARY), None
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), quiet(), device:
        made: torch.nn.Module = AutoModelForCausalLM.from_config(
            small, dtype=facts.torch_dtype, attn_implementation=INTERFACE
        )
    return made.eval()


def _run(model: torch.nn.Module, facts: ModelFacts, device: torch.device) -> None:
    with contextlib.suppress(Exception):
        torch.cuda.set_device(device)
        one_layer = replace(facts, shape=replace(facts.shape, layers=1))
        LanguageModel(one_layer, model, frozenset(), device, "rehearsal").fuse()
        torch.cuda.synchronize(device)
