"""Calibration against transformers' own values, against a run without it, and against itself after a kill."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli_examples import only_run, poisoned, problem_rows, read_jsonl, write_rows
from helpers.memory import held_bytes
from torch import Tensor

from vase_cli.calibration.calibrate import Calibration, calibrate
from vase_cli.calibration.folder import CalibrationState, Text, read_calibration
from vase_cli.calibration.value_statistics import EXAMPLE_TOKENS, LEVELS, METRICS, ValueStatistics, statistics_of
from vase_cli.config.schema import ModelEntry, Recipe, SamplingParams
from vase_cli.config.threshold_facts import parse_rule
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import plan_run
from vase_cli.errors import ConfigError, DataError, ModelError, RunError
from vase_cli.evaluation.evaluate import EvalTask, Job, prepare
from vase_cli.runs.folder import lock_folder
from vase_cli.tasks.base import resolve_tasks

PROBLEMS = 7
RULE = parse_rule("quantile:0.9")


class Watcher:
    """A progress that does nothing, or stops the run after so many texts."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.started: list[tuple[int, int]] = []
        self.finished = 0
        self._stop_after = stop_after

    def note(self, line: str) -> None:
        self.notes.append(line)

    def start(self, task: str, finished: int, planned: int) -> None:
        self.started.append((finished, planned))

    def tokens(self, tokens: Sequence[object]) -> None:
        pass

    def sample(self, record: Mapping[str, Any]) -> None:
        self.finished += 1
        if self.finished == self._stop_after:
            raise KeyboardInterrupt


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "mine.jsonl", problem_rows(PROBLEMS))


def a_factory(folder: Path, **changes: Any) -> EngineFactory:
    values: dict[str, Any] = {
        "method": "full", "seed": 3, "slots": 3, "max_new_tokens": 30, "device": "cpu", "limit": PROBLEMS,
        "sampling": SamplingParams(temperature=1.0),
    }  # fmt: skip
    return EngineFactory(plan_run(Recipe("mine", str(folder), **(values | changes)), ModelEntry("tiny", path=folder)))


def the_task(factory: EngineFactory, problems: Path) -> EvalTask:
    (task,) = prepare(factory.plan, resolve_tasks([str(problems)], "number"))
    return task


def calibrated(
    folder: Path,
    problems: Path,
    root: Path,
    *,
    rule: str = "quantile:0.9",
    watcher: Watcher | None = None,
    **changes: Any,
) -> Calibration:
    factory = a_factory(folder, **changes)
    return calibrate(
        factory, the_task(factory, problems), root=root, rule=parse_rule(rule), command=["vase"],
        progress=watcher or Watcher(),
    )  # fmt: skip


def told(calibration: Calibration) -> dict[str, Any]:
    """The facts, as they are read back, without the moment."""
    facts, tensors, validation = read_calibration(calibration.path)
    assert validation is None
    assert tensors.keys() == calibration.tensors.keys()
    assert all(torch.equal(tensors[name], calibration.tensors[name]) for name in tensors)
    return {key: value for key, value in facts.items() if key != "date"}


def same(one: Calibration, other: Calibration) -> None:
    """Equal to the last bit, dates aside: with one slot, as rounding may differ from row to row of a batch."""
    assert told(one) == told(other)
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert (one.path / "texts.jsonl").read_bytes() == (other.path / "texts.jsonl").read_bytes()


