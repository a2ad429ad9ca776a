"""The cutter and the cache under it, as prefill and decode steps use them, against plain lists."""

import math

import pytest
import torch
from helpers.caches import FIELDS, snapshot, stored_anyhow

from vase_cli import plugins
from vase_cli.attention.base import PromptPack
from vase_cli.engine.cache import CacheShape, StaticCache
from vase_cli.engine.cut import Cut, CutSubject, Cutter
from vase_cli.engine.steps import DecodeStep, PrefillStep
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.kernels.ops import TorchOps
from vase_cli.randomness import SequenceNoise

CPU = torch.device("cpu")
LAYERS, ROWS, HEADS, GROUP, HEAD_DIM, BUDGET, WINDOW = 3, 4, 2, 2, 16, 12, 4
EVICTING = [name for name in plugins.names("eviction") if plugins.load("eviction", name).evicts]


def make_cache(policy: EvictionPolicy) -> StaticCache:
    shape = CacheShape(
        LAYERS, ROWS, BUDGET + WINDOW, HEADS, HEAD_DIM, HEADS * GROUP, WINDOW if "queries" in policy.needs else 0, 4
    )
    return StaticCache(shape, torch.float32, CPU, TorchOps())


class Echo:
    """An attention backend that only notes which tokens each row attends to."""

    name = "echo"
    supports_packs = False
    held: list[int]

    def prefill(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        return queries

    def decode(
        self,
        queries: torch.Tensor,
        cached_keys: torch.Tensor,
        cached_values: torch.Tensor,
        held: torch.Tensor,
        longest: int | None,
        scale: float,
    ) -> torch.Tensor:
        self.held = held.tolist()
        return queries


class ListText:
    """One text and what a cache of plain lists holds of it: by layer and head, text positions in order."""

    def __init__(self, policy: EvictionPolicy, row: int, prompt: int, key: int) -> None:
        self.policy, self.row, self.prompt, self.key = policy, row, prompt, key
        generator = torch.Generator().manual_seed(key)
        self.queries = torch.randn(LAYERS, 100, HEADS * GROUP, HEAD_DIM, generator=generator)
        self.keys, self.values = (torch.randn(LAYERS, 100, HEADS, HEAD_DIM, generator=generator) for _ in range(2))
        self.tokens = prompt
        self.held = [[list(range(prompt)) for _ in range(HEADS)] for _ in range(LAYERS)]
        if prompt > BUDGET:
            self.cut()

    @property
    def cached(self) -> int:
        return len(self.held[0][0])

    def subject(self) -> CutSubject:
        return CutSubject(self.row, self.key, self.prompt, self.tokens)

    def append(self) -> None:
        for head in (head for layer in self.held for head in layer):
            head.append(self.tokens)
        self.tokens += 1

    def cut(self) -> None:
        for layer, heads in enumerate(self.held):
            keys, values = (
                torch.stack([states[layer, held, head] for head, held in enumerate(heads)], dim=1)[None]
                for states in (self.keys, self.values)
            )
            view = CacheView(
                keys=keys,
                values=values,
                positions=torch.tensor(heads, dtype=torch.int32)[None],
                queries=self.queries[layer, self.tokens - WINDOW : self.tokens][None],
                prompt_lens=torch.tensor([self.prompt]),
                seq_lens=torch.tensor([self.tokens]),
                budget=BUDGET,
                window=WINDOW,
                noise=SequenceNoise(torch.tensor([self.key]), torch.tensor([layer])),
            )
            kept, _ = self.policy.select(view)
            self.held[layer] = [[held[number] for number in kept[0, head]] for head, held in enumerate(heads)]

    def check(self, cache: StaticCache) -> None:
        """The row holds the lists, and places for the tokens to come."""
        size = cache.shape.tokens
        for layer in range(LAYERS):
            for head, held in enumerate(self.held[layer]):
                coming = list(range(self.tokens, self.tokens + size - len(held)))
                slots = cache.slot_mapping[layer, self.row, head]
                assert cache.positions[layer, self.row, head].tolist() == held + coming
                assert sorted(slots.tolist()) == list(range(size))
                assert slots[len(held) :].tolist() == list(range(len(held), size))
                for stored, states in ((cache.keys, self.keys), (cache.values, self.values)):
                    assert torch.equal(stored[layer, self.row, slots[: len(held)], head], states[layer, held, head])


@pytest.mark.parametrize("protect_prompt", [False, True])
@pytest.mark.parametrize("method", EVICTING)
def test_rows_hold_what_plain_lists_hold_over_many_cuts(method: str, protect_prompt: bool):
    """Prompts shorter than, as long as and longer than the budget; idle rows; rows that take a second text."""
    policy = plugins.load("eviction", method)(protect_prompt=protect_prompt)
    cache, backend = make_cache(policy), Echo()
    cutter = Cutter(policy, cache, BUDGET, WINDOW)
    starts = {0: (0, 3), 2: (1, BUDGET), 5: (3, 31), 20: (0, 9), 27: (1, 13)}  # step: row, prompt
    texts: dict[int, ListText] = {}
    cuts = together = 0
    for step in range(50):
        if step in starts:
            row, prompt = starts[step]
            text = texts[row] = ListText(policy, row, prompt, key=step + 7)
            cache.reset(torch.tensor([row]))
            prefill = PrefillStep(cache, backend, cutter, [text.subject()], PromptPack([prompt], CPU))
            for layer in range(LAYERS):
                states = (part[layer, None, :prompt] for part in (text.queries, text.keys, text.values))
                prefill.attend(layer, *states, 1.0)
            bad_layers = prefill.bad_layers()
            assert bad_layers is None if prompt <= BUDGET else bad_layers.tolist() == [LAYERS]
            cache.lengths[row] = text.cached
            text.check(cache)
        active = torch.tensor([int(row in texts) for row in range(ROWS)], dtype=torch.int32)
        text_positions = torch.tensor([texts[row].tokens if row in texts else 0 for row in range(ROWS)])
        decode = DecodeStep(cache, backend, text_positions, active, cache.lengths + active, None)
        for layer in range(LAYERS):
            states = [torch.randn(ROWS, 1, heads, HEAD_DIM) for heads in (HEADS * GROUP, HEADS, HEADS)]
            for row, text in texts.items():
                for part, given in zip(states, (text.queries, text.keys, text.values), strict=True):
                    part[row, 0] = given[layer, text.tokens]
            assert torch.equal(decode.attend(layer, *states, 1.0), states[0])
            assert backend.held == [texts[row].cached + 1 if row in texts else 0 for row in range(ROWS)]
        cache.lengths += active
        for text in texts.values():
            text.append()
        due = [text for text in texts.values() if text.cached == BUDGET + WINDOW]
        if due:
            assert cutter.cut([text.subject() for text in due]).tolist() == [LAYERS] * len(due)
            for text in due:
                cache.lengths[text.row] = BUDGET
                text.cut()
            cuts += len(due)
            together += len(due) > 1
        for text in texts.values():
            text.check(cache)
    assert cuts > 20 and together > 3


def full_cache(policy: EvictionPolicy) -> tuple[StaticCache, list[CutSubject]]:
    cache = make_cache(policy)
    anyhow = snapshot(stored_anyhow(cache.shape, WINDOW))
    generator = torch.Generator().manual_seed(0)
    for name in FIELDS:
        tensor = getattr(cache, name)
        if name in ("slot_mapping", "positions"):
            tensor.copy_(anyhow[name])
        elif tensor is not None:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache, [CutSubject(row, 100 + row, 5, 80 + row) for row in (2, 0, 3)]


@pytest.mark.parametrize("method", EVICTING)
def test_a_cut_does_not_depend_on_who_else_is_due_or_on_the_memory_for_it(method: str):
    policy = plugins.load("eviction", method)()
    (together, subjects), (apart, _), (narrow, _) = (full_cache(policy) for _ in range(3))
    Cutter(policy, together, BUDGET, WINDOW).cut(subjects)
    for subject in subjects[::-1]:
        Cutter(policy, apart, BUDGET, WINDOW).cut([subject])
    Cutter(policy, narrow, BUDGET, WINDOW, scores_bytes=1).cut(subjects)
    for other in (apart, narrow):
        assert all(torch.equal(held, snapshot(other)[name]) for name, held in snapshot(together).items())


@pytest.mark.parametrize("method", sorted(set(EVICTING) - {"streaming", "random"}))
def test_a_cut_names_the_first_layer_that_is_not_finite_of_each_row(method: str):
    policy = plugins.load("eviction", method)()
    cache, subjects = full_cache(policy)
    for row, layer in ((3, 2), (0, 1), (0, 2), (1, 0)):
        cache.keys[layer, row, 5] = cache.values[layer, row, 5] = math.nan
    cutter = Cutter(policy, cache, BUDGET, WINDOW)
    bad_layers = cutter.cut(subjects)
    assert bad_layers.dtype == torch.int64 and bad_layers.tolist() == [LAYERS, 1, 2]
    assert cutter.cut([]).tolist() == []


@pytest.mark.parametrize("protect_prompt", [False, True])
@pytest.mark.parametrize("at_once", [1, 2**30])
def test_each_cut_can_be_looked_at(protect_prompt: bool, at_once: int):
    """Against what the row held before and holds afterwards, and the method's own scores."""
    given: list[torch.Tensor] = []

    class Noted(plugins.load("eviction", "vase-attnv")):
        def keep_scores(self, view: CacheView) -> torch.Tensor:
            given.append(super().keep_scores(view))
            return given[-1]

    policy = Noted(protect_prompt=protect_prompt)
    cache, subjects = full_cache(policy)
    seen: list[tuple[int, Cut]] = []
    before = cache.positions[..., :BUDGET].clone()

    def note(row: int, decided: Cut) -> None:
        seen.append((row, decided))

    cutter = Cutter(policy, cache, BUDGET, WINDOW, on_cut=note, scores_bytes=at_once)
    assert cutter.prepare() == []
    assert cutter.cut(subjects).tolist() == [LAYERS] * 3
    assert [(row, decided.text_tokens) for row, decided in seen] == [(s.row, s.text_tokens) for s in subjects]
    scores = torch.cat(given).view(3, LAYERS, HEADS, BUDGET)
    for (row, decided), own in zip(seen, scores, strict=True):
        assert torch.equal(decided.positions, before[:, row]) and decided.positions.dtype == torch.int32
        assert torch.equal(decided.scores, own)
        check_kept(decided, cache.positions[:, row, :, : BUDGET - WINDOW], 5 if protect_prompt else 0)


@pytest.mark.parametrize("tokens", [BUDGET + 1, 31])
def test_a_prompts_cut_is_looked_at_once_for_all_layers(tokens: int):
    policy = plugins.load("eviction", "snapkv-sample")()
    cache = make_cache(policy)
    seen: list[tuple[int, Cut]] = []
    cutter = Cutter(policy, cache, BUDGET, WINDOW, on_cut=lambda row, decided: seen.append((row, decided)))
    abandoned, text = (ListText(policy, 2, tokens, key) for key in (5, 6))
    for prompt, layers in ((abandoned, LAYERS - 1), (text, LAYERS)):
        cache.reset(torch.tensor([2]))
        prefill = PrefillStep(cache, Echo(), cutter, [prompt.subject()], PromptPack([tokens], CPU))
        for layer in range(layers):
            assert not seen
            states = (part[layer, None, :tokens] for part in (prompt.queries, prompt.keys, prompt.values))
            prefill.attend(layer, *states, 1.0)
    ((row, decided),) = seen
    assert (row, decided.text_tokens) == (2, tokens)
    assert torch.equal(
        decided.positions, torch.arange(tokens - WINDOW, dtype=torch.int32).expand(LAYERS, HEADS, tokens - WINDOW)
    )
    held = torch.tensor(text.held, dtype=torch.int32)
    check_kept(decided, held[..., : BUDGET - WINDOW], 0)


def check_kept(decided: Cut, held: torch.Tensor, prompt: int) -> None:
    """What a cut keeps is what each head holds then, (L, H, K) positions: its prompt, and the best of the rest."""
    assert decided.kept.dtype == torch.bool and decided.scores.dtype == torch.float32
    for layer in range(LAYERS):
        for head in range(HEADS):
            positions, scores = decided.positions[layer, head].tolist(), decided.scores[layer, head].tolist()
            kept = [position for position, stays in zip(positions, decided.kept[layer, head], strict=True) if stays]
            assert kept == held[layer, head].tolist()
            order = sorted(range(len(positions)), key=lambda at: (positions[at] >= prompt, -scores[at], at))
            assert kept == sorted(positions[at] for at in order[: BUDGET - WINDOW])
