"""Attention backends on the CPU, against attention computed one query at a time in float64."""

import sys
import types

import pytest
import torch

from vase_cli import plugins
from vase_cli.attention import sdpa
from vase_cli.attention.base import AttentionBackend
from vase_cli.attention.flash_attention_2 import FlashAttention2
from vase_cli.attention.sdpa import SDPA
from vase_cli.attention.triton import TritonAttention
from vase_cli.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GROUPS = [1, 2, 4, 5, 7, 8]
HEAD_DIMS = [16, 64, 128]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}


def exact(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query (Hq, D) over all given keys and values (S, H, D), head by head in float64."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head, vector in enumerate(query.double()):
        scores = keys[:, head // group].double() @ vector * scale
        out.append(scores.softmax(dim=0) @ values[:, head // group].double())
    return torch.stack(out)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    error = (got.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[got.dtype], f"relative error {error:.1e}"


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("tokens", [1, 2, 33, 129])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_prefill_agrees_with_float64(head_dim: int, group: int, tokens: int):
    queries, keys, values = (
        draw(tokens, heads, head_dim, seed=seed) for seed, heads in enumerate((2 * group, 2, 2), start=tokens)
    )
    out = SDPA().prefill(queries, keys, values, 0.3)
    assert out.shape == queries.shape
    expected = [exact(queries[at], keys[: at + 1], values[: at + 1], 0.3) for at in range(tokens)]
    assert_close(out, torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prefill_agrees_with_float64_in_half_precision(dtype: torch.dtype):
    queries, keys, values = (draw(45, heads, 64, seed=heads, dtype=dtype) for heads in (10, 2, 2))
    out = SDPA().prefill(queries, keys, values, 0.125)
    expected = [exact(queries[at], keys[: at + 1], values[: at + 1], 0.125) for at in range(45)]
    assert out.dtype == dtype
    assert_close(out, torch.stack(expected))


def decode(
    held: list[int], group: int, head_dim: int, *, slots: int = 71, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One decode step of rows that hold so many tokens; the output, and what went in."""
    rows, heads = len(held), 2
    parts = {
        "queries": draw(rows, heads * group, head_dim, seed=seed, dtype=dtype),
        "cached_keys": draw(rows, slots, heads, head_dim, seed=seed + 1, dtype=dtype),
        "cached_values": draw(rows, slots, heads, head_dim, seed=seed + 2, dtype=dtype),
        "held": torch.tensor(held, dtype=torch.int32),
    }
    before = {name: part.clone() for name, part in parts.items()}
    out = SDPA().decode(*parts.values(), max(held), 0.2)
    for name, part in parts.items():
        assert torch.equal(part, before[name])
    return out, parts


def assert_rows_close(out: torch.Tensor, parts: dict[str, torch.Tensor]) -> None:
    for row, tokens in enumerate(parts["held"].tolist()):
        if tokens:
            keys, values = parts["cached_keys"][row, :tokens], parts["cached_values"][row, :tokens]
            assert_close(out[row], exact(parts["queries"][row], keys, values, 0.2))
        else:
            assert torch.equal(out[row], torch.zeros_like(out[row]))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_decode_agrees_with_float64(head_dim: int, group: int):
    out, parts = decode([1, 34, 0, 2, 71, 17, 0, 58], group, head_dim)
    assert out.shape == parts["queries"].shape
    assert_rows_close(out, parts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decode_agrees_with_float64_in_half_precision(dtype: torch.dtype):
    out, parts = decode([6, 1, 42], 4, 64, dtype=dtype)
    assert out.dtype == dtype
    assert_rows_close(out, parts)


@pytest.mark.parametrize("group", [1, 4, 5])
def test_attention_under_a_mask_is_attention_over_what_a_row_holds(group: int):
    """All rows at once over all slots, as where the host does not know the longest row."""
    _, parts = decode([1, 34, 0, 71], group, 64)
    states = (parts["queries"], parts["cached_keys"], parts["cached_values"], parts["held"])
    assert_rows_close(sdpa.SDPA().decode(*states, None, 0.2), parts)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("slots", "tokens"), [(71, 1), (71, 8), (71, 65), (1100, 10), (1100, 511), (1100, 512), (1100, 513), (1100, 701)]
)
def test_no_bit_of_a_row_depends_on_its_neighbors(slots: int, tokens: int, group: int):
    """The CPU leaves out what no row holds: for 1,100 slots that is another span with each neighbor."""
    alone, parts = decode([0, tokens, 0], group, 64, slots=slots)
    for seed, neighbors in enumerate(([4, slots], [slots, 1], [2, 0], [501, 21]), start=10):
        held = [min(neighbors[0], slots), tokens, min(neighbors[1], slots)]
        _, others = decode(held, group, 64, slots=slots, seed=seed)
        others["cached_values"][0] = float("nan")  # another text's states that are not finite
        for name in ("queries", "cached_keys", "cached_values"):
            others[name][1] = parts[name][1]
        for longest in (max(held), None):
            assert torch.equal(SDPA().decode(*others.values(), longest, 0.2)[1], alone[1])


def test_rows_that_are_all_idle_are_zeros():
    out, parts = decode([0, 0, 0], 2, 16)
    assert_rows_close(out, parts)


# FlashAttention2: here only when it says no.


def refusal(backend: AttentionBackend, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """The line that a backend refuses a model with; None if it takes it."""
    try:
        backend.check(device, dtype, head_dim)
    except ConfigError as error:
        return str(error)
    return None


def test_flash_attention_is_refused_on_a_cpu():
    line = refusal(FlashAttention2(), CPU, torch.bfloat16, 128)
    assert line == "flash_attention_2 needs a CUDA device, not cpu: use --attention sdpa"


def test_flash_attention_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    line = refusal(FlashAttention2(), GPU, torch.bfloat16, 128)
    assert line is not None and "\n" not in line
    assert "pip install flash-attn --no-build-isolation" in line and "--attention sdpa" in line


@pytest.mark.parametrize(
    ("dtype", "head_dim", "expected"),
    [
        (torch.bfloat16, 128, None),
        (torch.float16, 64, None),
        (torch.bfloat16, 256, None),
        (torch.float32, 128, "cannot compute in torch.float32: use --dtype bfloat16, or --attention sdpa"),
        (torch.bfloat16, 264, "cannot serve a head dim of 264: use --attention sdpa"),
        (torch.bfloat16, 100, "cannot serve a head dim of 100: use --attention sdpa"),
    ],
)
def test_flash_attention_refuses_what_its_kernels_cannot_do(
    dtype: torch.dtype, head_dim: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    line = refusal(FlashAttention2(), GPU, dtype, head_dim)
    assert line == (None if expected is None else f"flash_attention_2 {expected}")


# Triton's kernels have tests of their own: here only when it says no.


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_triton_is_refused_without_a_cuda_device(device: str):
    line = refusal(TritonAttention(), torch.device(device), torch.bfloat16, 128)
    assert line == f"triton needs a CUDA device, not {device}: use --attention sdpa"


def test_triton_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    line = refusal(TritonAttention(), GPU, torch.bfloat16, 128)
    assert line is not None and "\n" not in line
    assert "pip install triton" in line and "--attention sdpa" in line


@pytest.mark.parametrize(
    ("dtype", "head_dim", "expected"),
    [
        (torch.bfloat16, 128, None),
        (torch.float16, 16, None),
        (torch.float32, 256, None),
        (torch.float64, 128, "cannot compute in torch.float64: use --dtype bfloat16, or --attention sdpa"),
        (torch.bfloat16, 512, "cannot serve a head dim of 512: use --attention sdpa"),
        (torch.bfloat16, 96, "cannot serve a head dim of 96: use --attention sdpa"),
        (torch.bfloat16, 8, "cannot serve a head dim of 8: use --attention sdpa"),
    ],
)
def test_triton_refuses_what_its_kernel_cannot_do(
    dtype: torch.dtype, head_dim: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    line = refusal(TritonAttention(), GPU, dtype, head_dim)
    assert line == (None if expected is None else f"triton {expected}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sdpa_serves_everything(dtype: torch.dtype):
    for device in (CPU, GPU):
        assert refusal(SDPA(), device, dtype, 100) is None


def test_backends_are_found_by_name():
    assert plugins.names("attention") == ["flash_attention_2", "sdpa", "triton"]
    assert [plugins.load("attention", name)().name for name in plugins.names("attention")] == plugins.names("attention")
    with pytest.raises(ConfigError, match="no attention backend 'flash_attention_3'; did you mean 'flash_attention_2'"):
        plugins.load("attention", "flash_attention_3")
