"""Measures a model's value states while it solves problems with the full cache, and fits thresholds to them.

The engine generates as it does for method ``full``; an observer reads what the cache holds of each finished text, and
changes nothing. A run that was stopped goes on where it was and ends with the same figures: the same tokens are counted
in the same way, though where a batch has several rows a value's last bits may depend on the row that held it. What the
figures are for: the value states of large range of arXiv 2606.03928.

Letters: L layers, H KV heads, T tokens of a text.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vase_cli
from vase_cli.calibration.folder import FACTS_FILE, FORMAT, NUMBERS_FILE, CalibrationState, write_document, write_file
from vase_cli.calibration.thresholds import facts_of, fit, share_over, write_thresholds
from vase_cli.calibration.tokens import examine
from vase_cli.calibration.value_statistics import LEVELS, METRICS, ValueStatistics
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import FitRule, entry_text, entry_to_write, write_entry
from vase_cli.engine.assembly import Assembly
from vase_cli.engine.requests import Completion, NewTokens, Notice, Request
from vase_cli.errors import ConfigError, ModelError, RunError, file_error
from vase_cli.evaluation.evaluate import (
    Progress,
    TaskPart,
    describe_run,
    encode_prompt,
    longest_prompt,
    planned_steps,
    requests_of,
)
from vase_cli.models.describe import weights_digest
from vase_cli.randomness import stream_key
from vase_cli.runs.folder import config_hash, held, now, run_name
from vase_cli.tensor_files import tensor_bytes

_SECONDS_BETWEEN_SAVES = 20.0
_SAVING_SHARE = 0.05


@dataclass(frozen=True)
class Calibration:
    """A finished calibration.

    Attributes:
        path: its folder.
        facts: calibration.json.
        tensors: calibration.safetensors, on the CPU.
    """

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def thresholds(self) -> Tensor:
        """(L, H) float32."""
        return self.tensors["thresholds"]


def calibrate(
    assembly: Assembly, task_part: TaskPart, *, root: Path, rule: FitRule, command: Sequence[str], progress: Progress
) -> Calibration:
    """Generate one text for each problem, measure it, and fit thresholds.

    On Ctrl-C and on an error what was finished is kept; the same call goes on from there. Another rule, or the same
    call again, measures nothing anew.

    Args:
        assembly: recipe and model; its method is ``full``.
        task_part: the problems, from :func:`vase_cli.evaluation.evaluate.prepare`.
        root: the folder of all calibrations.
        rule: how thresholds are fitted.
        command: the command line, for the record.
        progress: told what happens.

    Raises:
        VaseError: one line; what was stored is whole.
    """
    if assembly.policy.evicts:
        raise ConfigError(f"method {assembly.recipe.method} evicts: a model is measured with method full")
    task_part = dataclasses.replace(task_part, samples=1)
    run = describe_run(assembly, [task_part], command, raw=False)
    digest = config_hash({**run["config"], "calibration": FORMAT})
    folder = root / run_name(assembly.entry.name, task_part.task.name, config_hash=digest)
    if not folder.exists():
        assembly.load()  # weights that cannot be loaded leave no folder behind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error("make the folder", folder, error, ConfigError) from error
    shape = assembly.facts.shape
    with held(folder):
        statistics = ValueStatistics(shape.layers, shape.kv_heads, assembly.device)
        state = CalibrationState(folder, statistics, digest)
        _Measuring(assembly, task_part, state, progress).run()
        state.write_texts()
        calibration = _finished(assembly, task_part, state, folder, rule)
        write_file(folder / NUMBERS_FILE, tensor_bytes(calibration.tensors))
        write_document(folder / FACTS_FILE, calibration.facts)
    return calibration


def write_to_zoo(calibration: Calibration, entry: ModelEntry, folder: Path, *, built_in: bool) -> tuple[Path, Path]:
    """Write the thresholds beside the model's zoo entry, and their name into it.

    Args:
        calibration: what was measured.
        entry: the model.
        folder: where an entry goes that is not the user's own yet.
        built_in: whether the entry is one of those that come with the product, which stay as they are.

    Returns:
        The zoo file and the file of the thresholds' facts.

    Raises:
        ConfigError, RunError: they cannot be written.
    """
    facts = calibration.facts
    path, entry = entry_to_write(entry, folder, built_in=built_in)
    name = path.parent.resolve().name if path.name == "entry.yaml" else path.stem
    said = {key: facts[key] for key in ("task", "tokens", "rule", "seed", "date")}
    about = facts_of(entry, calibration.thresholds, problems=facts["texts"], **said)
    thresholds = write_thresholds(path.parent, name, calibration.thresholds, about)
    length = facts["lengths"][facts["task"]]["mean"]
    write_entry(path, entry_text(entry, path, thresholds.name, (facts["task"], length)))
    return path, thresholds


class _Measuring:
    """The texts that are not finished yet: generated, and measured as each ends."""

    def __init__(self, assembly: Assembly, task_part: TaskPart, state: CalibrationState, progress: Progress) -> None:
        self._assembly = assembly
        self._task_part = task_part
        self._state = state
        self._progress = progress
        self._numbers = {
            f"{task_part.task.name}/{problem.id}/0": (number, problem.id)
            for number, problem in enumerate(task_part.problems.problems)
        }
        self._whole = True
        self._saved = len(state.finished)
        self._saved_at = time.monotonic()
        self._saving_s = 0.0

    def run(self) -> None:
        """Generate and measure.

        Raises:
            ModelError: a value is not finite, or the model cannot be served.
        """
        assembly, task_part, state = self._assembly, self._task_part, self._state
        problems = task_part.problems.problems
        prompts = {problem.id: encode_prompt(assembly, problem.prompt, raw=False) for problem in problems}
        longest = longest_prompt(task_part, prompts)
        finished = set(state.finished)
        requests = [request for request, _ in requests_of(task_part, prompts) if request.id not in finished]
        planned = len(problems)
        if not requests:
            self._progress.start(task_part.task.name, planned, planned, None)
            return
        plan = assembly.plan(
            [(task_part.part, longest)],
            planned,
            state.slots or assembly.recipe.slots,
            reserved_bytes=state.statistics.most_bytes,
        )
        state.slots = plan.slots
        for line in (*assembly.notes, plan.sentence()):
            self._progress.note(line)
        self._progress.note(assembly.decode_through(planned_steps([task_part], [longest], plan.slots)))
        engine = assembly.engine(
            task_part.part, slots=plan.slots, longest_prompt_tokens=longest, observer=self._observe
        )
        self._progress.start(task_part.task.name, planned - len(requests), planned, engine)
        try:
            for event in engine.stream(requests):
                if isinstance(event, NewTokens):
                    self._progress.tokens(event.tokens)
                elif isinstance(event, Notice):
                    self._progress.note(f"warning: {event.sentence}")
                    state.slots = engine.settings.slots
                else:
                    self._take(event)
        finally:
            self._save()

    def _observe(self, completion: Completion, values: Tensor) -> None:
        """Measure a finished text and store it: both or, where this is interrupted, neither counts."""
        request = completion.request
        number, _ = self._numbers[request.id]
        key = stream_key(self._assembly.recipe.seed, request.problem_id, request.sample, "calibration")
        self._whole = False
        try:
            self._state.statistics.add(
                number, key, len(request.prompt_token_ids), values, whole=completion.finish_reason == "stop"
            )
        except ModelError as error:
            raise ModelError(f"{request.id}: {error}; try --dtype bfloat16 or float32, and check the weights") from None
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{request.id}: out of memory while its values are measured: take fewer --slots"
            ) from error
        self._append(completion)
        self._whole = True

    def _take(self, completion: Completion) -> None:
        if completion.finish_reason == "error":
            self._progress.note(f"warning: not measured: {completion.error}")
            self._append(completion)
        self._progress.sample({"id": completion.request.id, "grade": None})
        pause = max(_SECONDS_BETWEEN_SAVES, self._saving_s / _SAVING_SHARE)
        if time.monotonic() - self._saved_at >= pause:
            self._save()

    def _append(self, completion: Completion) -> None:
        request: Request = completion.request
        number, problem_id = self._numbers[request.id]
        self._state.append(
            {
                "index": number,
                "id": request.id,
                "problem_id": problem_id,
                "prompt_token_ids": list(request.prompt_token_ids),
                "token_ids": list(completion.token_ids),
                "finish_reason": completion.finish_reason,
            }
        )

    def _save(self) -> None:
        if not self._whole or self._saved == len(self._state.finished):
            return
        started = time.monotonic()
        self._state.save()
        self._saved, self._saved_at = len(self._state.finished), time.monotonic()
        self._saving_s = self._saved_at - started


def _finished(
    assembly: Assembly, task_part: TaskPart, state: CalibrationState, folder: Path, rule: FitRule
) -> Calibration:
    """The figures of what was measured."""
    statistics, recipe, entry = state.statistics, assembly.recipe, assembly.entry
    if not statistics.tokens:
        raise RunError(f"{folder}: every one of {len(state.finished)} texts failed; see the warnings")
    rest = statistics.rest()
    thresholds = fit(rest, rule)
    samples = {str(name): sample for name, sample in statistics.samples.items()} | {"rest": rest}
    tensors = {f"quantiles.{name}": sample.quantiles(LEVELS) for name, sample in samples.items()}
    tensors |= {f"max.{name}": sample.largest() for name, sample in samples.items()}
    medians = tensors["quantiles.rest"][0, :, :, LEVELS.index(0.5)]
    top_range, top_text, top_position = statistics.largest()
    tensors |= {
        "thresholds": thresholds,
        "over": share_over(rest, thresholds),
        "first.mean_range": statistics.mean_first_ranges(),
        "top.range": top_range,
        "top.text": top_text,
        "top.position": top_position,
    }
    examined = examine(state, tensors, medians, assembly.tokenizer.pieces)
    if examined.example_ranges is not None:
        tensors["example.range"] = examined.example_ranges
    facts = {
        "format": FORMAT,
        "name": folder.name,
        "model": entry.name,
        "hub_id": entry.hub_id,
        "revision": entry.revision,
        "weights": weights_digest(entry),
        "shape": dataclasses.asdict(assembly.facts.shape),
        "dtype": assembly.facts.dtype,
        "device": assembly.hardware.name,
        "task": task_part.task.name,
        "problems": len(task_part.problems.problems),
        "texts": examined.texts,
        "truncated": examined.truncated,
        "failed": examined.failed,
        "tokens": statistics.tokens,
        "sampling": dataclasses.asdict(recipe.sampling),
        "seed": recipe.seed,
        "date": now(),
        "vase_version": vase_cli.__version__,
        "rule": str(rule),
        "metrics": list(METRICS),
        "levels": list(LEVELS),
        "counts": {name: sample.count for name, sample in samples.items()},
        "sample_tokens": rest.size,
        "lengths": {task_part.task.name: examined.lengths},
        "outliers": examined.outliers,
        "outlier_tokens": examined.outlier_tokens,
        "example": examined.example,
    }
    return Calibration(folder, facts, {name: one.contiguous() for name, one in tensors.items()})
