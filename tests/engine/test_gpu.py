"""What only a CUDA device can show: attention backends against float64, and the engine on the GPU."""

import gc
import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import make_requests, token_ids
from helpers.views import make_view, scattered

from vase_cli import plugins
from vase_cli.config.schema import ModelEntry, SamplingParams
from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.cut import CutSubject, Cutter
from vase_cli.engine.engine import Engine
from vase_cli.engine.plan import Demand, EngineSettings, GenerationLimits
from vase_cli.engine.prefill import Prefill
from vase_cli.engine.requests import Completion, Notice, Request
from vase_cli.engine.sampling import sample
from vase_cli.engine.sequence import Sequence
from vase_cli.eviction.base import CacheView
from vase_cli.kernels.ops import TorchOps, select_ops
from vase_cli.kernels.ranking import best
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.tokenizer import load_tokenizer
from vase_cli.randomness import SequenceNoise, uniform

pytestmark = pytest.mark.gpu

BACKENDS = ["sdpa", "flash_attention_2", "triton"]
HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
GPU = torch.device("cuda", 0)
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True}


def backend_of(name: str):
    if name == "flash_attention_2" and not HAS_FLASH:
        pytest.skip("flash-attn is not installed: pip install flash-attn --no-build-isolation")
    return plugins.load("attention", name)()


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


def exact_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """All rows in float64: queries (B, T, Hq, D), keys and values (B, S, H, D); seen (B, T, S) is the mask."""
    rows, tokens, query_heads, head_dim = queries.shape
    heads = keys.shape[2]
    grouped = queries.double().view(rows, tokens, heads, query_heads // heads, head_dim)
    scores = torch.einsum("bthgd,bshd->bhgts", grouped, keys.double()) * scale
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1).nan_to_num()
    return torch.einsum("bhgts,bshd->bthgd", weights, values.double()).reshape(queries.shape)


@pytest.mark.parametrize("rows", [1, 3, 17, 96])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", BACKENDS)
def test_decode_agrees_with_float64(name: str, head_dim: int, group: int, rows: int):
    backend = backend_of(name)
    generator = torch.Generator(GPU).manual_seed(rows * 1000 + group)
    heads, slots, scale = 2, 333, head_dim**-0.5
    queries, keys, values = (
        torch.randn(*shape, head_dim, generator=generator, device=GPU).bfloat16()
        for shape in ((rows, heads * group), (rows, slots, heads), (rows, slots, heads))
    )
    held = (37 * torch.arange(rows, device=GPU, dtype=torch.int32) + 6) % slots + 1
    if rows > 1:
        held[0] = 0
    before = [part.clone() for part in (queries, keys, values, held)]
    out = backend.decode(queries, keys, values, held, None, scale)
    for part, old in zip((queries, keys, values, held), before, strict=True):
        assert torch.equal(part, old)
    seen = torch.arange(slots, device=GPU) < held[:, None, None]
    expected = exact_attention(queries[:, None], keys, values, seen, scale)[:, 0]
    assert out.shape == queries.shape
    error = (out.double() - expected).norm(dim=(1, 2))
    assert (error <= 1e-2 * expected.norm(dim=(1, 2))).all()


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
    seen = torch.ones((1, tokens, tokens), dtype=torch.bool, device=GPU).tril()
    expected = exact_attention(*(part[None] for part in states), seen, head_dim**-0.5)[0]
    assert relative_error(out, expected) < 1e-2


