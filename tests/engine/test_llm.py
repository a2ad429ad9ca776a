"""The Python API: what it generates is what the engine and ``vase run`` do, and what it shows is what the cache did."""

import json
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from helpers.cli_examples import open_shell
from helpers.engines import EVICTING, RowsOfAnyLength, generate_with_lists, load_model
from torch import Tensor

import vase_cli
from vase_cli import LLM, NewText, Output, SamplingParams, plugins
from vase_cli.engine.decoding import DecodeLoop
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.requests import Request
from vase_cli.errors import ConfigError, ModelError, VaseError
from vase_cli.eviction.base import CacheView, EvictionPolicy
from vase_cli.models.tokenizer import TextStream

REPOSITORY = Path(__file__).parents[2]
PROMPTS = ["1+1?", "a longer one, with some more letters", "c"]
SETTINGS: dict[str, Any] = {
    "budget": 16, "window": 4, "max_new_tokens": 40, "temperature": 0.0, "device": "cpu", "slots": 2,
}  # fmt: skip


@pytest.fixture
def folder(model_folder: Callable[..., Path]) -> Path:
    return model_folder("qwen3")


def an_llm(folder: Path, **changes: Any) -> LLM:
    return LLM(folder, **({"method": "streaming"} | SETTINGS | changes))


@pytest.mark.parametrize(("document", "heading"), [("docs/api.md", ""), ("README.md", "## From Python\n")])
def test_the_examples_of_the_documents_run(
    document: str, heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (REPOSITORY / document).read_text(encoding="utf-8").partition(heading)[2] if heading else ""
    text = section.partition("\n## ")[0] or (REPOSITORY / document).read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    script = tmp_path / "study.py"
    script.write_text("\n".join(examples), encoding="utf-8")
    subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert examples


def test_the_texts_are_those_of_vase_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = LLM(folder, **SETTINGS | {"temperature": 1.0, "method": "vase-attnv"}).generate(PROMPTS)
    vase = open_shell(tmp_path, monkeypatch, capsys)
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    options = {"budget": 16, "window": 4, "max-new-tokens": 40, "temperature": 1, "device": "cpu", "slots": 2}
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    records = map(json.loads, vase("run", "--input", "prompts.txt", "--model", folder, "--json", *arguments).lines())
    by_id = {record["id"]: record for record in records}
    assert [output.text for output in outputs] == [by_id[f"prompts/{index}/0"]["text"] for index in range(3)]
    assert [output.cuts for output in outputs] == [by_id[f"prompts/{index}/0"]["cuts"] for index in range(3)]
    assert len({output.text for output in outputs}) == 3 and max(output.cuts for output in outputs) > 0


@pytest.mark.parametrize("method", EVICTING)
def test_positions_are_those_of_a_cache_of_plain_lists(method: str, folder: Path) -> None:
    llm = an_llm(folder, method=method)
    policy, model = plugins.load("eviction", method)(), load_model(folder)
    for output in llm.generate(PROMPTS, positions=True):
        prompt = llm.encode(PROMPTS[output.index]).token_ids
        request = Request("", prompt, f"prompts/{output.index}")
        token_ids, _, held = generate_with_lists(model, policy, 16, 4, request, 40)
        assert output.token_ids == token_ids
        assert output.positions is not None and output.positions.tolist() == held
    assert llm.generate(PROMPTS[0])[0].positions is None


@pytest.mark.parametrize("method", [*EVICTING, "vase-attnv protected"])
def test_every_cut_is_there_with_its_scores_and_what_stayed(method: str, folder: Path) -> None:
    name, _, protected = method.partition(" ")
    llm = an_llm(folder, method=name, method_options={"protect_prompt": True} if protected else {})
    outputs = llm.generate(PROMPTS, positions=True, cut_records=True)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in llm.generate(PROMPTS)]
    for output in outputs:
        assert len(output.cut_records) == output.cuts
        held: Tensor | None = None
        seen = 0  # tokens of text at the cut before
        for cut in output.cut_records:
            heads = (llm.plan.facts.shape.layers, llm.plan.facts.shape.kv_heads)
            candidates = cut.positions.shape[-1]
            assert cut.positions.shape == cut.scores.shape == cut.kept.shape == (*heads, candidates)
            assert (cut.kept.sum(dim=-1) == 12).all() and (cut.positions[..., -1] == cut.text_tokens - 5).all()
            if held is None:
                expected = torch.arange(candidates).expand(*heads, candidates)
            else:  # what stayed of the cut before, and everything since
                since = torch.arange(seen - 4, cut.text_tokens - 4).expand(*heads, -1)
                expected = torch.cat((held, since), dim=-1)
            assert torch.equal(cut.positions.long(), expected)
            held, seen = cut.positions[cut.kept].view(*heads, 12).long(), cut.text_tokens
            free = ~cut.kept
            in_prompt = cut.positions < output.prompt_tokens
            if protected:
                assert (in_prompt & free).any(dim=-1).le((in_prompt & cut.kept).sum(dim=-1) == 12).all()
            else:
                worst_kept = cut.scores.masked_fill(free, torch.inf).amin(dim=-1)
                best_gone = cut.scores.masked_fill(cut.kept, -torch.inf).amax(dim=-1)
                assert (worst_kept >= best_gone).all()
        if held is not None:
            assert output.positions is not None and torch.equal(output.positions[..., :12].long(), held)
    assert max(output.cuts for output in outputs) > 3