def true_ranges(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """(L, T, H) value ranges of a text by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    heads = model.config.num_key_value_heads
    seen: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, out: seen.append(out[0].unflatten(-1, (heads, -1))))
    with torch.no_grad():
        model(torch.tensor([token_ids]))
    values = torch.stack(seen)
    return values.amax(dim=-1) - values.amin(dim=-1)


def test_statistics_are_what_their_names_say():
    values = torch.tensor([[[[1.0, -2.0, 4.0, 1.0]]]], dtype=torch.bfloat16)
    assert METRICS == ("range", "norm", "variance")
    expected = [6.0, math.sqrt(22.0), 4.5]
    assert statistics_of(values).flatten().tolist() == pytest.approx(expected)


def test_the_figures_are_those_of_transformers_values(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path
):
    folder = model_folder("qwen3")
    found = calibrated(folder, problems, tmp_path / "out")
    texts = read_jsonl(found.path / "texts.jsonl")
    assert [text["index"] for text in texts] == list(range(PROBLEMS))
    first, prompt, completion, everything = [], [], [], []
    for text in texts:
        ids = [*text["prompt_token_ids"], *text["token_ids"]]
        ranges = true_ranges(folder, ids[:-1])
        start = len(text["prompt_token_ids"])
        first.append(ranges[:, :8])
        prompt.append(ranges[:, 8:start])
        completion.append(ranges[:, max(8, start) :])
        everything.append(ranges)
    segments = {"first": first, "prompt": prompt, "completion": completion, "rest": prompt + completion}
    for name, parts in segments.items():
        exact = torch.cat(parts, dim=1).sort(dim=1).values
        assert found.facts["counts"][name] == exact.shape[1] > 0
        torch.testing.assert_close(found.tensors[f"max.{name}"][0], exact[:, -1], rtol=1e-4, atol=1e-4)
        middle = exact[:, math.ceil(exact.shape[1] / 2) - 1]
        at = LEVELS.index(0.5)
        torch.testing.assert_close(found.tensors[f"quantiles.{name}"][0, :, :, at], middle, rtol=1e-4, atol=1e-4)
    ninety = torch.cat(prompt + completion, dim=1).sort(dim=1).values
    ninety = ninety[:, math.ceil(0.9 * ninety.shape[1]) - 1]
    torch.testing.assert_close(found.tensors["thresholds"], ninety, rtol=1e-4, atol=1e-4)
    mean_first = torch.stack([ranges[:, :8] for ranges in everything]).mean(dim=0).transpose(1, 2)
    torch.testing.assert_close(found.tensors["first.mean_range"], mean_first, rtol=1e-4, atol=1e-4)
    assert found.facts["tokens"] == sum(ranges.shape[1] for ranges in everything)
    for layer, head, rank in ((0, 0, 0), (1, 1, 7)):
        number, position = (int(found.tensors[f"top.{key}"][layer, head, rank]) for key in ("text", "position"))
        exact = torch.cat(everything, dim=1)[layer, :, head].sort(descending=True).values[rank]
        assert float(found.tensors["top.range"][layer, head, rank]) == pytest.approx(float(exact), rel=1e-4)
        assert float(everything[number][layer, position, head]) == pytest.approx(float(exact), rel=1e-4)


def test_outliers_lengths_and_the_example_are_those_of_the_texts(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path
):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    texts = {text["problem_id"]: text for text in read_jsonl(found.path / "texts.jsonl")}
    ids = {name: [*text["prompt_token_ids"], *text["token_ids"]] for name, text in texts.items()}
    measured = [token for tokens in ids.values() for token in tokens[:-1]]
    ratios = [outlier["ratio"] for outlier in found.facts["outliers"]]
    assert ratios == sorted(ratios, reverse=True)
    assert len(ratios) == 2 * 2 * 8
    for outlier in found.facts["outliers"]:
        tokens, start = ids[outlier["problem"]], len(texts[outlier["problem"]]["prompt_token_ids"])
        assert tokens[outlier["position"]] == outlier["token_id"]
        assert outlier["text_tokens"] == len(tokens)
        assert outlier["place"] == outlier["position"] / len(tokens)
        assert outlier["share"] == measured.count(outlier["token_id"]) / len(measured)
        assert outlier["segment"] == (
            "first" if outlier["position"] < 8 else "prompt" if outlier["position"] < start else "completion"
        )
    assert sum(token["entries"] for token in found.facts["outlier_tokens"]) == 32
    lengths = sorted(map(len, ids.values()))
    spread = found.facts["lengths"]["mine"]
    assert (spread["texts"], spread["min"], spread["max"]) == (PROBLEMS, lengths[0], lengths[-1])
    assert spread["mean"] == pytest.approx(sum(lengths) / PROBLEMS) and spread["sd"] > 0
    example = found.facts["example"]
    ended = [text["problem_id"] for text in texts.values() if text["finish_reason"] == "stop"] or ["p0"]
    assert example["problem"] == ended[0]
    assert example["shown_tokens"] == len(example["tokens"]) == len(ids[example["problem"]]) - 1
    assert found.tensors["example.range"].shape == (len(example["heads"]), example["shown_tokens"])
    layer, head = example["heads"][0]
    assert example["thresholds"][0] == pytest.approx(float(found.tensors["thresholds"][layer, head]))


def test_tokens_are_the_same_as_without_calibration(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    folder = model_folder("qwen3")
    found = calibrated(folder, problems, tmp_path / "out")
    factory = a_factory(folder)
    job = Job(factory, the_task(factory, problems))
    engine = factory.engine(job.demand, max_num_seqs=3)
    expected = {text.request.id: list(text.token_ids) for text in engine.generate(job.missing(()))}
    assert {text["id"]: text["token_ids"] for text in read_jsonl(found.path / "texts.jsonl")} == expected
    assert len({len(tokens) for tokens in expected.values()}) > 1


def test_slots_and_their_order_do_not_matter(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    alone = calibrated(model_folder("qwen3"), problems, tmp_path / "one", slots=1)
    together = calibrated(model_folder("qwen3"), problems, tmp_path / "five", slots=5)
    assert alone.facts["counts"] == together.facts["counts"]
    for name in [name for name in alone.tensors if name not in ("top.text", "top.position")]:  # of near equals any
        torch.testing.assert_close(alone.tensors[name], together.tensors[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stop_after", [1, 4, PROBLEMS])
def test_an_interrupted_run_ends_with_the_same_figures(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path, stop_after: int
):
    folder = model_folder("qwen3")
    undisturbed = calibrated(folder, problems, tmp_path / "undisturbed", slots=1)
    with pytest.raises(KeyboardInterrupt):
        calibrated(folder, problems, tmp_path / "out", slots=1, watcher=Watcher(stop_after))
    again = Watcher()
    same(calibrated(folder, problems, tmp_path / "out", slots=1, watcher=again), undisturbed)
    assert again.finished == PROBLEMS - again.started[0][0] < PROBLEMS


@pytest.mark.parametrize("saved", [0, 2])
def test_what_a_kill_leaves_behind_is_measured_once(
    model_folder: Callable[..., Path],
    problems: Path,
    tmp_path: Path,
    saved: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """Texts that no state counts yet, and a line that was cut: what a power failure or SIGKILL leaves."""
    folder = model_folder("qwen3")
    undisturbed = calibrated(folder, problems, tmp_path / "undisturbed", slots=1)
    with monkeypatch.context() as patch:
        append, save = CalibrationState.append, CalibrationState.save

        def append_and_save(state: CalibrationState, text: Text) -> None:
            append(state, text)
            if len(state.finished) <= saved:
                save(state)

        patch.setattr(CalibrationState, "append", append_and_save)
        patch.setattr(CalibrationState, "save", lambda state: None)
        with pytest.raises(KeyboardInterrupt):
            calibrated(folder, problems, tmp_path / "out", slots=1, watcher=Watcher(5))
    with (only_run(tmp_path / "out") / "texts.jsonl").open("ab") as file:
        file.write(b'{"index": 6, "id": "mi')
    assert len((only_run(tmp_path / "out") / "texts.jsonl").read_bytes().splitlines()) > 5
    again = Watcher()
    same(calibrated(folder, problems, tmp_path / "out", slots=1, watcher=again), undisturbed)
    ((done, _),) = again.started
    assert done == saved
    assert again.finished == PROBLEMS - done


def test_an_interrupted_measurement_is_not_counted(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = model_folder("qwen3")
    undisturbed = calibrated(folder, problems, tmp_path / "undisturbed", slots=1)
    calls = iter(range(1000))

    def interrupted(values: Tensor) -> Tensor:
        if next(calls) == 7:
            raise KeyboardInterrupt
        return statistics_of(values)

    with monkeypatch.context() as patch:
        patch.setattr("vase_cli.calibration.value_statistics.statistics_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrated(folder, problems, tmp_path / "out", slots=1)
    same(calibrated(folder, problems, tmp_path / "out", slots=1), undisturbed)


def test_another_rule_measures_nothing_anew(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    first = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    watcher = Watcher()
    second = calibrated(model_folder("qwen3"), problems, tmp_path / "out", rule="share:0.25", watcher=watcher)
    assert watcher.started == [(PROBLEMS, PROBLEMS)] and watcher.finished == 0
    assert second.path == first.path and second.facts["rule"] == "share:0.25"
    assert (second.tensors["thresholds"] < first.tensors["thresholds"]).all()
    assert (second.tensors["over"] <= 0.25).all() and (second.tensors["over"] > 0.2).all()
    assert torch.equal(second.tensors["quantiles.rest"], first.tensors["quantiles.rest"])


def test_texts_that_fail_are_counted_and_not_measured(model_folder: Callable[..., Path], tmp_path: Path):
    model = poisoned(model_folder("qwen3", tie_word_embeddings=False), tmp_path / "model", "~")
    rows = problem_rows(PROBLEMS)
    rows[2]["question"] = "What is ~?"
    watcher = Watcher()
    found = calibrated(model, write_rows(tmp_path / "mine.jsonl", rows), tmp_path / "out", watcher=watcher)
    assert (found.facts["failed"], found.facts["texts"]) == (1, PROBLEMS - 1)
    (line,) = [line for line in watcher.notes if line.startswith("warning")]
    assert line.startswith("warning: not measured: mine/p2/0: ") and "not finite" in line
    rows = [{**row, "question": "~"} for row in rows]
    with pytest.raises(RunError, match="every one of 7 texts failed; see the warnings"):
        calibrated(model, write_rows(tmp_path / "bad.jsonl", rows), tmp_path / "out")


def test_every_problem_is_one_text(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    assert calibrated(model_folder("qwen3"), problems, tmp_path / "out", samples=3).facts["texts"] == PROBLEMS


def test_a_method_that_evicts_is_refused(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="method random evicts: a model is measured with method full"):
        calibrated(model_folder("qwen3"), problems, tmp_path / "out", method="random", budget=16, window=4)


def damage(folder: Path, what: str) -> None:
    state, texts = folder / "state.safetensors", folder / "texts.jsonl"
    if what == "cut state":
        state.write_bytes(state.read_bytes()[:-100])
    elif what == "no state at all":
        state.write_bytes(b"")
    elif what == "cut texts":
        texts.write_bytes(texts.read_bytes()[:-50])
    elif what == "no texts":
        texts.unlink()
    elif what == "broken text":
        lines = texts.read_bytes().splitlines(keepends=True)
        texts.write_bytes(b"".join([b"{}\n", *lines[1:]]))
    elif what == "not JSON":
        lines = texts.read_bytes().splitlines(keepends=True)
        texts.write_bytes(b"".join([b"nonsense\n", *lines[1:]]))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("cut state", r"state\.safetensors: cut or not a safetensors file \(.*\); restore it"),
        ("no state at all", r"state\.safetensors: cut or not a safetensors file \(.*\); restore it"),
        ("cut texts", r"texts\.jsonl: 7 texts are measured and 6 are there; delete the folder"),
        ("no texts", r"texts\.jsonl: 7 texts are measured and 0 are there; delete the folder"),
        ("broken text", r"texts\.jsonl:1: missing: index, id, .*; delete the folder"),
        ("not JSON", r"texts\.jsonl:1: not a JSON object; delete the folder"),
    ],
)
def test_a_damaged_folder_is_one_line(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path, what: str, message: str
):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    damage(found.path, what)
    with pytest.raises(DataError, match=message) as caught:
        calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_link_in_place_of_the_texts_leads_nowhere(tmp_path: Path):
    state = CalibrationState(tmp_path, ValueStatistics(2, 2), "abc")
    key = tmp_path / "key"
    key.write_text("PRECIOUS")
    (tmp_path / "texts.jsonl").unlink()
    (tmp_path / "texts.jsonl").symlink_to(key)
    text = Text(index=0, id="a/0/0", problem_id="0", prompt_token_ids=[1], token_ids=[2], finish_reason="stop")
    with pytest.raises(RunError, match=r"texts\.jsonl: it is a symbolic link"):
        state.append(text)
    assert key.read_text() == "PRECIOUS"


def test_a_line_that_is_there_twice_counts_once(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    path = found.path / "texts.jsonl"
    before = told(found)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[2] + path.read_bytes())
    assert told(calibrated(model_folder("qwen3"), problems, tmp_path / "out")) == before


def test_a_folder_in_use_is_left_alone(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    with lock_folder(found.path), pytest.raises(ConfigError, match="is in use by process"):
        calibrated(model_folder("qwen3"), problems, tmp_path / "out")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("calibration.json", "no calibration.json in it; name the folder of a finished calibration"),
        ("calibration.safetensors", r"calibration\.safetensors: no such file; restore it"),
    ],
)
def test_reading_a_folder_that_lacks_a_file(
    model_folder: Callable[..., Path], problems: Path, tmp_path: Path, what: str, message: str
):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    (found.path / what).unlink()
    with pytest.raises((ConfigError, DataError), match=message):
        read_calibration(found.path)


def test_reading_another_format(model_folder: Callable[..., Path], problems: Path, tmp_path: Path):
    found = calibrated(model_folder("qwen3"), problems, tmp_path / "out")
    path = found.path / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(DataError, match="has format 2; this version of vase reads format 1"):
        read_calibration(found.path)
    path.write_text("{")
    with pytest.raises(DataError, match="not valid JSON; restore it, or calibrate again"):
        read_calibration(found.path)


def a_text(tokens: int, seed: int, *, layers: int = 2, heads: int = 3, head_dim: int = 4) -> Tensor:
    return torch.randn((layers, tokens, heads, head_dim), generator=torch.Generator().manual_seed(seed))


def test_the_order_of_texts_and_a_restart_do_not_matter(tmp_path: Path):
    texts = [(number, 40 + 211 * number, 5 + 9 * number) for number in range(6)]

    def measured(order: Sequence[int], *, restart: int | None = None) -> dict[str, Tensor]:
        statistics = ValueStatistics(2, 3, size=500)
        for step, number in enumerate(order):
            if step == restart:
                state = statistics.state()
                statistics = ValueStatistics(2, 3, size=500)
                statistics.restore(tmp_path, state)
            _, tokens, prompt = texts[number]
            statistics.add(number, 100 + number, prompt, a_text(tokens, number), whole=number > 1)
        return statistics.state()

    expected = measured(range(6))
    for other in (measured([5, 1, 3, 0, 2, 4]), measured([2, 0, 1, 5, 4, 3], restart=3)):
        assert other.keys() == expected.keys()
        assert all(torch.equal(other[name], expected[name]) for name in expected)
    assert expected["example_rank"].tolist() == [0, 2]  # the first text that came to its end


@pytest.mark.parametrize(
    ("tokens", "prompt", "counts"),
    [(5, 3, (5, 0, 0)), (8, 3, (8, 0, 0)), (20, 3, (8, 0, 12)), (20, 8, (8, 0, 12)), (20, 13, (8, 5, 7))],
)
def test_every_token_is_of_one_segment(tokens: int, prompt: int, counts: tuple[int, int, int]):
    statistics = ValueStatistics(2, 3)
    statistics.add(0, 1, prompt, a_text(tokens, 0), whole=True)
    assert tuple(sample.count for sample in statistics.samples.values()) == counts
    assert statistics.rest().count == counts[1] + counts[2]


def test_equal_ranges_fall_to_the_earlier_token():
    statistics = ValueStatistics(1, 1)
    for number in (3, 1, 2):
        statistics.add(number, number, 2, torch.tensor([0.0, 1.0]).expand(1, 5, 1, 2), whole=True)
    ranges, texts, positions = statistics.largest()
    assert ranges.flatten().tolist() == [1.0] * 8
    assert texts.flatten().tolist() == [1] * 5 + [2] * 3
    assert positions.flatten().tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_memory_does_not_grow_with_the_text():
    sizes = []
    for tokens in (4_000, 40_000):
        statistics = ValueStatistics(2, 3, size=512)
        statistics.add(0, 7, 100, a_text(tokens, 0), whole=True)
        held_by_samples = sum(map(held_bytes, statistics.samples.values()))
        sizes.append(held_by_samples + sum(tensor.nbytes for tensor in statistics.state().values()))
        example = statistics.example()
        assert example is not None and example[1].shape == (2, 3, EXAMPLE_TOKENS)
        assert held_by_samples < statistics.most_bytes
    assert sizes[0] == sizes[1]


def test_a_long_text_is_measured_in_pieces(monkeypatch: pytest.MonkeyPatch):
    whole = ValueStatistics(2, 3, size=200)
    text = a_text(1000, 0, head_dim=64)
    whole.add(0, 7, 30, text, whole=True)
    pieces_seen: list[int] = []

    def watched(values: Tensor) -> Tensor:
        pieces_seen.append(values.numel())
        return statistics_of(values)

    monkeypatch.setattr("vase_cli.calibration.value_statistics.statistics_of", watched)
    pieces = ValueStatistics(2, 3, size=200, chunk_elements=2 * 3 * 64 * 8)
    pieces.add(0, 7, 30, text, whole=True)
    assert max(pieces_seen) == 2 * 3 * 64 * 8 and sum(pieces_seen) == text.numel()
    state, expected = pieces.state(), whole.state()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_a_value_that_is_not_finite_is_named_and_its_text_left_out():
    statistics = ValueStatistics(2, 3, chunk_elements=2 * 3 * 4 * 10)  # the fifth piece of five
    statistics.add(0, 7, 10, a_text(50, 0), whole=True)
    before = statistics.state()
    bad = a_text(50, 1)
    bad[1, 44, 2, 0] = math.nan
    with pytest.raises(ModelError, match=r"^layer 1, KV head 2: the value of token 44 is not finite$"):
        statistics.add(1, 8, 10, bad, whole=True)
    after = statistics.state()
    assert all(torch.equal(after[name], before[name]) for name in before)