def test_random_numbers_and_ranks_are_the_same_bits_as_on_the_cpu():
    keys, counters = torch.arange(-50, 50)[:, None] * 7919**4, torch.arange(1000)
    assert torch.equal(uniform(keys.to(GPU), 3, counters.to(GPU)).cpu(), uniform(keys, 3, counters))
    scores = torch.randn(20, 4160, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    assert torch.equal(best(scores.to(GPU), 4000).cpu(), best(scores, 4000))


@pytest.mark.parametrize("name", [name for name in plugins.names("eviction") if plugins.load("eviction", name).evicts])
def test_methods_decide_as_on_the_cpu(name: str):
    view = scattered(make_view())
    moved = {key: value.to(GPU) if isinstance(value, torch.Tensor) else value for key, value in vars(view).items()}
    items = torch.arange(view.prompt_lens.shape[0], device=GPU)
    moved["noise"] = SequenceNoise(items + 1000, items)
    moved["ops"] = select_ops(GPU)
    assert moved["ops"].has_kernels
    expected, _ = plugins.load("eviction", name)().select(view)
    got, finite = plugins.load("eviction", name)().select(CacheView(**moved))
    assert finite.all() and torch.equal(got.cpu(), expected)


def test_sampling_draws_as_on_the_cpu():
    logits = torch.randn(64, 151_936, generator=torch.Generator().manual_seed(0)).bfloat16()
    keys, positions = torch.arange(64), torch.arange(64) * 3
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.95, top_k=20),
        SamplingParams(temperature=0.6, top_k=100, min_p=0.05),
        SamplingParams(temperature=1.0),
    ):
        got, finite = sample(logits.to(GPU), params, keys.to(GPU), positions.to(GPU), select_ops(GPU))
        assert finite.all() and torch.equal(got.cpu(), sample(logits, params, keys, positions, TorchOps())[0])


def load_on_gpu(folder: Path, dtype: str, *, fused: bool = True) -> LanguageModel:
    entry = ModelEntry("tiny", path=folder)
    model = load(entry, load_tokenizer(entry), dtype, GPU)
    if fused:
        model.fuse()
    return model


