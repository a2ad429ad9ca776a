"""What only a CUDA device can show: FlashAttention2 and SDPA against float64, and the engine on the GPU."""

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_engine import make_requests, token_ids
from test_eviction import make_view

from vase_cli import plugins
from vase_cli.config import ModelEntry, SamplingParams
from vase_cli.engine import Engine, EngineSettings
from vase_cli.eviction.base import CacheView
from vase_cli.models import LanguageModel, load, load_tokenizer
from vase_cli.randomness import SequenceNoise, uniform
from vase_cli.ranking import best
from vase_cli.sampling import sample

pytestmark = pytest.mark.gpu

BACKENDS = ["sdpa", "flash_attention_2"]
HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
GPU = torch.device("cuda", 0)


def backend_of(name: str):
    if name == "flash_attention_2" and not HAS_FLASH:
        pytest.skip("flash-attn is not installed: pip install flash-attn --no-build-isolation")
    return plugins.load("attention", name)()


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


def exact_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, causal: bool
) -> torch.Tensor:
    """In float64: queries (T, Hq, D), keys and values (S, H, D), the last query sees all S."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("thd,shd->hts", queries.double(), keys) * scale
    if causal:
        tokens, held = scores.shape[1:]
        scores.masked_fill_(torch.ones(tokens, held, device=scores.device).triu(held - tokens + 1).bool(), -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(dim=-1), values)


@pytest.mark.parametrize("rows", [1, 3, 17, 96])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", BACKENDS)
def test_decode_agrees_with_float64_and_appends_in_place(name: str, head_dim: int, group: int, rows: int):
    backend = backend_of(name)
    generator = torch.Generator(GPU).manual_seed(rows * 1000 + group)
    heads, slots, scale = 2, 333, head_dim**-0.5

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=GPU).bfloat16()

    queries, keys, values = (
        draw(rows, heads * group, head_dim),
        draw(rows, heads, head_dim),
        draw(rows, heads, head_dim),
    )
    cached = [draw(rows, slots, heads, head_dim) for _ in range(2)]
    before = [part.clone() for part in cached]
    live = [(37 * row + 5) % (slots - 1) for row in range(rows)]
    live[0] = -1 if rows > 1 else 0
    lengths = torch.tensor([max(length, 0) for length in live], dtype=torch.int32, device=GPU)
    out = backend.decode(queries, keys, values, *cached, lengths, live, scale)
    assert out.shape == queries.shape and out.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        for part, old, new in zip(cached, before, (keys, values), strict=True):
            assert torch.equal(part[row, length], new[row])
            assert torch.equal(part[row, :length], old[row, :length])
            assert torch.equal(part[row, length + 1 :], old[row, length + 1 :])
        held = [part[row, : length + 1] for part in cached]
        expected = exact_attention(queries[row : row + 1], *held, scale, causal=False)
        assert relative_error(out[row : row + 1], expected) < 1e-2


@pytest.mark.parametrize("tokens", [1, 7, 129, 1000])
@pytest.mark.parametrize("group", [1, 4, 7])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", BACKENDS)
def test_prefill_agrees_with_float64(name: str, head_dim: int, group: int, tokens: int):
    backend = backend_of(name)
    generator = torch.Generator(GPU).manual_seed(tokens)
    states = [
        torch.randn(tokens, heads, head_dim, generator=generator, device=GPU).bfloat16() for heads in (2 * group, 2, 2)
    ]
    out = backend.prefill(*states, head_dim**-0.5)
    assert relative_error(out, exact_attention(*states, head_dim**-0.5, causal=True)) < 1e-2


def test_random_numbers_and_ranks_are_the_same_bits_as_on_the_cpu():
    keys, counters = torch.arange(-50, 50)[:, None] * 7919**4, torch.arange(1000)
    assert torch.equal(uniform(keys.to(GPU), 3, counters.to(GPU)).cpu(), uniform(keys, 3, counters))
    scores = torch.randn(20, 4160, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    assert torch.equal(best(scores.to(GPU), 4000).cpu(), best(scores, 4000))


@pytest.mark.parametrize("name", [name for name in plugins.names("eviction") if plugins.load("eviction", name).evicts])
def test_methods_decide_as_on_the_cpu(name: str):
    view = make_view()
    moved = {key: value.to(GPU) if isinstance(value, torch.Tensor) else value for key, value in vars(view).items()}
    items = torch.arange(view.keys.shape[0], device=GPU)
    moved["noise"] = SequenceNoise(items + 1000, items)
    expected, _ = plugins.load("eviction", name)().select(view)
    got, finite = plugins.load("eviction", name)().select(CacheView(**moved))
    assert finite.all() and torch.equal(got.cpu(), expected)


def test_sampling_draws_as_on_the_cpu():
    logits = torch.randn(64, 151_936, generator=torch.Generator().manual_seed(0)).bfloat16()
    keys, positions = torch.arange(64), torch.arange(64) * 3
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
        SamplingParams(temperature=1.0),
    ):
        got = sample(logits.to(GPU), params, keys.to(GPU), positions.to(GPU))
        assert torch.equal(got.cpu(), sample(logits, params, keys, positions))


def load_on_gpu(folder: Path, dtype: str) -> LanguageModel:
    entry = ModelEntry("tiny", path=folder)
    return load(entry, load_tokenizer(entry), dtype, GPU)


def make_engine(model: LanguageModel, method: str, backend: str, **changes: object) -> Engine:
    policy = plugins.load("eviction", method)()
    values: dict[str, object] = {
        "budget": 16 if policy.evicts else None, "window": 4, "slots": 4, "sampling": SamplingParams(temperature=1.0),
        "seed": 3, "max_new_tokens": 40, "max_total_tokens": 200,
    }  # fmt: skip
    return Engine(model, policy, backend_of(backend), EngineSettings(**(values | changes)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", plugins.names("eviction"))
def test_tokens_do_not_depend_on_neighbours_or_order(method: str, backend: str, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16")
    requests = make_requests()
    together = token_ids(make_engine(model, method, backend), requests)
    assert token_ids(make_engine(model, method, backend), requests[::-1]) == together
    engine = make_engine(model, method, backend)
    alone = [token_ids(engine, [request]) for request in requests]
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == together


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_full_gives_the_tokens_of_the_cpu_in_float32(family: str, model_folder: Callable[..., Path]):
    folder = model_folder(family)
    entry = ModelEntry("tiny", path=folder)
    on_cpu = load(entry, load_tokenizer(entry), "float32", torch.device("cpu"))
    greedy = {"sampling": SamplingParams()}
    expected = token_ids(make_engine(on_cpu, "full", "sdpa", **greedy), make_requests())
    assert token_ids(make_engine(load_on_gpu(folder, "float32"), "full", "sdpa", **greedy), make_requests()) == expected


@pytest.mark.parametrize("method", ["vase-attnv", "rkv", "vase-dkv"])
def test_peak_memory_does_not_depend_on_output_length(method: str, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16")
    model.eos_token_ids = frozenset()
    peaks = []
    for new_tokens in (300, 3000):
        engine = make_engine(
            model, method, "sdpa", max_new_tokens=new_tokens, max_total_tokens=4000, budget=64, window=16
        )
        torch.cuda.reset_peak_memory_stats(GPU)
        list(engine.generate(make_requests()))
        peaks.append(torch.cuda.max_memory_allocated(GPU))
        del engine
    assert abs(peaks[1] - peaks[0]) <= 0.01 * peaks[0]
