"""VaSE CLI: run and study reasoning models with a small KV cache.

The method is value-aware stochastic KV cache eviction (arXiv 2606.03928). Python users need ``LLM`` and
``SamplingParams``, see docs/api.md; importing this package alone loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vase_cli.config.schema import SamplingParams
    from vase_cli.engine.llm import LLM, NewText, Output

__version__ = "0.1.0"
__all__ = ["LLM", "NewText", "Output", "SamplingParams", "__version__"]

_MODULES = dict.fromkeys(("LLM", "NewText", "Output"), "vase_cli.engine.llm") | {
    "SamplingParams": "vase_cli.config.schema"
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
