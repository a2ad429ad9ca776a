"""Models of random weights: built from a zoo entry's facts alone, and checked against a real config."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vase_cli.config.architecture import Architecture
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry, ModelShape
from vase_cli.errors import ConfigError, ModelError
from vase_cli.models.describe import describe
from vase_cli.models.random_weights import RandomWeights

CPU = torch.device("cpu")
SHAPE = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16)
DENSE = Architecture("qwen3", hidden=32, mlp=48, vocabulary=101, tied=False)
MIXTURE = replace(DENSE, family="qwen3_moe", experts=6, experts_per_token=2, expert_mlp=24)


def entry(architecture: Architecture | None = DENSE, shape: ModelShape | None = SHAPE) -> ModelEntry:
    return ModelEntry("tiny", hub_id="nobody/nothing", shape=shape, architecture=architecture)


@pytest.mark.parametrize("architecture", [DENSE, replace(DENSE, family="qwen2"), replace(DENSE, tied=True), MIXTURE])
def test_the_model_is_what_was_described(architecture: Architecture) -> None:
    weights = RandomWeights(max_tokens=300, seed=0)
    facts = weights.describe(entry(architecture), "bfloat16", CPU)
    assert (facts.shape, facts.vocabulary, facts.hidden) == (SHAPE, 101, 32)
    assert (facts.max_tokens, facts.dtype) == (300, "bfloat16")
    model = weights.load(entry(architecture), "bfloat16", CPU)
    assert model.facts == facts and model.eos_token_ids == frozenset()
    tensors = {id(weight): weight for weight in model.model.parameters()}.values()
    assert sum(weight.nbytes for weight in tensors) == facts.weights_bytes
    assert {weight.dtype for weight in tensors} == {torch.bfloat16}
    assert facts.embedding_bytes == (0 if architecture.tied else 101 * 32 * 2)


def test_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (
        list(RandomWeights(300, seed).load(entry(), None, CPU).model.parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weight, other_weight) for weight, other_weight in zip(first, again, strict=True))
    matrices = [pair for pair in zip(first, other, strict=True) if pair[0].dim() > 1]
    assert not any(torch.equal(weight, other_weight) for weight, other_weight in matrices)
    values = torch.cat([matrix.flatten() for matrix, _ in matrices])
    assert values.std().item() == pytest.approx(0.02, rel=0.05)
    assert values.mean().abs().item() < 0.001


def test_facts_that_cannot_be_built_are_refused() -> None:
    weights = RandomWeights(300, 0)
    with pytest.raises(ConfigError, match="tiny does not say its shape and architecture"):
        weights.describe(entry(None), None, CPU)
    with pytest.raises(ConfigError, match="name the model with --model"):
        weights.load(entry(shape=None), None, CPU)
    with pytest.raises(ModelError, match=r"^tiny: no such model can be built \(.*qwen33"):
        weights.describe(entry(replace(DENSE, family="qwen33")), None, CPU)


WRONG = {"family": "qwen2", "hidden": 64, "mlp": 47, "vocabulary": 7, "tied": False}


@pytest.mark.parametrize("fact", WRONG)
def test_a_real_model_of_another_architecture_is_refused(fact: str, model_folder: Callable[..., Path]) -> None:
    folder = model_folder("qwen3")
    vocabulary = describe(ModelEntry("tiny", path=folder), None, CPU).vocabulary
    right = Architecture("qwen3", hidden=32, mlp=48, vocabulary=vocabulary, tied=True)
    facts = describe(ModelEntry("tiny", path=folder, architecture=right), None, CPU)
    assert facts.embedding_bytes == 0
    wrong = replace(right, **{fact: WRONG[fact]})
    with pytest.raises(ModelError, match=f", in the zoo entry {WRONG[fact]}: not the same model"):
        describe(ModelEntry("tiny", path=folder, architecture=wrong), None, CPU)


ENTRY = "hub_id: a/b\narchitecture: "
REFUSALS = {
    "half": ("{family: qwen3, hidden: 32}", "mlp is missing; this architecture is family, hidden, mlp,"),
    "half a mixture": (
        "{family: qwen3, hidden: 32, mlp: 48, vocabulary: 9, tied: true, experts: 8}", "experts_per_token is missing",
    ),
    "unknown": ("{familly: qwen3}", "architecture.familly: unknown key; did you mean 'family'?"),
    "width": ("{family: qwen3, hidden: 1k, mlp: 48, vocabulary: 9, tied: true}", "architecture.hidden: must be a"),
    "tied": ("{family: qwen3, hidden: 32, mlp: 48, vocabulary: 9, tied: yes}", "architecture.tied: must be true or"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_section_that_is_not_an_architecture_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(ENTRY + text)
    with pytest.raises(ConfigError) as refused:
        load_entry(path, "mine")
    assert str(refused.value).startswith(f"{path}:2: ") and message in str(refused.value)


def test_unread_experts() -> None:
    """Each of 6 experts is left out by a token, which is routed to 2, with a probability of 2/3."""
    expert = 3 * 32 * 24
    assert DENSE.unread_expert_parameters(layers=3, tokens=1) == 0
    assert MIXTURE.unread_expert_parameters(layers=3, tokens=1) == pytest.approx(3 * 4 * expert)
    assert MIXTURE.unread_expert_parameters(layers=3, tokens=2) == pytest.approx(3 * 6 * 4 / 9 * expert)
    assert MIXTURE.unread_expert_parameters(layers=3, tokens=64) == pytest.approx(0, abs=1e-3)
