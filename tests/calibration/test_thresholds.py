"""Thresholds: how they are fitted, what their files say and refuse, and what a cut makes of them."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.views import CANDIDATES, HEADS, ITEMS, KEPT, WINDOW, make_view, scattered
from torch import Tensor

from vase_cli import plugins
from vase_cli.calibration.quantiles import TokenSample
from vase_cli.calibration.thresholds import fit, share_over, write_thresholds
from vase_cli.config.resolve import load_entry
from vase_cli.config.schema import ModelEntry, ModelShape, Recipe
from vase_cli.config.threshold_facts import entry_text, entry_to_write, parse_rule, read_facts, write_entry
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import Demand, RunPlan, plan_run
from vase_cli.engine.requests import Request
from vase_cli.errors import ConfigError, DataError, VaseError
from vase_cli.eviction._scores import value_range
from vase_cli.models.thresholds import load_thresholds
from vase_cli.tensor_files import tensor_bytes

SHAPE = ModelShape(layers=2, heads=4, kv_heads=2, head_dim=16)
VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.5]])
HUB = ModelEntry("m", hub_id="a/m", revision="0" * 40)


def a_sample(ranges: Tensor) -> TokenSample:
    """Of (T, L, H) ranges."""
    sample = TokenSample(("range", "norm"), *ranges.shape[1:])
    sample.update(torch.arange(ranges.shape[0]), torch.stack((ranges, -ranges)).transpose(1, 2).contiguous())
    return sample


FACTS: dict[str, Any] = {
    "task": "gsm8k", "problems": 64, "tokens": 1000, "rule": "mad:6", "seed": 0, "date": "2026-01-02T03:04:05",
}  # fmt: skip


def written(folder: Path, entry: ModelEntry = HUB, values: Tensor = VALUES, **changes: Any) -> ModelEntry:
    """The entry with thresholds in a folder."""
    path = write_thresholds(folder, "m", values, entry, **(FACTS | changes))
    return dataclasses.replace(entry, thresholds=str(path))


class TestRules:
    def test_quantile_and_share_count_from_either_end(self):
        sample = a_sample(torch.arange(1.0, 101.0)[:, None, None] * torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        assert fit(sample, parse_rule("quantile:0.95")).tolist() == [[95.0, 190.0], [285.0, 380.0]]
        assert fit(sample, parse_rule("share:0.25")).tolist() == [[75.0, 150.0], [225.0, 300.0]]
        assert share_over(sample, fit(sample, parse_rule("share:0.25"))).tolist() == [[0.25, 0.25], [0.25, 0.25]]

    def test_mad_is_the_median_and_so_many_deviations(self):
        ranges = torch.tensor([1.0, 2.0, 4.0, 7.0, 100.0])[:, None, None]  # median 4, deviations 0 2 3 3 96
        assert fit(a_sample(ranges), parse_rule("mad:2")).item() == 4.0 + 2 * 3.0
        assert share_over(a_sample(ranges), torch.tensor([[10.0]])).item() == pytest.approx(0.2)

    def test_a_constant_range_has_no_outliers(self):
        sample = a_sample(torch.full((50, 1, 1), 2.5))
        for rule in ("quantile:0.95", "share:0.25", "mad:3"):
            assert share_over(sample, fit(sample, parse_rule(rule))).item() == 0.0

    def test_nothing_measured_is_one_line(self):
        with pytest.raises(DataError, match="no token was measured after the first ones of each text"):
            fit(TokenSample(("range",), 1, 1), parse_rule("mad:3"))

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ("quantile", "rule 'quantile': write quantile:0.95, mad:6 or share:0.25"),
            ("median:3", "rule 'median:3': write quantile:0.95, mad:6 or share:0.25"),
            ("quantile:0", "rule 'quantile:0': quantile takes a share between 0 and 1, such as quantile:0.95"),
            ("quantile:1", "rule 'quantile:1': quantile takes a share between 0 and 1, such as quantile:0.95"),
            ("quantile:95", "rule 'quantile:95': quantile takes a share between 0 and 1, such as quantile:0.95"),
            ("share:-0.1", "rule 'share:-0.1': share takes a share between 0 and 1, such as share:0.25"),
            ("share:nan", "rule 'share:nan': share takes a share between 0 and 1, such as share:0.25"),
            ("mad:0", "rule 'mad:0': mad takes a number above 0, such as mad:6"),
            ("mad:inf", "rule 'mad:inf': mad takes a number above 0, such as mad:6"),
            ("mad:x", "rule 'mad:x': mad takes a number above 0, such as mad:6"),
        ],
    )
    def test_a_rule_out_of_range_is_one_line(self, rule: str, message: str):
        with pytest.raises(ConfigError) as caught:
            parse_rule(rule)
        assert str(caught.value) == message

    @pytest.mark.parametrize("rule", ["quantile:0.95", "mad:6", "share:0.25", "mad:2.5"])
    def test_a_rule_is_written_as_it_is_read(self, rule: str):
        assert str(parse_rule(rule)) == rule


class TestFiles:
    def test_what_is_written_is_read(self, tmp_path: Path):
        entry = written(tmp_path)
        found = load_thresholds(entry, SHAPE)
        assert found is not None and torch.equal(found.values, VALUES)
        assert found.digest == found.facts.digest
        expected = FACTS | {"model": "a/m", "revision": HUB.revision, "weights": None}
        for key, value in expected.items():
            assert getattr(found.facts, key) == value, key
        assert load_thresholds(HUB, SHAPE) is None

    def test_a_date_and_digits_stay_text(self, tmp_path: Path):
        entry = written(tmp_path, date="2026-01-02T03:04:05+00:00", task="0x10")
        assert entry.thresholds is not None
        facts = read_facts(Path(entry.thresholds))
        assert (facts.date, facts.task) == ("2026-01-02T03:04:05+00:00", "0x10")

    @pytest.mark.parametrize(
        ("changes", "shape", "message"),
        [
            (
                {"hub_id": "b/other"},
                SHAPE,
                r":5: model: thresholds of a/m, the model has b/other; ",
            ),
            (
                {"revision": "1" * 40},
                SHAPE,
                r":6: revision: thresholds of 0{40}, the model has 1{40}",
            ),
            (
                {"revision": None},
                SHAPE,
                r":6: revision: thresholds of 0{40}, the model has none; ",
            ),
            (
                {},
                dataclasses.replace(SHAPE, layers=3),
                r": layers: thresholds of 2, the model has 3; calibrate m again",
            ),
            ({}, dataclasses.replace(SHAPE, kv_heads=4), r": kv_heads: thresholds of 2, the model has 4; "),
        ],
    )
    def test_another_model_is_refused(self, tmp_path: Path, changes: dict[str, Any], shape: ModelShape, message: str):
        mine = dataclasses.replace(HUB, **changes, thresholds=written(tmp_path).thresholds)
        with pytest.raises(ConfigError, match=message) as caught:
            load_thresholds(mine, shape)
        assert "\n" not in str(caught.value) and str(tmp_path / "m.thresholds.yaml") in str(caught.value)

    def test_weights_of_a_folder_that_were_trained_again_are_refused(self, tmp_path: Path):
        weights = tmp_path / "model" / "model.safetensors"
        weights.parent.mkdir()
        weights.write_bytes(tensor_bytes({"w": torch.zeros(3)}))
        entry = written(weights.parent, ModelEntry("m", path=weights.parent))  # beside them, and none of them
        assert load_thresholds(entry, SHAPE) is not None
        weights.write_bytes(tensor_bytes({"w": torch.ones(3)}))
        with pytest.raises(ConfigError, match=r": weights: thresholds of [0-9a-f]{16}, the model has [0-9a-f]{16}; "):
            load_thresholds(entry, SHAPE)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("missing", r"m\.thresholds\.safetensors: no such file; restore it"),
            ("cut", r"m\.thresholds\.safetensors: cut or not a safetensors file \(.*\); restore it"),
            ("empty", r"m\.thresholds\.safetensors: cut or not a safetensors file \(.*\); restore it"),
            ("name", r"m\.thresholds\.safetensors: it holds no 'thresholds'; restore it"),
            ("shape", r"m\.thresholds\.safetensors: 'thresholds' is \(4,\) float32, not \(2, 2\) float32; restore it"),
            ("type", r"'thresholds' is \(2, 2\) float64, not \(2, 2\) float32; restore it"),
            ("others", r"m\.thresholds\.safetensors: not the numbers that m\.thresholds\.yaml speaks of; calibrate m"),
        ],
    )
    def test_numbers_that_cannot_be_used_are_one_line(self, tmp_path: Path, damage: str, message: str):
        entry = written(tmp_path)
        numbers = tmp_path / "m.thresholds.safetensors"
        if damage == "missing":
            numbers.unlink()
        elif damage in ("cut", "empty"):
            numbers.write_bytes(numbers.read_bytes()[: 0 if damage == "empty" else -3])
        else:
            changed = {
                "name": {"x": VALUES},
                "shape": {"thresholds": VALUES.flatten()},
                "type": {"thresholds": VALUES.double()},
            }
            numbers.write_bytes(tensor_bytes(changed.get(damage, {"thresholds": VALUES + 1})))
        with pytest.raises(DataError, match=message) as caught:
            load_thresholds(entry, SHAPE)
        assert "\n" not in str(caught.value)

    def test_a_threshold_that_is_no_number_is_named(self, tmp_path: Path):
        entry = written(tmp_path, values=torch.tensor([[1.0, 2.0], [math.nan, 3.0]]))
        with pytest.raises(DataError, match="layer 1, KV head 0: nan is no threshold; calibrate m again"):
            load_thresholds(entry, SHAPE)

    @pytest.mark.parametrize(
        ("line", "instead", "message"),
        [
            ("format: 1", "format: 2", r":2: format: is 2; this version of vase reads format 1$"),
            ("rule: mad:6", "rule: mad:-6", r"rule: rule 'mad:-6': mad takes a number above 0"),
            ("tokens: 1000", "tokens: many", r"tokens: must be a whole number of tokens, not 'many'"),
            ("tokens: 1000\n", "", r":1: tokens is missing; calibrate the model again$|: tokens is missing"),
            ("task: gsm8k", "tasks: gsm8k", r"tasks: unknown key; did you mean 'task'\?"),
            (
                "numbers: m.thresholds.safetensors",
                "numbers: ../x.safetensors",
                r"numbers: '\.\./x\.safetensors' is not the",
            ),
            ("digest: ", "digest: z # ", r"digest: 'z' is not 16 hexadecimal digits"),
        ],
    )
    def test_facts_that_break_a_rule_are_one_line(self, tmp_path: Path, line: str, instead: str, message: str):
        entry = written(tmp_path)
        path = tmp_path / "m.thresholds.yaml"
        assert line in path.read_text()
        path.write_text(path.read_text().replace(line, instead))
        with pytest.raises(ConfigError, match=message) as caught:
            load_thresholds(entry, SHAPE)
        assert str(caught.value).startswith(f"{path}:") and "\n" not in str(caught.value)

    def test_a_file_of_numbers_in_place_of_the_facts_is_refused(self, tmp_path: Path):
        written(tmp_path)
        entry = dataclasses.replace(HUB, thresholds=str(tmp_path / "m.thresholds.safetensors"))
        with pytest.raises(ConfigError, match=r"thresholds are named by their facts, a file NAME\.thresholds\.yaml"):
            load_thresholds(entry, SHAPE)


class TestEntries:
    def put(self, folder: Path, content: str) -> ModelEntry:
        folder.mkdir(exist_ok=True)
        path = folder / "m.yaml"
        path.write_text(content)
        return load_entry(path, "m")

    def test_a_hub_model_without_an_entry_gets_one(self, tmp_path: Path):
        entry = ModelEntry("a/m", hub_id="a/m")
        path, _ = entry_to_write(entry, tmp_path, built_in=False)
        assert path == tmp_path / "a--m.yaml"
        thresholds = write_thresholds(tmp_path, "a--m", VALUES, entry, **FACTS)
        write_entry(path, entry_text(entry, path, thresholds.name, ("gsm8k", 301.26)))
        found = load_entry(path, "a--m")
        assert (found.hub_id, found.thresholds) == ("a/m", str(thresholds))
        assert found.dense_tokens == {"gsm8k": 301.3}

    def test_a_built_in_entry_is_copied_with_all_it_says(self, tmp_path: Path):
        (tmp_path / "model").mkdir()
        entry = self.put(
            tmp_path / "zoo",
            "# A model.\npath: ../model\n\n# How long.\ndense_tokens: {gsm8k: 300}\n"
            "shape:\n  layers: 2\n  heads: 4\n  kv_heads: 2\n  head_dim: 16\n"
            "thresholds: m.yaml\n# The end.\nlicense: mit\n",
        )
        own = tmp_path / "own"
        path, _ = entry_to_write(entry, own, built_in=True)
        assert path == own / "m.yaml"
        thresholds = write_thresholds(own, "m", VALUES, HUB, **FACTS)
        write_entry(path, entry_text(entry, path, thresholds.name, ("math500", 999.0)))
        found = load_entry(path, "m")
        assert found.path is not None and found.path.resolve() == (tmp_path / "model").resolve()
        assert found.dense_tokens == {"gsm8k": 300.0, "math500": 999.0}
        assert (found.shape, found.license, found.thresholds) == (SHAPE, "mit", str(thresholds))
        text = path.read_text()
        assert all(comment in text for comment in ("# A model.", "# How long.", "# The end."))
        assert sorted(path.name for path in own.iterdir()) == [
            "m.thresholds.safetensors",
            "m.thresholds.yaml",
            "m.yaml",
        ]

    def test_the_users_own_entry_is_changed_in_place_and_twice_is_once(self, tmp_path: Path):
        entry = self.put(tmp_path / "zoo", "path: .\ndense_tokens:\n  gsm8k: 300\nlicense: mit\n")
        path, _ = entry_to_write(entry, tmp_path / "elsewhere", built_in=False)
        assert path == entry.source
        write_thresholds(path.parent, "m", VALUES, HUB, **FACTS)
        for _ in range(2):
            write_entry(path, entry_text(load_entry(path, "m"), path, "m.thresholds.yaml", ("aime25", 15000.0)))
        assert path.read_text() == (
            "path: .\nlicense: mit\ndense_tokens: {gsm8k: 300.0, aime25: 15000.0}\nthresholds: m.thresholds.yaml\n"
        )

    def test_an_entry_of_the_same_name_is_taken_only_if_it_is_of_the_same_model(self, tmp_path: Path):
        self.put(tmp_path, "hub_id: a/m\nlicense: mit\n")
        path, found = entry_to_write(ModelEntry("m", hub_id="a/m"), tmp_path, built_in=False)
        assert (path, found.license) == (tmp_path / "m.yaml", "mit")
        with pytest.raises(ConfigError, match=r"m\.yaml: the entry of another model of this name; rename it"):
            entry_to_write(ModelEntry("m", hub_id="b/m"), tmp_path, built_in=False)
        (tmp_path / "m.yaml").unlink()
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "entry.yaml").write_text("path: .\n")
        folder = ModelEntry("m", path=tmp_path / "m")
        assert entry_to_write(folder, tmp_path, built_in=False)[0] == tmp_path / "m" / "entry.yaml"

    def test_a_length_that_is_known_and_a_file_that_is_no_task_change_no_length(self, tmp_path: Path):
        entry = self.put(tmp_path / "zoo", "hub_id: a/m\ndense_tokens: {gsm8k: 300}  # mine\n")
        for task in ("gsm8k", "my-problems"):
            assert entry_text(entry, tmp_path / "zoo" / "m.yaml", "t.yaml", (task, 5.0)) == (
                "hub_id: a/m\ndense_tokens: {gsm8k: 300}  # mine\nthresholds: t.yaml\n"
            )

    def test_an_entry_that_would_not_load_is_not_written(self, tmp_path: Path):
        entry = self.put(tmp_path / "zoo", "hub_id: a/m\n")
        assert entry.source is not None
        with pytest.raises(ConfigError, match="thresholds: no file"):
            write_entry(entry.source, entry_text(entry, entry.source, "missing.yaml", ("gsm8k", 5.0)))
        assert entry.source.read_text() == "hub_id: a/m\n"
        assert [path.name for path in (tmp_path / "zoo").iterdir()] == ["m.yaml"]


PROTECTING = ("vase-attnv", "range-topk", "vase-dkv")


@pytest.mark.parametrize("method", PROTECTING)
class TestCuts:
    """At threshold: the sinks, and the largest of the tokens that are over their head's threshold, n_large at most."""

    def make(self, method: str, **options: Any) -> Any:
        return plugins.load("eviction", method)(**options)

    def protected(self, method: str, thresholds: Tensor | None, **options: Any) -> Tensor:
        view = dataclasses.replace(make_view(), thresholds=thresholds)
        policy = self.make(method, **options)
        policy.check(view.budget, view.window)
        return policy.keep_scores(view).isposinf()

    def test_over_their_heads_threshold_and_no_more_than_n_large(self, method: str):
        view = make_view()
        ranges = value_range(view)
        thresholds = torch.full((ITEMS, HEADS), 4.3)
        thresholds[0, 1], thresholds[2, 0] = 3.5, 3.0
        found = self.protected(method, thresholds, outliers="threshold", n_large=10)
        sizes = set()
        for item in range(ITEMS):
            for head in range(HEADS):
                sinks = view.candidate_positions[item, head] < 4
                over = [
                    token for token in ranges[item, head].argsort(descending=True).tolist()
                    if ranges[item, head, token] > thresholds[item, head] and not sinks[token]
                ]  # fmt: skip
                expected = {*sinks.nonzero().flatten().tolist(), *over[: 10 - int(sinks.sum())]}
                assert set(found[item, head].nonzero().flatten().tolist()) == expected
                sizes.add(len(expected))
        assert max(sizes) == 10 and min(sizes) < 9, "the case tells too little"

    def test_the_lowest_threshold_is_the_count_and_the_highest_the_sinks(self, method: str):
        low, high = torch.full((ITEMS, HEADS), -1.0), torch.full((ITEMS, HEADS), 1e30)
        counted = self.protected(method, None, outliers="count", n_large=12)
        assert (counted.sum(dim=-1) == 12).all()
        assert torch.equal(self.protected(method, low, outliers="threshold", n_large=12), counted)
        sinks = make_view().candidate_positions < 4
        assert torch.equal(self.protected(method, high, outliers="threshold", n_large=12), sinks)

    def test_a_quarter_of_the_budget_is_protected_where_nothing_is_said(self, method: str):
        assert (self.protected(method, None, outliers="count").sum(dim=-1) == make_view().budget // 4).all()

    def test_a_range_at_its_threshold_is_not_over_it(self, method: str):
        view = make_view()
        ranges = value_range(view).masked_fill(view.candidate_positions < 4, 0.0)
        thresholds = ranges.amax(dim=-1)
        found = self.protected(method, thresholds, outliers="threshold", n_large=12)
        assert torch.equal(found, view.candidate_positions < 4)
        found = self.protected(method, thresholds.nextafter(torch.zeros(())), outliers="threshold", n_large=12)
        assert (found.sum(dim=-1) == 5).all()

    def test_the_free_places_are_used(self, method: str):
        view = dataclasses.replace(make_view(), thresholds=torch.full((ITEMS, HEADS), 1e30))
        kept, finite = self.make(method, outliers="threshold").select(view)
        assert finite.all() and kept.shape[-1] == KEPT + WINDOW
        counted, _ = self.make(method, outliers="count").select(view)
        assert not torch.equal(kept, counted)

    def test_where_the_states_stand_does_not_matter(self, method: str):
        view = dataclasses.replace(make_view(), thresholds=torch.full((ITEMS, HEADS), 3.5))
        policy = self.make(method, outliers="threshold")
        apart = dataclasses.replace(scattered(view), thresholds=view.thresholds)
        assert torch.equal(policy.select(apart)[0], policy.select(view)[0])

    def test_a_view_without_thresholds_is_never_passed_over(self, method: str):
        policy = self.make(method, outliers="threshold")
        assert policy.reads_thresholds and not self.make(method).reads_thresholds
        with pytest.raises(RuntimeError, match="the view must carry them"):
            policy.keep_scores(make_view())

    def test_n_large_is_checked(self, method: str):
        with pytest.raises(ConfigError, match="n_large is 3: it must be at least 4"):
            self.make(method, outliers="count", n_large=3).check(24, 8)
        with pytest.raises(ConfigError, match="n_large is 17: a budget of 24 tokens with a window of 8 has 16 places"):
            self.make(method, outliers="threshold", n_large=17).check(24, 8)


def test_thresholds_change_nothing_where_they_are_not_read():
    view = make_view()
    with_thresholds = dataclasses.replace(view, thresholds=torch.full((ITEMS, HEADS), 3.0))
    for name in plugins.names("eviction"):
        policy = plugins.load("eviction", name)()
        if policy.evicts:
            assert torch.equal(policy.keep_scores(view), policy.keep_scores(with_thresholds)), name


def test_leverage_protects_only_the_sinks_unless_asked():
    method = plugins.load("eviction", "vase-dkv")
    sinks = make_view().candidate_positions < 4
    assert torch.equal(method().keep_scores(make_view()).isposinf(), sinks)
    assert sinks.shape[-1] == CANDIDATES
    with pytest.raises(ConfigError, match="n_large: nothing is counted while outliers is none; add outliers=count"):
        method(n_large=8).check(24, 8)


class TestPlan:
    def make(self, folder: Path, thresholds: str | None = None, **changes: Any) -> RunPlan:
        values: dict[str, Any] = {
            "method": "vase-attnv", "method_options": {"outliers": "threshold"}, "budget": 24, "window": 4,
            "device": "cpu",
        }  # fmt: skip
        entry = ModelEntry("tiny", path=folder, thresholds=thresholds)
        return plan_run(Recipe("mine", str(folder), **(values | changes)), entry)

    def test_a_model_without_thresholds_is_counted_and_it_is_said(self, model_folder: Callable[..., Path]):
        plan = self.make(model_folder("qwen3"))
        assert plan.thresholds is None
        assert plan.policy == plugins.load("eviction", "vase-attnv")()
        (note,) = plan.notes
        assert note.startswith("warning: vase-attnv: tiny has no thresholds, so outliers are told by their count; ")

    def test_thresholds_are_taken_only_where_they_are_read(self, model_folder: Callable[..., Path], tmp_path: Path):
        folder = model_folder("qwen3")
        path = written(tmp_path, ModelEntry("tiny", path=folder)).thresholds
        asked = self.make(folder, path)
        assert asked.thresholds is not None and torch.equal(asked.thresholds.values, VALUES)
        assert asked.notes == () and asked.policy.reads_thresholds
        assert self.make(folder, path, method_options={}).thresholds is None
        assert self.make(folder, "/nowhere.yaml", method_options={}).thresholds is None

    def test_thresholds_of_another_model_are_refused_before_a_weight_is_read(
        self, model_folder: Callable[..., Path], tmp_path: Path
    ):
        path = written(tmp_path, ModelEntry("tiny", path=model_folder("llama"))).thresholds
        with pytest.raises(VaseError, match=": weights: thresholds of "):
            self.make(model_folder("qwen3"), path)

    def test_a_cut_reads_the_thresholds_of_its_own_layer(self, model_folder: Callable[..., Path], tmp_path: Path):
        """Where nothing is over a threshold only the sinks stay; where everything is, it is the count."""
        folder = model_folder("qwen3")
        prompts = [tuple(range(3, 3 + length)) for length in (5, 24, 60)]  # the last one is cut by its prefill

        def tokens(values: Tensor | None, **options: Any) -> list[tuple[int, ...]]:
            entry = ModelEntry("tiny", path=folder)
            path = None if values is None else written(tmp_path, entry, values).thresholds
            plan = self.make(folder, path, method_options=options)
            limits = plan.limits(None, max_new_tokens=60, max_total_tokens=200)
            engine = EngineFactory(plan).engine(Demand(limits, 60), max_num_seqs=2)
            requests = [Request(str(number), prompt, str(number)) for number, prompt in enumerate(prompts)]
            return [text.token_ids for text in sorted(engine.generate(requests), key=lambda text: text.request.id)]

        low, high = -1.0, 1e30
        all_, sinks = tokens(None, n_large=12), tokens(None, n_large=4)
        assert all_ != sinks
        asked = {"n_large": 12, "outliers": "threshold"}
        assert tokens(torch.full((2, 2), low), **asked) == all_
        assert tokens(torch.full((2, 2), high), **asked) == sinks
        one_layer = tokens(torch.tensor([[low, low], [high, high]]), **asked)
        assert one_layer not in (all_, sinks, tokens(torch.tensor([[high, high], [low, low]]), **asked))

    def test_an_unknown_choice_is_one_line(self, model_folder: Callable[..., Path]):
        with pytest.raises(ConfigError, match="outliers: 'thresholds' is not known; did you mean 'threshold'"):
            self.make(model_folder("qwen3"), method_options={"outliers": "thresholds"})
