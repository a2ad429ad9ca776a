"""How much memory an object's tensors take."""

from torch import Tensor


def held_bytes(holder: object) -> int:
    """Bytes of the tensors that are attributes, allocated room included."""
    return sum(value.nbytes for value in vars(holder).values() if isinstance(value, Tensor))
