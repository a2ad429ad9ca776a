"""A model of random weights that is soon measured, its sizes, and rates of a device that are known."""

from dataclasses import replace
from typing import Any

import torch

from vase_cli.bench.cells import Steps
from vase_cli.bench.rates import Rates
from vase_cli.config.architecture import Architecture
from vase_cli.config.schema import ModelEntry, ModelShape, Recipe, SamplingParams
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.models.random_weights import RandomWeights

CPU = torch.device("cpu")
SHAPE = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16)
DENSE = Architecture("qwen3", hidden=32, mlp=48, vocabulary=101, tied=False)
MIXTURE = replace(DENSE, family="qwen3_moe", experts=6, experts_per_token=2, expert_mlp=24)
STEPS = Steps(warm_up=4, measured=8)
MAX_TOKENS = 500
RATES = Rates(copy_bytes_per_s=2e9, read_bytes_per_s=1.5e9, flops_per_s=1e12)

# Elements: of a layer's projections and norms without its MLP, and of what stands outside of the layers.
ATTENTION = 2 * 32 * 64 + 2 * 32 * 32 + 2 * 16 + 2 * 32
HEAD = 101 * 32
FLOAT32 = 4


def make_factory(
    method: str = "random", *, budget: int | None = 16, architecture: Architecture = DENSE, **changes: Any
) -> EngineFactory:
    recipe = Recipe(
        "tiny", "tiny", method=method, budget=None if method == "full" else budget, window=4, device="cpu",
        sampling=SamplingParams(),
    )  # fmt: skip
    entry = ModelEntry("tiny", hub_id="nobody/nothing", shape=SHAPE, architecture=architecture)
    return EngineFactory(plan_run(replace(recipe, **changes), entry, weights=RandomWeights(MAX_TOKENS, seed=0)))