def make_engine(model: LanguageModel, method: str, backend: str, **changes: object) -> Engine:
    policy = plugins.load("eviction", method)()
    values: dict[str, object] = {
        "budget": 16 if policy.evicts else None, "window": 4, "max_num_seqs": 4,
        "sampling": SamplingParams(temperature=1.0), "seed": 3, "max_new_tokens": 40, "max_total_tokens": 200,
    }  # fmt: skip
    return Engine(model, policy, backend_of(backend), EngineSettings(**(values | changes)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", plugins.names("eviction"))
def test_tokens_do_not_depend_on_neighbors_or_order(method: str, backend: str, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16")
    requests = make_requests()
    together = token_ids(make_engine(model, method, backend), requests)
    assert token_ids(make_engine(model, method, backend), requests[::-1]) == together
    engine = make_engine(model, method, backend)
    alone = [token_ids(engine, [request]) for request in requests]
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == together


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("slots", [4, 9])
def test_a_text_is_the_same_in_rows_of_any_length(slots: int, fused: bool, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16", fused=fused)
    limits = (300, 40, 3, 3, 21, 40, 5, 11, 130)
    requests = [replace(one, max_new_tokens=limit) for one, limit in zip(make_requests(), limits, strict=True)]
    demand = Demand.of(GenerationLimits(None, None, 400), requests)
    needs = tuple(need.text_tokens for need in demand.needs or ())
    changes = {"max_num_seqs": slots, "max_new_tokens": None, "max_total_tokens": needs[0]}
    uniform = make_engine(model, "full", "triton", **changes)
    ragged = make_engine(model, "full", "triton", **changes, text_tokens=needs)
    assert uniform.cache.shape.row_tokens is None and ragged.cache.shape.row_tokens == needs[:slots]
    expected = token_ids(uniform, requests)
    assert token_ids(ragged, requests) == expected
    assert token_ids(ragged, requests[::-1]) == expected
    alone = [token_ids(ragged, [request]) for request in requests]
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == expected


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("layers_without_experts", [[], [0]])
def test_tokens_of_a_mixture_do_not_depend_on_neighbors_or_order(
    layers_without_experts: list[int], model_folder: Callable[..., Path]
):
    """Nor does a step wait for what its routers chose."""
    folder = model_folder("qwen3_moe", head_dim=64, dtype="bfloat16", mlp_only_layers=layers_without_experts, **MIXTURE)
    model = load_on_gpu(folder, "bfloat16")
    requests = make_requests()
    together = token_ids(make_engine(model, "vase-attnv", "triton"), requests)
    engine = make_engine(model, "vase-attnv", "triton")
    alone = [token_ids(engine, [requests[-1]])]  # compiled and captured
    try:
        torch.cuda.set_sync_debug_mode("error")
        alone += [token_ids(engine, [request]) for request in requests[:-1]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert dict(itertools.chain.from_iterable(part.items() for part in alone)) == together
    assert engine._loop is not None and engine._loop._graph is not None


@pytest.mark.parametrize("backend", BACKENDS)
@torch.inference_mode()
def test_a_prompts_states_are_the_same_bits_in_any_pack(backend: str, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=128, hidden_size=256, dtype="bfloat16"), "bfloat16")
    assert model.packs
    model.reserve(2200)
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 300, 64, 1, 129, 2100, 65]
    prompts = [torch.randint(1, 90, (length,), generator=generator).tolist() for length in lengths]
    engine = make_engine(model, "full", backend, max_num_seqs=len(lengths), max_total_tokens=2200)

    def states(order: list[int]) -> dict[int, list[torch.Tensor]]:
        """Logits, keys and values of some prompts in a pack."""
        sequences = [Sequence(Request(str(of), tuple(prompts[of]), str(of)), row, 0) for row, of in enumerate(order)]
        prefill = Prefill(model, engine.cache, engine._backend, None, sequences)
        prefill.advance(None)
        made = (engine.cache.keys, engine.cache.values)
        return {
            of: [prefill.logits[row].clone(), *(part[:, row, : lengths[of]].clone() for part in made)]
            for row, of in enumerate(order)
        }

    together = states(list(range(len(lengths))))
    assert all(part.isfinite().all() for parts in together.values() for part in parts)
    for order in ([5, 0, 6, 1, 4, 2, 3], [5], [1], [0], [4, 2], [3]):
        for of, parts in states(order).items():
            assert all(torch.equal(part, own) for part, own in zip(parts, together[of], strict=True)), (order, of)


@pytest.mark.parametrize(
    ("family", "way"),
    [
        *itertools.product(["qwen3", "qwen2", "llama"], ["fused", "transformers"]),
        ("qwen3_moe", "fused"),  # transformers' own experts wait for the host in float32
        ("qwen3", "compiled"),
    ],
)
def test_full_gives_the_tokens_of_the_cpu_in_float32(family: str, way: str, model_folder: Callable[..., Path]):
    folder = model_folder(family, hidden_size=64, **(MIXTURE if family == "qwen3_moe" else {}))
    entry = ModelEntry("tiny", path=folder)
    on_cpu = load(entry, load_tokenizer(entry), "float32", torch.device("cpu"))
    greedy = {"sampling": SamplingParams()}
    expected = token_ids(make_engine(on_cpu, "full", "sdpa", **greedy), make_requests())
    model = load_on_gpu(folder, "float32", fused=way == "fused")
    model.compile(way == "compiled")
    engine = make_engine(model, "full", "triton" if way == "fused" else "sdpa", **greedy)
    events = list(engine.stream(make_requests()))
    assert not [event for event in events if isinstance(event, Notice)]
    assert {event.request.id: event.token_ids for event in events if isinstance(event, Completion)} == expected


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(repetition_penalty=1.3), SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.3)],
    ids=["greedy", "drawn"],
)
def test_a_repetition_penalty_gives_the_tokens_of_the_cpu(sampling: SamplingParams, model_folder: Callable[..., Path]):
    folder = model_folder("qwen3", hidden_size=64)
    entry = ModelEntry("tiny", path=folder)
    on_cpu = load(entry, load_tokenizer(entry), "float32", torch.device("cpu"))
    expected = token_ids(make_engine(on_cpu, "full", "sdpa", sampling=sampling), make_requests())
    engine = make_engine(load_on_gpu(folder, "float32"), "full", "triton", sampling=sampling)
    assert token_ids(engine, make_requests()) == expected
    assert engine._loop is not None and engine._loop._graph is not None
    off = SamplingParams(**{**vars(sampling), "repetition_penalty": 1.0})
    assert token_ids(make_engine(on_cpu, "full", "sdpa", sampling=off), make_requests()) != expected