def test_a_prompt_is_a_text_a_chat_or_token_ids(folder: Path) -> None:
    llm = an_llm(folder)
    chat = [{"role": "user", "content": PROMPTS[0]}]
    ids = list(llm.encode(PROMPTS[0]).token_ids)
    same = llm.generate([PROMPTS[0], chat, ids, llm.tokenizer.decode([])])[:3]
    assert len({output.token_ids for output in same}) == 1 and {output.prompt_tokens for output in same} == {len(ids)}
    for alone in (PROMPTS[0], chat, chat[0], ids):
        (output,) = llm.generate(alone)
        assert output.token_ids == same[0].token_ids
    (system,) = llm.generate([{"role": "system", "content": "be brief"}, *chat], max_new_tokens=1)
    (raw,) = llm.generate(PROMPTS[0], raw=True, max_new_tokens=1)
    assert raw.prompt_tokens < len(ids) < system.prompt_tokens
    assert llm.generate([]) == []


def test_samples_of_a_prompt_are_together_and_a_call_repeats_itself(folder: Path) -> None:
    llm = an_llm(folder, temperature=1.0)
    outputs = llm.generate(PROMPTS, samples=2)
    assert [(output.index, output.sample) for output in outputs] == [(i, s) for i in range(3) for s in range(2)]
    texts = [output.text for output in outputs]
    assert len(set(texts)) == 6
    greedy = [output.text for output in llm.generate(PROMPTS, SamplingParams(), samples=2)]
    assert greedy[::2] == greedy[1::2]
    assert [output.text for output in llm.generate(PROMPTS, samples=2)] == texts
    assert [output.text for output in an_llm(folder, temperature=1.0, seed=1).generate(PROMPTS, samples=2)] != texts


def test_pieces_of_a_stream_are_its_text(folder: Path) -> None:
    llm = an_llm(folder, temperature=1.0)
    pieces: dict[int, str] = dict.fromkeys(range(3), "")
    ended = []
    for event in llm.stream(PROMPTS):
        assert event.index not in ended
        if isinstance(event, NewText):
            pieces[event.index] += event.text
        else:
            ended.append(event.index)
            assert pieces[event.index] == event.text
    assert sorted(ended) == [0, 1, 2]
    half_read = llm.stream(PROMPTS)
    assert isinstance(next(half_read), NewText)
    assert list(pieces.values()) == [output.text for output in llm.generate(PROMPTS)]
    assert list(half_read) == []


def test_an_engine_serves_calls_of_the_same_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], EngineFactory.engine

    def counted(self: EngineFactory, *arguments: Any, **settings: Any) -> Any:
        made.append(settings)
        return make(self, *arguments, **settings)

    monkeypatch.setattr(EngineFactory, "engine", counted)
    llm = an_llm(folder)
    for new_tokens in (40, 50):
        for prompts in (PROMPTS, ["d", "e", "f" * 30]):
            llm.generate(prompts, max_new_tokens=new_tokens)
    assert len(made) == 1
    llm.generate(PROMPTS, SamplingParams(temperature=0.5))
    llm.generate(PROMPTS, positions=True)
    assert len(made) == 3


@dataclass(frozen=True, kw_only=True)
class Later(EvictionPolicy):
    """The last positions stay."""

    def keep_scores(self, view: CacheView) -> Tensor:
        return view.candidate_positions.float()


def test_a_method_of_ones_own_goes_where_a_name_goes(folder: Path) -> None:
    own = an_llm(folder, method=Later())
    named = an_llm(folder, method="streaming", method_options={"sinks": 0})
    assert own.plan.method == "Later"
    assert [output.token_ids for output in own.generate(PROMPTS)] == [
        output.token_ids for output in named.generate(PROMPTS)
    ]
    full = an_llm(folder, method="full", budget=None).generate(PROMPTS)
    assert all(output.cuts == 0 for output in full)


