"""Make tiny models, engines and requests."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch

from vase_cli import plugins
from vase_cli.attention.base import AttentionBackend, LSEOut, RowPlaces
from vase_cli.attention.sdpa import SDPA
from vase_cli.config.schema import ModelEntry, SamplingParams
from vase_cli.engine.engine import Engine
from vase_cli.engine.plan import EngineSettings
from vase_cli.engine.requests import Request
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.models.language_model import LanguageModel
from vase_cli.models.load import load
from vase_cli.models.tokenizer import load_tokenizer
from vase_cli.randomness import SequenceNoise, stream_key

CPU = torch.device("cpu")


FAMILIES = ["qwen3", "qwen2", "llama"]


METHODS = plugins.names("eviction")


EVICTING = [name for name in METHODS if plugins.load("eviction", name).evicts]


LENGTHS = [3, 30, 11, 1, 58, 20, 7, 45, 16]


def load_model(folder: Path) -> LanguageModel:
    entry = ModelEntry("tiny", path=folder)
    return load(entry, load_tokenizer(entry), None, CPU)


def make_requests(vocabulary: int = 90) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS]
    return [Request(f"task/{index}/0", tuple(prompt), f"task/{index}") for index, prompt in enumerate(prompts)]


class RowsOfAnyLength(SDPA):
    """Rows of different lengths, each moved for itself into one of the longest."""

    supports_row_starts = True

    def decode(
        self, queries: torch.Tensor, cached_keys: torch.Tensor, cached_values: torch.Tensor, seq_lens: torch.Tensor,
        longest: int | None, scale: float, lse_out: LSEOut | None = None, row_places: RowPlaces | None = None,
    ) -> torch.Tensor:  # fmt: skip
        states = [cached_keys, cached_values]
        if row_places is not None:
            lengths = row_places.starts.diff().tolist()
            states = [
                torch.stack([
                    torch.cat([row, row.new_zeros(row_places.longest - len(row), *row.shape[1:])])
                    for row in flat.split(lengths)
                ])
                for flat in states
            ]  # fmt: skip
        return super().decode(queries, *states, seq_lens, longest, scale)


def make_engine(
    model: LanguageModel,
    method: str | EvictionPolicy = "full",
    *,
    backend: AttentionBackend | None = None,
    **changes: object,
) -> Engine:
    """An engine of four slots; ``changes`` are settings, or options of the engine."""
    policy = plugins.load("eviction", method)() if isinstance(method, str) else method
    values: dict[str, object] = {
        "budget": 16 if policy.evicts else None,
        "window": 4,
        "max_num_seqs": 4,
        "sampling": SamplingParams(),
        "seed": 0,
        "max_new_tokens": 40,
        "max_total_tokens": 200,
    }
    options = {name: changes.pop(name) for name in ("timed", "record_cuts", "run_ahead", "ops") if name in changes}
    settings = EngineSettings(**(values | changes))
    return Engine(model, policy, backend or plugins.load("attention", "sdpa")(), settings, **options)


def token_ids(engine: Engine, requests: Sequence[Request]) -> dict[str, tuple[int, ...]]:
    completions = list(engine.generate(requests))
    assert [completion.error for completion in completions] == [None] * len(requests)
    assert len({completion.request.id for completion in completions}) == len(requests)
    return {completion.request.id: completion.token_ids for completion in completions}


class ListCache:
    """A cache of plain lists, cut by the same policy: what a row holds, head by head, in text order.

    It shares no code with the static cache: no slots, no ring, no compaction, no padding.
    """

    def __init__(self, policy: EvictionPolicy, budget: int, window: int, request: Request, layers: int) -> None:
        self.policy, self.budget, self.window, self.request = policy, budget, window, request
        self.rows: list[SimpleNamespace] = [SimpleNamespace(q=[], k=[], v=[], held=None) for _ in range(layers)]
        self.cuts = 0

    def attend(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
        row = self.rows[layer]
        before = len(row.k)
        row.q += list(queries[0])
        row.k += list(keys[0])
        row.v += list(values[0])
        heads, group = keys.shape[2], queries.shape[2] // keys.shape[2]
        if row.held is None:
            row.held = [[] for _ in range(heads)]
        out = torch.zeros_like(queries)
        for offset in range(queries.shape[1]):
            position = before + offset
            for head in range(heads):
                row.held[head].append(position)
                states = torch.stack([row.k[held][head] for held in row.held[head]])
                content = torch.stack([row.v[held][head] for held in row.held[head]])
                for member in range(head * group, (head + 1) * group):
                    weights = torch.softmax(states @ queries[0, offset, member] * scale, dim=0)
                    out[0, offset, member] = weights @ content
        if len(row.held[0]) > self.budget if before == 0 else len(row.held[0]) == self.budget + self.window:
            self.cut(layer)
        return out

    def cut(self, layer: int) -> None:
        row = self.rows[layer]
        keys, values = (
            torch.stack([torch.stack([part[p][head] for p in held]) for head, held in enumerate(row.held)], dim=1)[None]
            for part in (row.k, row.v)
        )
        view = CacheView(
            keys=keys,
            values=values,
            positions=torch.tensor(row.held, dtype=torch.int32)[None],
            queries=torch.stack(row.q[-self.window :])[None],
            prompt_lens=torch.tensor([len(self.request.prompt_token_ids)]),
            seq_lens=torch.tensor([len(row.k)]),
            budget=self.budget,
            window=self.window,
            noise=SequenceNoise(
                torch.tensor([stream_key(0, self.request.problem_id, self.request.sample, "eviction")]),
                torch.tensor([layer]),
            ),
        )
        kept, _ = self.policy.select(view)
        row.held = [[held[number] for number in kept[0, head].tolist()] for head, held in enumerate(row.held)]
        self.cuts += layer == 0


@torch.inference_mode()
def generate_with_lists(
    model: LanguageModel,
    policy: EvictionPolicy,
    budget: int,
    window: int,
    request: Request,
    new_tokens: int,
    *,
    penalty: float = 1.0,
) -> tuple[tuple[int, ...], int, list[list[list[int]]]]:
    """Greedy token ids, cuts, and the positions that each head of each layer holds at the end.

    ``penalty`` is on tokens that are in prompt or text already.
    """
    cache = ListCache(policy, budget, window, request, model.facts.shape.layers)
    fed, made = list(request.prompt_token_ids), []
    start = 0
    while len(made) < new_tokens:
        positions = torch.arange(start, start + len(fed))[None]
        logits = model.forward(torch.tensor([fed]), positions, cache)
        start += len(fed)
        if penalty != 1.0:
            for token in {*request.prompt_token_ids, *made}:
                logits[0, token] *= 1 / penalty if logits[0, token] > 0 else penalty
        fed = [int(logits[0].argmax())]
        made += fed
        if fed[0] in model.eos_token_ids:
            break
    return tuple(made), cache.cuts, [row.held for row in cache.rows]
