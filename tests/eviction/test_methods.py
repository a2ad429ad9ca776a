"""Every method under the same demands, then what is particular to one."""

import itertools
import math

import pytest
import torch
from helpers.views import (
    BUDGET,
    CANDIDATES,
    EVICTING,
    GROUP,
    HEAD_DIM,
    HEADS,
    ITEMS,
    KEPT,
    READS_STATES,
    TOKENS,
    WINDOW,
    make_view,
    scattered,
)

from vase_cli import plugins
from vase_cli.errors import ConfigError
from vase_cli.eviction import _scores
from vase_cli.eviction.base import CacheView
from vase_cli.randomness import SequenceNoise


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EVICTING)
class TestEveryMethod:
    def test_keeps_the_window_and_the_budget_in_text_order(self, name: str, dtype: torch.dtype):
        chosen, finite = plugins.load("eviction", name)().select(make_view(dtype=dtype))
        assert chosen.shape == (ITEMS, HEADS, BUDGET) and finite.all()
        assert (chosen.diff(dim=-1) > 0).all()
        assert torch.equal(chosen[..., KEPT:], torch.arange(CANDIDATES, TOKENS).expand(ITEMS, HEADS, WINDOW))

    def test_an_item_does_not_depend_on_the_others(self, name: str, dtype: torch.dtype):
        view = make_view(dtype=dtype)
        together, _ = plugins.load("eviction", name)().select(view)
        one = slice(1, 2)
        alone, _ = plugins.load("eviction", name)().select(
            CacheView(
                keys=view.keys[one], values=view.values[one], positions=view.positions[one], queries=view.queries[one],
                prompt_lens=view.prompt_lens[one], seq_lens=view.seq_lens[one], budget=BUDGET, window=WINDOW,
                noise=SequenceNoise(torch.tensor([1001]), torch.tensor([1])),
            )
        )  # fmt: skip
        assert torch.equal(together[one], alone)

    def test_where_the_states_stand_does_not_matter(self, name: str, dtype: torch.dtype):
        view = make_view(dtype=dtype)
        method = plugins.load("eviction", name)()
        apart = scattered(view)
        torch.testing.assert_close(method.keep_scores(apart), method.keep_scores(view), rtol=1e-5, atol=1e-8)
        assert torch.equal(method.select(apart)[0], method.select(view)[0])

    def test_protect_prompt_keeps_the_whole_prompt(self, name: str, dtype: torch.dtype):
        view = make_view(dtype=dtype, prompt_tokens=20)
        chosen, _ = plugins.load("eviction", name)(protect_prompt=True).select(view)
        kept = view.candidate_positions.gather(-1, chosen[..., :KEPT])
        held = (view.candidate_positions < 20).sum(dim=-1)
        assert (held > 4).all() and (held <= KEPT).all()
        assert torch.equal((kept < 20).sum(dim=-1), held)

    def test_a_prompt_longer_than_the_places_leaves_no_room_for_the_rest(self, name: str, dtype: torch.dtype):
        view = make_view(dtype=dtype, prompt_tokens=70)
        chosen, _ = plugins.load("eviction", name)(protect_prompt=True).select(view)
        assert (view.candidate_positions.gather(-1, chosen[..., :KEPT]) < 70).all()

    def test_states_that_are_not_finite_are_flagged(self, name: str, dtype: torch.dtype):
        expected = [True, name not in READS_STATES, True]
        for bad in (math.nan, math.inf):
            view = make_view(dtype=dtype)
            view.keys[1, 3] = bad
            view.values[1, 3] = bad
            _, finite = plugins.load("eviction", name)().select(view)
            assert finite.tolist() == expected


@pytest.mark.parametrize("name", EVICTING)
def test_only_sampling_methods_change_from_cut_to_cut(name: str):
    method = plugins.load("eviction", name)
    first, _ = method().select(make_view(text_tokens=100))
    second, _ = method().select(make_view(text_tokens=108))
    assert torch.equal(first, second) == (name not in ("random", "snapkv-sample", "vase-attnv", "vase-dkv"))


@pytest.mark.parametrize("name", ["vase-attnv", "range-topk", "vase-dkv", "curdkv", "streaming"])
def test_sinks_are_protected(name: str):
    view = make_view()
    view.values[:, :4] *= 1e-3
    view.keys[:, :4] *= 1e-3
    chosen, _ = plugins.load("eviction", name)().select(view)
    assert torch.equal(chosen[..., :4], torch.arange(4).expand(ITEMS, HEADS, 4))


@pytest.mark.parametrize("name", ["vase-attnv", "range-topk"])
def test_the_largest_value_ranges_are_protected(name: str):
    view = make_view()
    view.values[:, 20, :, 0] = 50.0
    view.keys[:, 20] = -view.keys[:, 20] * 1e-4
    chosen, _ = plugins.load("eviction", name)(n_large=5).select(view)
    assert (chosen == 20).any(dim=-1).all()


def test_evict_large_drops_what_the_others_protect():
    view = make_view()
    view.values[:, 20, :, 0] = 50.0
    chosen, _ = plugins.load("eviction", "evict-large")().select(view)
    assert not (chosen == 20).any()


def test_streaming_keeps_the_most_recent():
    chosen, _ = plugins.load("eviction", "streaming")().select(make_view())
    recent = torch.cat((torch.arange(4), torch.arange(CANDIDATES - KEPT + 4, CANDIDATES)))
    assert torch.equal(chosen[..., :KEPT], recent.expand(ITEMS, HEADS, KEPT))


