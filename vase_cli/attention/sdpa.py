"""PyTorch's scaled dot product attention, on the CPU and the GPU; shapes as in ``base``, G = Hq // H."""

import contextlib

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from vase_cli.attention.base import LSEOut, PromptPack, RowPlaces

_CPU_BLOCK = 512
"""PyTorch's CPU kernel goes through the keys in blocks of 512. Leaving out whole blocks that are masked in every row
saves their time and changes no bit of any row, so that a result does not depend on the neighbors' lengths."""

_ON_CUDA = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not cuDNN's, which plans anew for each length of a prompt: that takes longer than a prompt of 1,000 tokens."""


class SDPA:
    """Needs nothing but PyTorch."""

    name = "sdpa"
    supports_lse = False
    supports_packs = True
    supports_row_starts = False

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse nothing."""

    def prefill(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, pack: PromptPack | None = None
    ) -> Tensor:
        """Causal attention of prompts, one by one; see :meth:`AttentionBackend.prefill`."""
        spans = [slice(None)] if pack is None else pack.spans()
        parts = [_attend(queries[span], keys[span], values[span], scale) for span in spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def decode(
        self, queries: Tensor, cached_keys: Tensor, cached_values: Tensor, seq_lens: Tensor, longest: int | None,
        scale: float, lse_out: LSEOut | None = None, row_places: RowPlaces | None = None,
    ) -> Tensor:  # fmt: skip
        """One token of each row; see :meth:`AttentionBackend.decode`."""
        rows, query_heads, head_dim = queries.shape
        span, heads = cached_keys.shape[1:3]
        # A query of one token: the G heads of a group stand where the query length would.
        grouped = queries.view(rows, heads, query_heads // heads, head_dim)
        if longest is not None and queries.device.type == "cpu":
            span = min(span, max(1, -(-longest // _CPU_BLOCK)) * _CPU_BLOCK)
        places = torch.arange(span, device=queries.device, dtype=seq_lens.dtype)
        # A row that holds nothing sees its first slot: without any, its softmax would not be finite.
        mask = (places < seq_lens.clamp(min=1)[:, None])[:, None, None]
        keys, values = (states[:, :span].transpose(1, 2) for states in (cached_keys, cached_values))
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return out.masked_fill((seq_lens == 0)[:, None, None, None], 0.0).reshape(rows, query_heads, head_dim)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    grouped = queries.shape[1] != keys.shape[1]
    queries, keys, values = (states.transpose(0, 1)[None] for states in (queries, keys, values))
    with sdpa_kernel(_ON_CUDA) if queries.is_cuda else contextlib.nullcontext():
        out = scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=grouped)
    return out[0].transpose(0, 1)


BACKEND = SDPA