def test_a_repetition_penalty_draws_as_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 151_936, generator=generator).bfloat16()
    seen = torch.rand(64, 151_936, generator=generator) < 0.3
    keys, positions = torch.arange(64), torch.arange(64) * 3
    for params in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05),
        SamplingParams(temperature=1.0, repetition_penalty=0.7),
    ):
        on_gpu = [tensor.to(GPU) for tensor in (logits, keys, positions, seen)]
        got, finite = sample(on_gpu[0], params, *on_gpu[1:3], select_ops(GPU), on_gpu[3])
        assert finite.all()
        assert torch.equal(got.cpu(), sample(logits, params, keys, positions, TorchOps(), seen)[0])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize(
    ("method", "penalty"), [*((name, 1.0) for name in plugins.names("eviction")), ("vase-attnv", 1.1)]
)
def test_the_host_waits_for_the_device_only_to_read_what_it_made(
    method: str, penalty: float, model_folder: Callable[..., Path]
):
    """A wait before the next step is launched leaves the GPU idle: at 64 rows for a millisecond a step.

    Of a fused model with kernels of ours; what torch does not report as a synchronization is not seen.
    """
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16")
    sampling = SamplingParams(temperature=1.0, repetition_penalty=penalty)
    engine = make_engine(model, method, "triton", sampling=sampling)
    token_ids(engine, make_requests()[:1])  # compiled and captured
    try:
        torch.cuda.set_sync_debug_mode("error")
        completions = list(engine.generate(make_requests()))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(completion.error is None for completion in completions)


@pytest.mark.parametrize("name", ["vase-attnv", "vase-dkv", "rkv", "streaming"])
def test_a_cut_through_its_graph_is_that_of_a_batch(name: str, monkeypatch: pytest.MonkeyPatch):
    """One row at a time through the captured graph, or all at once: the same bits in every row."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(graph), replay(graph)))
    generator = torch.Generator(GPU).manual_seed(0)
    policy = plugins.load("eviction", name)()
    shape = CacheShape(3, 7, 300, 2, 64, 8, 16 if "queries" in policy.needs else 0, 2)
    caches = []
    for _ in range(2):
        cache = StaticCache(shape, torch.bfloat16, GPU, select_ops(GPU))
        cutter = Cutter(policy, cache, 284, 16)
        assert cutter.prepare() == []
        caches.append((cache, cutter))
    (one, by_graph), (many, as_batch) = caches
    for part in ("keys", "values", "queries"):
        if getattr(one, part) is not None:
            getattr(one, part).normal_(generator=generator)
            getattr(many, part).copy_(getattr(one, part))
    for row in range(7):
        one.reset(torch.tensor([row], device=GPU))
        many.reset(torch.tensor([row], device=GPU))
    subjects = [CutSubject(row, 1000 + row, 20 + row, 400 + row) for row in (4, 0, 6, 2, 1)]
    bad = torch.cat([by_graph.cut([subject]) for subject in subjects])
    assert torch.equal(bad, as_batch.cut(subjects)) and (bad == 3).all()
    assert len(replays) == len(subjects)
    for part in ("keys", "values", "slot_mapping", "positions"):
        assert torch.equal(getattr(one, part), getattr(many, part))
    assert not torch.equal(one.positions[:, 4], one.positions[:, 3])


@pytest.mark.parametrize("method", ["vase-attnv", "rkv", "vase-dkv"])
def test_peak_memory_does_not_depend_on_output_length(method: str, model_folder: Callable[..., Path]):
    model = load_on_gpu(model_folder("qwen3", head_dim=64, dtype="bfloat16"), "bfloat16")
    model.eos_token_ids = frozenset()
    peaks = []
    for new_tokens in (10, 300, 3000):  # the first one makes what libraries keep
        engine = make_engine(
            model, method, "sdpa", max_new_tokens=new_tokens, max_total_tokens=4000, budget=64, window=16
        )
        torch.cuda.reset_peak_memory_stats(GPU)
        list(engine.generate(make_requests()))
        peaks.append(torch.cuda.max_memory_allocated(GPU))
        del engine
        gc.collect()
    assert abs(peaks[2] - peaks[1]) <= 0.01 * peaks[1]