def test_redundancy_equals_the_pairwise_definition():
    view = make_view()
    unit = torch.nn.functional.normalize(view.candidate_keys.double(), dim=-1)
    similarity = unit @ unit.transpose(-1, -2)
    similarity.diagonal(dim1=-2, dim2=-1).zero_()
    expected = similarity.mean(dim=-1).softmax(dim=-1)
    torch.testing.assert_close(_scores.redundancy(view).double(), expected, rtol=1e-5, atol=1e-8)


def test_window_attention_equals_the_definition():
    view = make_view()
    attention = torch.zeros(ITEMS, HEADS, CANDIDATES, dtype=torch.float64)
    for item, head, member in itertools.product(range(ITEMS), range(HEADS), range(GROUP)):
        queries = view.queries[item, :, head * GROUP + member].double()
        weights = (
            (queries @ view.candidate_keys[item, head].double().T / math.sqrt(HEAD_DIM)).softmax(dim=-1).mean(dim=0)
        )
        attention[item, head] += weights / GROUP
    torch.testing.assert_close(_scores.window_attention(view, smooth=False).double(), attention, rtol=1e-5, atol=1e-8)
    padded = torch.nn.functional.pad(attention, (2, 2))
    smoothed = sum(padded[..., shift : shift + CANDIDATES] for shift in range(5)) / 5
    torch.testing.assert_close(_scores.window_attention(view, smooth=True).double(), smoothed, rtol=1e-5, atol=1e-8)


def exact_inclusion(weights: list[float], kept: int) -> list[float]:
    """P(item is drawn) in ``kept`` successive draws without replacement, in proportion to weight."""
    inclusion = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), kept):
        left, probability = sum(weights), 1.0
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        for item in order:
            inclusion[item] += probability
    return inclusion


def test_sampling_without_replacement_has_the_exact_inclusion_probabilities():
    weights = [0.4, 0.25, 0.2, 0.1, 0.05, 0.0]
    draws, kept = 40_000, 3
    view = CacheView(
        keys=torch.zeros(draws, 8, 1, 4), values=torch.zeros(draws, 8, 1, 4),
        positions=torch.arange(8, dtype=torch.int32).expand(draws, 1, 8), queries=None,
        prompt_lens=torch.zeros(draws, dtype=torch.int64), seq_lens=torch.arange(draws), budget=kept + 2, window=2,
        noise=SequenceNoise(torch.zeros(draws, dtype=torch.int64), torch.zeros(draws, dtype=torch.int64)),
    )  # fmt: skip
    scores = _scores.sampled(view, torch.tensor(weights).expand(draws, 1, 6))
    drawn = torch.zeros(draws, 6).scatter_(1, scores[:, 0].topk(kept).indices, 1.0).mean(dim=0)
    for observed, expected in zip(drawn.tolist(), exact_inclusion(weights, kept), strict=True):
        assert abs(observed - expected) < 5 * math.sqrt(max(expected * (1 - expected), 1e-12) / draws)


def test_the_noise_of_a_token_is_that_of_its_text_length_head_and_position():
    view = scattered(make_view())
    noise = _scores.sampled(view, None)
    for head in range(HEADS):
        expected = view.noise.gumbel(view.seq_lens[:, None], head, view.candidate_positions[:, head])
        torch.testing.assert_close(noise[:, head], expected, rtol=1e-5, atol=1e-6)


def test_random_is_uniform_over_the_candidates():
    counts = torch.zeros(CANDIDATES)
    for text_tokens in range(400):
        chosen, _ = plugins.load("eviction", "random")().select(make_view(text_tokens=text_tokens))
        counts += torch.bincount(chosen[..., :KEPT].flatten(), minlength=CANDIDATES)
    share = counts / (400 * ITEMS * HEADS)
    expected = KEPT / CANDIDATES
    assert (share - expected).abs().max() < 5 * math.sqrt(expected * (1 - expected) / (400 * ITEMS * HEADS))


def test_curdkv_draws_once_for_each_sequence_and_layer():
    method = plugins.load("eviction", "curdkv")()
    early, late = method.projection(make_view(text_tokens=100)), method.projection(make_view(text_tokens=500))
    assert early.shape == (ITEMS, HEAD_DIM, 20)
    assert torch.equal(early, late) and not torch.equal(early[0], early[1])
    assert abs(early.square().sum(dim=(1, 2)).mean().item() / HEAD_DIM - 1.0) < 0.2


def test_a_projection_wider_than_the_kernels_take_gives_the_same_leverage_item_by_item():
    view = scattered(make_view())
    projection = torch.randn(ITEMS, HEAD_DIM, 80, generator=torch.Generator().manual_seed(2))
    keys, values = (
        torch.einsum("nhcd,ndr->nhcr", states.double(), projection.double()).square().sum(dim=-1)
        for states in (view.candidate_keys, view.candidate_values)
    )
    torch.testing.assert_close(_scores.leverage(view, projection).double(), keys * values, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vase-attnv", {"n_large": 17}, "n_large is 17"),
        ("vase-attnv", {"n_large": 3}, "n_large is 3"),
        ("range-topk", {"n_large": 1000}, "n_large is 1000"),
        ("streaming", {"sinks": -1}, "sinks is -1"),
        ("rkv", {"attention_share": 1.5}, "attention_share is 1.5"),
        ("curdkv", {"rank": 0}, "rank is 0"),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, options: dict[str, float], message: str):
    with pytest.raises(ConfigError, match=message):
        plugins.load("eviction", name)(**options).check(BUDGET, WINDOW)


def test_default_n_large_fits_any_budget():
    for name in ("vase-attnv", "range-topk"):
        view = make_view()
        narrow = CacheView(**{**vars(view), "budget": WINDOW + 2})
        chosen, _ = plugins.load("eviction", name)().select(narrow)
        assert chosen.shape == (ITEMS, HEADS, WINDOW + 2)