class Bare(Later):
    """Without a decorator of its own."""


@dataclass(frozen=True, kw_only=True)
class Doubles(EvictionPolicy):
    """Scores of another type."""

    def keep_scores(self, view: CacheView) -> Tensor:
        return view.candidate_positions.double()


@dataclass(frozen=True, kw_only=True)
class NeedsThresholds(Later):
    """Reads thresholds, and has no option to go without."""

    @property
    def reads_thresholds(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": Bare()}, r"method Bare: write @dataclass\(frozen=True, kw_only=True\) above the class"),
        ({"method": Doubles()}, r"method Doubles: its scores are .* torch.float64, and must be .* torch.float32"),
        ({"method": NeedsThresholds()}, "method NeedsThresholds needs thresholds"),
        ({"method": Later(), "method_options": {"sinks": 1}}, "method_options: the method is an instance"),
    ],
)
def test_a_method_that_cannot_work_is_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(VaseError, match=message):
        an_llm(folder, **changes).generate(PROMPTS)


@pytest.mark.parametrize(
    "prompts",
    [
        None, 7, b"bytes", [{"role": "user"}], [{"role": "user", "content": None}],
        ["a", 1], [1, "a"], [PROMPTS[0], None], [1.5], [3, 4, 10**6], [-3, 4], [2**70],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_prompt_is_refused_in_one_line(prompts: Any, folder: Path) -> None:
    llm = an_llm(folder)
    for call in (llm.generate, llm.stream):
        with pytest.raises(ConfigError, match="prompt") as refusal:
            call(prompts)
        assert "\n" not in str(refusal.value)


def test_token_ids_and_prompts_come_in_any_iterable(folder: Path) -> None:
    llm = an_llm(folder)
    ids = list(llm.encode(PROMPTS[0]).token_ids)
    expected = [output.token_ids for output in llm.generate(PROMPTS)]
    for same in (torch.tensor(ids), numpy.array(ids), tuple(ids)):
        assert [output.token_ids for output in llm.generate(same)] == expected[:1]
    assert [output.token_ids for output in llm.generate(iter(PROMPTS))] == expected


def test_an_engine_that_serves_another_call_cuts_no_text_short(folder: Path) -> None:
    calls = [([5] * 21, 20), ([6] * 11, 30), ([7] * 31, 10)]  # as long together
    for changes in ({"method": "full", "budget": None}, {"budget": 500, "max_total_tokens": 400}):
        llm = an_llm(folder, **changes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for prompt, new_tokens in calls:
                fresh = an_llm(folder, **changes).generate(prompt, max_new_tokens=new_tokens)
                assert llm.generate(prompt, max_new_tokens=new_tokens)[0].token_ids == fresh[0].token_ids


def test_rows_by_need_serve_the_same_texts_again_and_make_way_for_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, make = [], EngineFactory.engine

    def watched(self: EngineFactory, *arguments: Any, **settings: Any) -> Any:
        engines.append(make(self, *arguments, **settings))
        return engines[-1]

    def texts(llm: LLM, prompts: list[Any], new_tokens: int) -> list[str]:
        return [output.text for output in llm.generate(prompts, max_new_tokens=new_tokens)]

    calls = [
        (["1", "2 + 3", "4"], 9),
        (["5", "2 + 7", "3"], 9),
        (["1", "2 + 3 + 4", "4"], 5),
        (["5 + 3 + 1", "5", "4"], 5),
    ]
    expected = [texts(an_llm(folder, method="full", budget=None, slots=3), *call) for call in calls]
    monkeypatch.setattr("vase_cli.engine.plan._choose_backend", lambda *arguments: RowsOfAnyLength())
    monkeypatch.setattr(EngineFactory, "engine", watched)
    llm = an_llm(folder, method="full", budget=None, slots=3)
    assert [texts(llm, *call) for call in calls] == expected
    rows = [engine.cache.shape.row_tokens for engine in engines]
    assert rows == [(17, 13, 13), (17, 9, 9)]


def out_of_memory_at(monkeypatch: pytest.MonkeyPatch, steps: Sequence[int]) -> None:
    step, calls = DecodeLoop.step, iter(range(10**6))

    def fail(self: DecodeLoop, longest: int) -> None:
        if next(calls) in steps:
            raise torch.OutOfMemoryError("no more")
        step(self, longest)

    monkeypatch.setattr(DecodeLoop, "step", fail)


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_text_that_starts_again_is_told_and_recorded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = an_llm(folder, temperature=1.0)
    expected = llm.generate(PROMPTS, cut_records=True)
    with monkeypatch.context() as patch:
        out_of_memory_at(patch, [25])
        again = an_llm(folder, temperature=1.0).generate(PROMPTS, cut_records=True)
    assert [output.token_ids for output in again] == [output.token_ids for output in expected]
    assert [len(output.cut_records) for output in again] == [output.cuts for output in expected]
    with monkeypatch.context() as patch:
        out_of_memory_at(patch, [25])
        pieces: dict[int, str] = dict.fromkeys(range(3), "")
        for event in an_llm(folder, temperature=1.0).stream(PROMPTS):
            if isinstance(event, NewText):
                pieces[event.index] += event.text
    assert list(pieces.values()) == [output.text for output in expected]


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_call_that_failed_or_was_interrupted_leaves_the_next_one_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = an_llm(folder)
    expected = llm.generate(PROMPTS, cut_records=True)
    with monkeypatch.context() as patch:
        out_of_memory_at(patch, range(10**6))
        with pytest.raises(ModelError, match="out of memory with one slot"):
            llm.generate(PROMPTS, cut_records=True)
    with monkeypatch.context() as patch:
        patch.setattr(TextStream, "add", lambda self, token_id: "")
        patch.setattr(DecodeLoop, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, cut_records=True)
    again = llm.generate(PROMPTS, cut_records=True)
    assert [output.token_ids for output in again] == [output.token_ids for output in expected]
    assert [len(output.cut_records) for output in again] == [output.cuts for output in again]
    again[0].cut_records[0].scores[:] = 0.0  # as any other tensor


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_the_memory_of_a_call_is_given_back(folder: Path) -> None:
    llm = an_llm(folder)
    made: list[weakref.ref[Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        make = EngineFactory.engine

        def watched(self: EngineFactory, *arguments: Any, **settings: Any) -> Any:
            engine = make(self, *arguments, **settings)
            made.append(weakref.ref(engine.cache))
            return engine

        patch.setattr(EngineFactory, "engine", watched)
        llm.generate(PROMPTS)
    assert made[0]() is not None
    llm.release()
    assert made[0]() is None
    assert len(llm.generate(PROMPTS)) == 3


def test_the_recipe_says_what_a_call_leaves_out(folder: Path) -> None:
    llm = an_llm(folder, samples=2, sampling=SamplingParams(temperature=1.0), temperature=None)
    outputs = llm.generate(PROMPTS[0])
    assert [output.sample for output in outputs] == [0, 1] and outputs[0].text != outputs[1].text


def test_a_text_that_fails_is_an_error_and_the_others_go_on(folder: Path) -> None:
    llm = an_llm(folder, max_total_tokens=60)
    good, bad = llm.generate(["1+1?", "x" * 100])
    assert good.finish_reason in ("stop", "length") and good.text
    assert bad.finish_reason == "error" and bad.error is not None and "raise --max-total-tokens" in bad.error
    assert isinstance(bad, Output) and bad.token_ids == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "tiny-reasonr"}, "did you mean 'tiny-reasoner'"),
        ({}, "no recipe and no model"),
        ({"model": "tiny-reasoner", "method": "snapkw"}, "snapkv"),
        ({"model": "tiny-reasoner", "windw": 3}, "window"),
        ({"model": "tiny-reasoner", "method": "snapkv", "budget": 32, "window": 32}, "window"),
        ({"model": "tiny-reasoner", "budget": 99, "call": {"max_new_tokens": 0}}, "--max-new-tokens"),
        ({"model": "tiny-reasoner", "budget": 99, "call": {"samples": 0}}, "--samples"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    call = arguments.pop("call", {})
    with pytest.raises(VaseError, match=message) as refusal:
        LLM(**arguments).generate("1+1?", **call)
    assert "\n" not in str(refusal.value)


def test_a_budget_that_never_cuts_is_a_warning(folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"budget 100: the limit is 60 tokens, so nothing will ever be evicted"):
        an_llm(folder, budget=100, max_total_tokens=60).generate(PROMPTS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        an_llm(folder).generate(PROMPTS[0])


def test_the_package_alone_loads_no_torch_and_knows_its_names() -> None:
    code = "import sys, vase_cli; assert 'torch' not in sys.modules; vase_cli.SamplingParams; print(vase_cli.LLM)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "vase_cli.engine.llm.LLM" in done.stdout
    with pytest.raises(AttributeError, match="has no attribute 'LLMS'"):
        getattr(vase_cli, "LLMS")  # noqa: B009
