"""Attention backends on the CPU, against attention computed one query at a time in float64."""

import sys
import types

import pytest
import torch

from vase_cli import plugins
from vase_cli.attention import sdpa
from vase_cli.attention.flash_attention_2 import FlashAttention2
from vase_cli.attention.sdpa import SDPA
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
    live: list[int], group: int, head_dim: int, *, slots: int = 71, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One decode step of rows that hold ``live`` tokens; the output, and what went in and came of it."""
    rows, heads = len(live), 2
    parts = {
        "queries": draw(rows, heads * group, head_dim, seed=seed, dtype=dtype),
        "keys": draw(rows, heads, head_dim, seed=seed + 1, dtype=dtype),
        "values": draw(rows, heads, head_dim, seed=seed + 2, dtype=dtype),
        "cached_keys": draw(rows, slots, heads, head_dim, seed=seed + 3, dtype=dtype),
        "cached_values": draw(rows, slots, heads, head_dim, seed=seed + 4, dtype=dtype),
        "lengths": torch.tensor([max(length, 0) for length in live], dtype=torch.int32),
    }
    before = {name: part.clone() for name, part in parts.items()}
    out = SDPA().decode(*parts.values(), live, 0.2)
    return out, {**{f"{name} before": part for name, part in before.items()}, **parts}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_decode_agrees_with_float64_and_appends_in_place(head_dim: int, group: int):
    live = [0, 33, -1, 1, 70, 16, -1, 57]
    out, parts = decode(live, group, head_dim)
    assert out.shape == parts["queries"].shape and out.isfinite().all()
    for name in ("queries", "keys", "values", "lengths"):
        assert torch.equal(parts[name], parts[f"{name} before"])
    for row, length in enumerate(live):
        held = max(length, 0)
        for new, cached in (("keys", "cached_keys"), ("values", "cached_values")):
            rest = [slot for slot in range(71) if slot != held]
            assert torch.equal(parts[cached][row, held], parts[new][row])
            assert torch.equal(parts[cached][row, rest], parts[f"{cached} before"][row, rest])
        if length >= 0:
            seen = slice(0, length + 1)
            expected = exact(
                parts["queries"][row], parts["cached_keys"][row, seen], parts["cached_values"][row, seen], 0.2
            )
            assert_close(out[row], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decode_agrees_with_float64_in_half_precision(dtype: torch.dtype):
    out, parts = decode([5, 0, 41], 4, 64, dtype=dtype)
    assert out.dtype == dtype
    for row, length in enumerate([5, 0, 41]):
        seen = slice(0, length + 1)
        expected = exact(parts["queries"][row], parts["cached_keys"][row, seen], parts["cached_values"][row, seen], 0.2)
        assert_close(out[row], expected)


@pytest.mark.parametrize("group", [1, 4, 5])
def test_attention_under_a_mask_is_attention_over_what_a_row_holds(group: int):
    """What CUDA runs, all rows at once over all slots; here on the CPU."""
    live = [0, 33, 1, 70]
    _, parts = decode(live, group, 64)
    grouped = parts["queries"].view(4, 2, group, 64)
    out = sdpa._masked(grouped, parts["cached_keys"], parts["cached_values"], parts["lengths"], 0.2).reshape(4, -1, 64)
    for row, length in enumerate(live):
        seen = slice(0, length + 1)
        expected = exact(parts["queries"][row], parts["cached_keys"][row, seen], parts["cached_values"][row, seen], 0.2)
        assert_close(out[row], expected)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("slots", "length"), [(71, 0), (71, 7), (71, 64), (1100, 9), (1100, 510), (1100, 511), (1100, 512), (1100, 700)]
)
def test_no_bit_of_a_row_depends_on_its_neighbours(slots: int, length: int, group: int):
    """The CPU leaves out what no row holds: for 1,100 slots that is another span with each neighbour."""
    alone, parts = decode([-1, length, -1], group, 64, slots=slots)
    for seed, neighbours in enumerate(([3, slots - 1], [slots - 1, 0], [1, -1], [500, 20]), start=10):
        live = [min(neighbours[0], slots - 1), length, neighbours[1]]
        _, others = decode(live, group, 64, slots=slots, seed=seed)
        tensors = [others[name] for name in ("queries", "keys", "values", "cached_keys", "cached_values")]
        tensors[4][0] = float("nan")  # another text's states that are not finite
        for tensor, name in zip(
            tensors, ("queries", "keys", "values", "cached_keys before", "cached_values before"), strict=True
        ):
            tensor[1] = parts[name][1]
        assert torch.equal(SDPA().decode(*tensors, others["lengths"], live, 0.2)[1], alone[1])


def test_rows_that_are_all_idle_are_finite():
    out, _ = decode([-1, -1, -1], 2, 16)
    assert out.isfinite().all()


# FlashAttention2: here only when it says no.


def test_flash_attention_is_refused_on_a_cpu():
    refusal = FlashAttention2().refusal(CPU, torch.bfloat16, 128)
    assert refusal == "flash_attention_2 needs a CUDA device, not cpu: use --attention sdpa"


def test_flash_attention_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    refusal = FlashAttention2().refusal(GPU, torch.bfloat16, 128)
    assert refusal is not None and "\n" not in refusal
    assert "pip install flash-attn --no-build-isolation" in refusal and "--attention sdpa" in refusal


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
    refusal = FlashAttention2().refusal(GPU, dtype, head_dim)
    assert refusal == (None if expected is None else f"flash_attention_2 {expected}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sdpa_serves_everything(dtype: torch.dtype):
    for device in (CPU, GPU):
        assert SDPA().refusal(device, dtype, 100) is None


def test_backends_are_found_by_name():
    assert plugins.names("attention") == ["flash_attention_2", "sdpa"]
    assert [plugins.load("attention", name)().name for name in plugins.names("attention")] == plugins.names("attention")
    with pytest.raises(ConfigError, match="no attention backend 'flash_attention_3'; did you mean 'flash_attention_2'"):
        plugins.load("attention", "flash_attention_3")
