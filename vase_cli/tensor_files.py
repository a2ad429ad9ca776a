"""Tensors and a little metadata in safetensors files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vase_cli.errors import DataError, file_access


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a safetensors file: tensors of any device by name, and metadata for its header."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, dict(metadata or {}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors, on the CPU, and header metadata of a safetensors file; DataError for none, a cut or another one."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise DataError(f"{path}: no such file; restore it")
    try:
        with file_access("read", path, DataError), safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise DataError(f"{path}: cut or not a safetensors file ({error}); restore it") from error


def require_tensor(
    path: Path, tensors: Mapping[str, Tensor], name: str, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """One tensor of a file; DataError if it is missing, or of another shape or type."""
    if name not in tensors:
        raise DataError(f"{path}: it holds no '{name}'; restore it")
    tensor = tensors[name]
    kinds = ((tensor.shape, tensor.dtype), (shape, dtype))
    stored, wanted = (f"{tuple(size)} {str(kind).removeprefix('torch.')}" for size, kind in kinds)
    if stored != wanted:
        raise DataError(f"{path}: '{name}' is {stored}, not {wanted}; restore it")
    return tensor
