"""FlashAttention-2 (arXiv 2307.08691), on CUDA devices in bf16 and fp16; shapes as in ``base``."""

import torch
from torch import Tensor

from vase_cli.attention.base import LSEOut, PromptPack, RowPlaces
from vase_cli.errors import ConfigError


class FlashAttention2:
    """Needs the ``flash-attn`` package."""

    name = "flash_attention_2"
    supports_lse = False
    supports_packs = True
    supports_row_starts = False

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse all but CUDA, half precision, and a head dim up to 256 that is a multiple of 8."""
        if device.type != "cuda":
            raise ConfigError(f"flash_attention_2 needs a CUDA device, not {device.type}: use --attention sdpa")
        try:
            import flash_attn  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"flash_attention_2 cannot be imported ({error}): pip install flash-attn --no-build-isolation, "
                "or use --attention sdpa"
            ) from error
        if dtype not in (torch.bfloat16, torch.float16):
            raise ConfigError(f"flash_attention_2 cannot compute in {dtype}: use --dtype bfloat16, or --attention sdpa")
        if head_dim > 256 or head_dim % 8:
            raise ConfigError(f"flash_attention_2 cannot serve a head dim of {head_dim}: use --attention sdpa")

    def prefill(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, pack: PromptPack | None = None
    ) -> Tensor:
        """Causal attention of prompts; see :meth:`AttentionBackend.prefill`."""
        from flash_attn import flash_attn_varlen_func

        pack = pack or PromptPack((queries.shape[0],), queries.device)
        bounds, longest = (pack.starts, pack.starts), (pack.longest, pack.longest)
        out: Tensor = flash_attn_varlen_func(queries, keys, values, *bounds, *longest, softmax_scale=scale, causal=True)
        return out

    def decode(
        self, queries: Tensor, cached_keys: Tensor, cached_values: Tensor, seq_lens: Tensor, longest: int | None,
        scale: float, lse_out: LSEOut | None = None, row_places: RowPlaces | None = None,
    ) -> Tensor:  # fmt: skip
        """One token of each row; see :meth:`AttentionBackend.decode`."""
        from flash_attn import flash_attn_with_kvcache

        out: Tensor = flash_attn_with_kvcache(
            queries[:, None], cached_keys, cached_values, cache_seqlens=seq_lens, softmax_scale=scale, causal=False
        )
        return out[:, 0]


BACKEND = FlashAttention2
