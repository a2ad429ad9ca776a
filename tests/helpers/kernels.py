"""Where the tests of kernels run: on a GPU, or on a CPU in Triton's interpreter (``TRITON_INTERPRET=1``)."""

import importlib.util
import os

import pytest
import torch

from vase_cli.kernels.ops import TorchOps

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() and not INTERPRETING else torch.device("cpu")
REASON = "needs a CUDA device, or TRITON_INTERPRET=1 with triton installed"
MARKS = [
    *([] if INTERPRETING else [pytest.mark.gpu]),
    pytest.mark.skipif(not INTERPRETING and not torch.cuda.is_available(), reason=REASON),
    # NumPy's, about the interpreter's own code and states that are not finite.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
]
HALF = torch.float16 if INTERPRETING else torch.bfloat16
"""The interpreter cuts bfloat16 off where a device rounds, and multiplies matrices of it as if they were integers."""


def triton_ops() -> TorchOps:
    """The operations by Triton's kernels, which the interpreter runs too."""
    from vase_cli.kernels.triton_ops import TritonOps

    return TritonOps()


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)
