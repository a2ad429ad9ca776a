"""The memory plan against what is really allocated, and what fits."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engines import make_engine

from vase_cli import plugins
from vase_cli.config.schema import ModelEntry, ModelShape
from vase_cli.device import readable_bytes
from vase_cli.engine.cache import CacheShape
from vase_cli.engine.memory import MemoryPlan, plan_memory
from vase_cli.engine.plan import EngineSettings
from vase_cli.errors import ConfigError
from vase_cli.kernels.ops import TorchOps
from vase_cli.models.describe import ModelFacts, describe
from vase_cli.models.load import load
from vase_cli.models.tokenizer import load_tokenizer

CPU = torch.device("cpu")
GIB = 2**30
FACTS = ModelFacts(
    shape=ModelShape(layers=36, heads=32, kv_heads=8, head_dim=128),
    vocabulary=151_936,
    hidden=4096,
    mlp=12_288,
    weights_bytes=16_381_470_720,
    parameters=8_190_735_360,
    dtype="bfloat16",
    max_tokens=40_960,
)


def qwen3_8b_cache(slots: int) -> CacheShape:
    return CacheShape(
        layers=36,
        max_num_seqs=slots,
        tokens=4160,
        kv_heads=8,
        head_dim=128,
        query_heads=32,
        query_window=64,
        element_bytes=2,
    )


def make_plan(slots: int | str, *, available: int = 141 * GIB, most: int = 10_000, **changes: object) -> MemoryPlan:
    values: dict[str, object] = {"sampled": True, "longest_prompt_tokens": 2000}
    return plan_memory(
        FACTS, qwen3_8b_cache, available_bytes=available, max_num_seqs=slots, most_num_seqs=most, **(values | changes)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("method", ["full", "streaming", "vase-attnv"])
def test_planned_bytes_are_the_allocated_bytes(method: str, tied: bool, dtype: str, model_folder: Callable[..., Path]):
    entry = ModelEntry("tiny", path=model_folder("qwen3", tie_word_embeddings=tied))
    facts = describe(entry, dtype, CPU)
    model = load(entry, load_tokenizer(entry), dtype, CPU)
    engine = make_engine(model, method, max_num_seqs=3)

    def cache_shape(slots: int) -> CacheShape:
        settings = EngineSettings(**(vars(engine.settings) | {"max_num_seqs": slots}))
        policy, backend = plugins.load("eviction", method)(), plugins.load("attention", "sdpa")()
        return settings.cache_shape(facts, policy, backend, TorchOps())

    plan = plan_memory(
        facts,
        cache_shape,
        sampled=False,
        longest_prompt_tokens=60,
        available_bytes=GIB,
        max_num_seqs=3,
        most_num_seqs=16,
    )
    weights = {weight.data_ptr(): weight.nbytes for weight in model.model.parameters()}
    assert plan.weights_bytes == sum(weights.values())
    cache = engine.cache
    held = [cache.keys, cache.values, cache.slot_mapping, cache.positions, cache.lengths]
    held += [] if cache.queries is None else [cache.queries]
    assert (cache.queries is None) == (method != "vase-attnv")
    storages = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    assert plan.cache_bytes == sum(storages.values())
    assert plan.total_bytes == plan.weights_bytes + plan.cache_bytes + plan.logits_bytes + plan.prompt_bytes
    assert plan.logits_bytes >= 3 * facts.vocabulary * 4


def test_the_plan_grows_with_what_a_run_asks_for():
    plan = make_plan(8)
    assert make_plan(16).cache_bytes == 2 * plan.cache_bytes
    assert make_plan(16).logits_bytes == 2 * plan.logits_bytes
    assert make_plan(16).prompt_bytes == plan.prompt_bytes
    assert make_plan(8, sampled=False).logits_bytes < plan.logits_bytes
    long, longer = (make_plan(8, longest_prompt_tokens=tokens).prompt_bytes for tokens in (10_000, 30_000))
    assert longer == 3 * long > make_plan(8, longest_prompt_tokens=1).prompt_bytes > 0
    # One layer's queries, keys and values of the prompt and its MLP are the least that a prefill holds.
    assert long > 10_000 * 2 * ((32 + 2 * 8) * 128 + 12_288)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("prompt", [1, 500, 30_000])
@pytest.mark.parametrize("available", [18, 19, 20, 24, 40, 80, 141, 1000])
def test_auto_takes_the_most_num_seqs_that_fit(available: int, prompt: int, sampled: bool):
    usable = available * GIB * 0.9
    fits = []
    for slots in range(1, 300):
        shape = qwen3_8b_cache(slots)
        total = make_plan(slots, available=10**15, sampled=sampled, longest_prompt_tokens=prompt).total_bytes
        assert total > FACTS.weights_bytes + shape.bytes
        if total <= usable:
            fits.append(slots)
    ask = {"available": available * GIB, "sampled": sampled, "longest_prompt_tokens": prompt}
    if not fits:
        with pytest.raises(ConfigError, match="this run does not fit"):
            make_plan("auto", **ask)
        return
    plan = make_plan("auto", most=299, **ask)
    assert fits == list(range(1, len(fits) + 1)) and plan.max_num_seqs == len(fits)
    assert make_plan("auto", most=2, **ask).max_num_seqs == min(2, plan.max_num_seqs)
    assert make_plan(plan.max_num_seqs, **ask) == plan
    if plan.max_num_seqs < 299:
        with pytest.raises(ConfigError, match=f"use --slots {plan.max_num_seqs} or less, or auto"):
            make_plan(plan.max_num_seqs + 1, **ask)


def test_a_refusal_says_what_each_part_takes_and_what_is_free():
    with pytest.raises(ConfigError) as caught:
        make_plan("auto", available=12 * GIB)
    line = str(caught.value)
    assert "\n" not in line
    needed = make_plan(1, available=10**15)
    for size in (
        needed.weights_bytes,
        needed.cache_bytes,
        needed.logits_bytes,
        needed.prompt_bytes,
        needed.total_bytes,
        12 * GIB,
    ):
        assert readable_bytes(size) in line
    assert (
        "weights" in line
        and "cache of 1 slots" in line
        and "of which 10.8 GiB can be" in line
        and "smaller model" in line
    )
    with pytest.raises(ConfigError) as caught:
        make_plan(500, available=80 * GIB)
    line = str(caught.value)
    assert (
        line.startswith("500 slots do not fit: ")
        and "cache of 500 slots" in line
        and f"free, of which {readable_bytes(int(72 * GIB))} can be planned with; " in line
    )
    assert readable_bytes(make_plan(500, available=10**15).cache_bytes) in line
    allowed = re.search(r"use --slots (\d+) or less", line)
    assert allowed is not None and make_plan(int(allowed[1]), available=80 * GIB).max_num_seqs == int(allowed[1])


def test_with_kernels_the_plan_is_what_an_h200_measured():
    """One slot of Qwen3-8B, a prompt of 2,048 tokens: 17,302,837,760 bytes at the peak."""
    plan = make_plan(1, sampled=False, longest_prompt_tokens=2048, kernels=True)
    # However a token is drawn, kernels make nothing as wide as the vocabulary but logits, here of 2 bytes each.
    assert make_plan(1, kernels=True).logits_bytes == plan.logits_bytes < make_plan(1, sampled=False).logits_bytes
    assert plan.logits_bytes >= 2 * FACTS.vocabulary
    assert abs(plan.total_bytes - 17_302_837_760) < 0.01 * 17_302_837_760
    long, longer = (
        make_plan(1, longest_prompt_tokens=tokens, kernels=True).prompt_bytes for tokens in (16_384, 32_768)
    )
    assert longer - long < 16_384 * 2 * (4 * FACTS.hidden + FACTS.mlp), "the MLP runs in pieces"


@pytest.mark.parametrize(("available", "spare"), [(24, 2.4), (40, 4), (80, 4), (139, 4)])
def test_with_kernels_no_more_than_some_gib_are_left(available: int, spare: float):
    """What is planned was within 1% of what was allocated, and beside it are some hundred MiB on any device."""
    for kernels, left in ((True, spare), (False, available / 10)):
        plan = make_plan("auto", available=available * GIB, kernels=kernels)
        more = make_plan(plan.max_num_seqs + 1, available=10**15, kernels=kernels)
        assert plan.total_bytes <= (available - left) * GIB + 1 < more.total_bytes + 2


def rows_by_need(needs: list[int]) -> Callable[[int], CacheShape]:
    """Caches of Qwen3-8B with the longest rows that these texts need."""
    rows = sorted(needs, reverse=True)

    def shape(slots: int) -> CacheShape:
        return replace(qwen3_8b_cache(slots), query_window=0, tokens=rows[0], cut=False, row_tokens=tuple(rows[:slots]))

    return shape


def test_rows_by_need_fit_where_rows_as_long_as_the_longest_do_not():
    """256 texts of 100 to 1,000 tokens of prompt and 2,048 new ones on 139 GiB."""
    needs = [2048 + 100 + 900 * number // 255 for number in range(256)]
    ask = {
        "sampled": True, "longest_prompt_tokens": 1000, "available_bytes": 139 * GIB, "max_num_seqs": "auto",
        "most_num_seqs": 256, "kernels": True,
    }  # fmt: skip
    uniform = plan_memory(FACTS, rows_by_need([max(needs)] * 256), **ask)
    by_need = plan_memory(FACTS, rows_by_need(needs), **ask)
    assert by_need.max_num_seqs == 256 and by_need.cache_bytes < 0.9 * rows_by_need([max(needs)] * 256)(256).bytes
    assert uniform.cache_bytes == rows_by_need([max(needs)] * 256)(uniform.max_num_seqs).bytes
    tight = plan_memory(FACTS, rows_by_need(needs), **(ask | {"available_bytes": 80 * GIB}))
    longest, shorter = (sum(sorted(needs, reverse=True)[:slots]) for slots in (tight.max_num_seqs + 1, 100))
    assert tight.max_num_seqs > 100 and tight.total_bytes <= 76 * GIB
    assert longest * 2 * 36 * 8 * 128 * 2 + FACTS.weights_bytes > 75 * GIB > shorter * 2 * 36 * 8 * 128 * 2


@pytest.mark.parametrize("kernels", [True, False])
def test_the_plan_of_a_mixture_holds_what_each_expert_makes_of_a_token(kernels: bool):
    def prompt_bytes(facts: ModelFacts) -> int:
        plan = plan_memory(
            facts, qwen3_8b_cache, sampled=True, longest_prompt_tokens=8000, available_bytes=141 * GIB,
            max_num_seqs=1, most_num_seqs=1, kernels=kernels,
        )  # fmt: skip
        return plan.prompt_bytes

    mixture, more = (replace(FACTS, hidden=2048, mlp=6144, experts_per_token=places) for places in (8, 9))
    assert prompt_bytes(mixture) > 8000 * 2 * (6144 + 8 * 2048)
    assert prompt_bytes(more) - prompt_bytes(mixture) >= 8000 * 2 * 2048
    assert prompt_bytes(mixture) > prompt_bytes(replace(mixture, experts_per_token=0))


def test_the_sentence_adds_up_in_one_line():
    plan = make_plan(4)
    sentence = plan.message()
    assert sentence.endswith(f"= {readable_bytes(plan.total_bytes)} of {readable_bytes(141 * GIB)} free")
    assert "cache of 4 slots" in sentence and "\n" not in sentence


def test_a_repetition_penalty_has_its_place_in_the_plan():
    plain, penalized = make_plan(8), make_plan(8, penalized=True)
    # A mask, and at the least a copy of the logits in float32 and what takes its place.
    assert penalized.logits_bytes - plain.logits_bytes >= 8 * FACTS.vocabulary * (1 + 4 + 4)
    assert penalized.cache_bytes == plain.cache_bytes
    plain, penalized = make_plan(8, kernels=True), make_plan(8, kernels=True, penalized=True)
    assert penalized.logits_bytes - plain.logits_bytes == 8 * FACTS.vocabulary, "kernels copy nothing"
