"""PyTorch's scaled dot product attention, on the CPU and the GPU.

Letters as in ``base``; G = Hq // H query heads per KV head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class SDPA:
    """Needs nothing but PyTorch."""

    name = "sdpa"

    def refusal(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
        """Serves everything."""
        return None

    def prefill(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Causal attention of one prompt; see :meth:`AttentionBackend.prefill`."""
        out = scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return out[0].transpose(0, 1)

    def decode(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        cached_keys: Tensor,
        cached_values: Tensor,
        lengths: Tensor,
        live: Sequence[int],
        scale: float,
    ) -> Tensor:
        """One token of each row; see :meth:`AttentionBackend.decode`."""
        rows, query_heads, head_dim = queries.shape
        heads = keys.shape[1]
        index = torch.arange(rows, device=keys.device)
        cached_keys[index, lengths.long()] = keys
        cached_values[index, lengths.long()] = values
        # A query of one token: the G heads of a group stand where the query length would.
        grouped = queries.view(rows, heads, query_heads // heads, head_dim)
        if queries.is_cuda:
            out = _masked(grouped, cached_keys, cached_values, lengths, scale)
        else:
            out = _row_by_row(grouped, cached_keys, cached_values, live, scale)
        return out.reshape(rows, query_heads, head_dim)


def _masked(queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """All rows at once over all S slots, with a mask: no shape depends on a length."""
    slots = torch.arange(keys.shape[1], device=keys.device, dtype=lengths.dtype)
    mask = (slots <= lengths[:, None])[:, None, None]
    return scaled_dot_product_attention(
        queries, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )


def _row_by_row(queries: Tensor, keys: Tensor, values: Tensor, live: Sequence[int], scale: float) -> Tensor:
    """Each row over just what it holds: fewer bytes, and no bit of a result depends on another row's length."""
    out = torch.zeros_like(queries)
    for row, length in enumerate(live):
        if length >= 0:
            held = slice(0, length + 1)
            out[row] = scaled_dot_product_attention(
                queries[row : row + 1],
                keys[row : row + 1, held].transpose(1, 2),
                values[row : row + 1, held].transpose(1, 2),
                scale=scale,
            )[0]
    return out


BACKEND = SDPA
