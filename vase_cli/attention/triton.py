"""Attention with the package's own kernels, on CUDA devices with Triton; shapes as in ``base``."""

import torch
from torch import Tensor

from vase_cli.attention.base import LSEOut, PromptPack, RowPlaces
from vase_cli.errors import ConfigError


class TritonAttention:
    """Needs Triton, which comes with PyTorch for CUDA."""

    name = "triton"
    supports_lse = True
    supports_packs = True
    supports_row_starts = True

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse all but CUDA, and a head dim that is a power of two from 16 to 256."""
        if device.type != "cuda":
            raise ConfigError(f"triton needs a CUDA device, not {device.type}: use --attention sdpa")
        try:
            import triton  # noqa: F401
        except ImportError as error:
            problem = f"triton cannot be imported ({error}): pip install triton, or use --attention sdpa"
            raise ConfigError(problem) from error
        if dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ConfigError(f"triton cannot compute in {dtype}: use --dtype bfloat16, or --attention sdpa")
        if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
            raise ConfigError(f"triton cannot serve a head dim of {head_dim}: use --attention sdpa")

    def prefill(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, pack: PromptPack | None = None
    ) -> Tensor:
        """Causal attention of prompts; see :meth:`AttentionBackend.prefill`."""
        from vase_cli.kernels.prompt_attention import block_of, prompt_attention

        pack = pack or PromptPack((queries.shape[0],), queries.device)
        queries, keys, values = (states.contiguous() for states in (queries, keys, values))
        out = torch.empty_like(queries)
        prompt_attention(queries, keys, values, pack.blocks(block_of(queries)), scale, out)
        return out

    def decode(
        self, queries: Tensor, cached_keys: Tensor, cached_values: Tensor, seq_lens: Tensor, longest: int | None,
        scale: float, lse_out: LSEOut | None = None, row_places: RowPlaces | None = None,
    ) -> Tensor:  # fmt: skip
        """One token of each row; see :meth:`AttentionBackend.decode`."""
        from vase_cli.kernels.attention import decode_attention

        queries = queries.contiguous()
        out = torch.empty_like(queries)
        of_candidates, places = lse_out or (None, 0, None), row_places or (None, None)
        decode_attention(queries, cached_keys, cached_values, seq_lens, scale, out, *of_candidates, *places)
        return out


BACKEND = TritonAttention
