"""The fused forward against transformers' own, in float32; on a GPU or in Triton's interpreter."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import make_engine, make_requests, token_ids
from helpers.kernels import DEVICE, HALF, MARKS, triton_ops
from torch import Tensor

from vase_cli import plugins
from vase_cli.attention.base import PromptPack
from vase_cli.attention.triton import TritonAttention
from vase_cli.config.schema import ModelEntry
from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.cut import CutSubject, Cutter
from vase_cli.engine.engine import Engine
from vase_cli.engine.requests import Request
from vase_cli.eviction.base import CacheView
from vase_cli.models import fused, prefill
from vase_cli.models.fused import FAMILIES, FusionError
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.step import ForwardStep
from vase_cli.models.tokenizer import load_tokenizer

pytestmark = [pytest.mark.gpu, *MARKS]
KINDS = {
    "qwen3": {},
    "qwen2": {},
    "llama": {"hidden_size": 64, "num_attention_heads": 4, "attention_bias": False},
    "mistral": {"hidden_size": 64, "sliding_window": None, "tie_word_embeddings": False},
    "qwen3_moe": {
        "layers": 3,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
}


class AnywhereAttention(TritonAttention):
    """Decodes on a CPU too, in the interpreter."""

    def check(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
        """Refuse nothing."""


def load_model(folder: Path, dtype: str = "float32") -> LanguageModel:
    entry = ModelEntry("tiny", path=folder)
    return load(entry, load_tokenizer(entry), dtype, DEVICE)


def qwen2_shape(family: str) -> dict[str, object]:
    """Heads of a power of two: Qwen2 has no head dim of its own."""
    return {"hidden_size": 64} if family == "qwen2" else KINDS[family]


@pytest.mark.parametrize("method", ["full", "vase-attnv"])
@pytest.mark.parametrize("family", KINDS)
def test_generation_is_that_of_transformers_forward(family: str, method: str, model_folder: Callable[..., Path]):
    folder = model_folder(family, **qwen2_shape(family))
    requests = make_requests()[:5]
    changes = {"max_new_tokens": 12, "ops": triton_ops()}
    expected = token_ids(make_engine(load_model(folder), method, **changes), requests)
    model = load_model(folder)
    assert type(model.model).__name__ in FAMILIES
    model.fuse()
    assert token_ids(make_engine(model, method, **changes), requests) == expected


@pytest.mark.parametrize("family", KINDS)
def test_weights_are_shared_and_not_held_twice(family: str, model_folder: Callable[..., Path]):
    model = load_model(model_folder(family, **qwen2_shape(family)))
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    model.fuse()
    after = model.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    attention = model.model.model.layers[0].self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    storages = {projection.weight.untyped_storage().data_ptr() for projection in projections}
    assert len(storages) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "its MLP uses gelu"),
        ({"head_dim": 24}, "its head dim is 24"),
        ({"attention_bias": True}, "biases"),
    ],
)
def test_what_cannot_be_fused_says_why_and_stays_as_it_is(
    changes: dict[str, object], reason: str, model_folder: Callable[..., Path]
):
    model = load_model(model_folder("qwen3", **changes))
    with pytest.raises(FusionError, match=reason):
        model.fuse()
    assert token_ids(make_engine(model, "full", max_new_tokens=3), make_requests()[:2])


def test_a_family_that_is_not_known_is_left_alone(model_folder: Callable[..., Path]):
    model = load_model(model_folder("olmo2", num_key_value_heads=4))
    with pytest.raises(FusionError, match="Olmo2ForCausalLM are not known"):
        model.fuse()


def test_a_forward_that_disagrees_is_not_used(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    class OfAnotherScale(fused.FusedForward):
        def prefill(self, token_ids: Tensor, step: ForwardStep) -> Tensor:
            return 1.1 * super().prefill(token_ids, step)

    monkeypatch.setattr(fused, "FusedForward", OfAnotherScale)
    model = load_model(model_folder("qwen3"))
    with pytest.raises(FusionError, match="off transformers' own"):
        model.fuse()


@pytest.mark.parametrize("normalize", [False, True])
def test_weights_of_experts_are_normalized_if_the_config_says_so(normalize: bool, model_folder: Callable[..., Path]):
    folder = model_folder("qwen3_moe", **(KINDS["qwen3_moe"] | {"norm_topk_prob": normalize, "layers": 1}))
    model = load_model(folder)
    expected = token_ids(make_engine(model, "full", max_new_tokens=6), make_requests()[:2])
    model.fuse()
    assert token_ids(make_engine(model, "full", max_new_tokens=6), make_requests()[:2]) == expected


def test_a_router_that_disagrees_is_not_used(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """The forward itself is compared on the choices of transformers' routers, so it is the routers that must tell."""

    def of_the_least_likely(logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
        return route(-logits, count, normalize=normalize)

    from vase_cli.kernels import routing

    route = routing.route
    monkeypatch.setattr(routing, "route", of_the_least_likely)
    model = load_model(model_folder("qwen3_moe", **KINDS["qwen3_moe"]))
    with pytest.raises(FusionError, match=r"a router is .* off transformers' own"):
        model.fuse()


def test_experts_that_disagree_are_not_used(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    from vase_cli.kernels import routing

    monkeypatch.setattr(routing, "join", lambda states, places, out: out.zero_())
    model = load_model(model_folder("qwen3_moe", **KINDS["qwen3_moe"]))
    with pytest.raises(FusionError, match=r"the fused forward is .* off transformers' own"):
        model.fuse()


def test_another_choice_between_experts_as_likely_is_no_disagreement(model_folder: Callable[..., Path]):
    """A router of rows in equal pairs: transformers may take either of two, and the forward that follows is its own."""
    model = load_model(model_folder("qwen3_moe", **(KINDS["qwen3_moe"] | {"num_experts_per_tok": 3})))
    for layer in (model.model.model.layers[0], model.model.model.layers[2]):
        layer.mlp.gate.weight.data[1::2] = layer.mlp.gate.weight.data[::2]
        layer.mlp.gate.register_forward_hook(
            lambda module, args, output: (output[0], output[1], output[2] // 2 * 2 + 1 - output[2] % 2)
        )
    model.fuse()


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_long_prompts_mlp_runs_in_pieces(
    family: str, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    model = load_model(model_folder(family, **KINDS[family]))
    model.fuse()
    requests = make_requests()[4:5]
    expected = token_ids(make_engine(model, "full", max_new_tokens=4), requests)
    monkeypatch.setattr(prefill, "MLP_TOKENS_AT_ONCE", 16)
    assert token_ids(make_engine(model, "full", max_new_tokens=4), requests) == expected


def test_prompts_in_packs_give_the_tokens_of_prompts_alone(model_folder: Callable[..., Path]):
    """Of layers that pause, with a prompt that is cut; in half precision, in which kernels compute all products."""
    model = load_model(model_folder("qwen3"), str(HALF).removeprefix("torch."))
    model.fuse()
    assert model.packs
    settings = make_engine(model, "vase-attnv", max_new_tokens=3).settings
    packs = []

    class Noted(AnywhereAttention):
        def prefill(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float, pack: PromptPack | None = None):
            packs.append(pack.bounds)
            return super().prefill(queries, keys, values, scale, pack)

    def generated(requests: list[Request], **changes: int) -> dict[str, tuple[int, ...]]:
        policy = plugins.load("eviction", "vase-attnv")()
        return token_ids(Engine(model, policy, Noted(), replace(settings, **changes), ops=triton_ops()), requests)

    requests = make_requests()[:3]
    together = generated(requests)
    assert set(packs) == {(0, 3, 33, 44)}
    assert generated(requests[::-1], prefill_chunk=8, prefill_tokens=20) == together
    assert {key: text for request in requests for key, text in generated([request]).items()} == together


@pytest.mark.parametrize("method", ["snapkv", "vase-attnv"])
def test_cuts_use_the_log_sums_that_decode_steps_left(
    method: str, model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """At every cut they are those of the first pass over the keys, so that it may be left out."""
    monkeypatch.setattr(Cutter, "prepare", lambda self: [])  # what a graph replays cannot be watched
    model = load_model(model_folder("qwen3"))
    model.fuse()
    policy = plugins.load("eviction", method)()
    compared = []

    class Watched(type(policy)):
        def keep_scores(self, view: CacheView) -> torch.Tensor:
            scores = super().keep_scores(view)
            if view.lse is not None:
                own = super().keep_scores(replace(view, lse=None))
                torch.testing.assert_close(scores, own, rtol=1e-4, atol=1e-4)
                compared.append(view.item_rows.shape[0])
            return scores

    settings = make_engine(model, Watched(), max_new_tokens=14).settings
    engine = Engine(model, Watched(), AnywhereAttention(), settings, ops=triton_ops())
    completions = list(engine.generate(make_requests()[:6]))
    assert all(completion.error is None for completion in completions)
    of_prompts = sum(len(completion.request.prompt_token_ids) > 16 for completion in completions)
    assert sum(compared) == 2 * (engine.stats.cuts - of_prompts)
    assert len(compared) >= 3


@pytest.mark.parametrize("name", ["vase-attnv", "range-topk"])
def test_value_ranges_kept_between_cuts_change_no_cut(name: str):
    """Three cuts of two rows, one of them new in between, with the ranges of earlier cuts and without."""
    policy = plugins.load("eviction", name)()
    generator = torch.Generator().manual_seed(0)
    with_ranges, without = (
        StaticCache(CacheShape(2, 2, 40, 2, 16, 4, 8, 4, ranges=kept), torch.float32, DEVICE, triton_ops())
        for kept in (True, False)
    )
    cutters = [Cutter(policy, cache, 32, 8) for cache in (with_ranges, without)]
    assert without.ranges is None
    for cut in range(3):
        states = torch.randn(2, 2, 2, 40, 2, 16, generator=generator).to(DEVICE)
        queries = torch.randn(2, 2, 8, 4, 16, generator=generator).to(DEVICE)
        for cache, cutter in zip((with_ranges, without), cutters, strict=True):
            cache.queries.copy_(queries)
            for row in range(2):
                new = cut == 0 or (cut == 1 and row == 1)
                if new:
                    cache.reset(torch.tensor([row], device=DEVICE))
                fresh = slice(0, 40) if new else slice(32, 40)
                cache.keys[:, row, fresh] = states[0, :, row, fresh]
                cache.values[:, row, fresh] = states[1, :, row, fresh]
            bad = cutter.cut([CutSubject(row, 7 + row, 5, 100 + 8 * cut) for row in range(2)])
            assert (bad == 2).all()
        for part in ("keys", "values", "slot_mapping", "positions"):
            assert torch.equal(getattr(with_ranges, part), getattr(without, part)), (cut, part)
