"""Measures a model's value states while it solves problems with the full cache, and fits thresholds to them.

The engine generates as it does for method ``full``; what the cache holds of each finished text is read, and nothing
changed. A run that was stopped goes on where it was and ends with the same figures, though where a batch has
several rows a value's last bits may depend on the row that held it. On value states of large range: arXiv 2606.03928.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import vase_cli
from vase_cli.calibration.folder import FACTS_FILE, FORMAT, NUMBERS_FILE, CalibrationState, Text
from vase_cli.calibration.thresholds import fit, share_over, write_thresholds
from vase_cli.calibration.tokens import examine
from vase_cli.calibration.value_statistics import LEVELS, METRICS, ValueStatistics
from vase_cli.config.schema import ModelEntry
from vase_cli.config.threshold_facts import FitRule, entry_text, entry_to_write, write_entry
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.requests import Completion, FinishedRow
from vase_cli.errors import ConfigError, ModelError, RunError, file_access
from vase_cli.evaluation.evaluate import EvalTask, Job, Progress, describe_run, events
from vase_cli.models.identity import weights_digest
from vase_cli.randomness import stream_key
from vase_cli.runs.files import write_document, write_file
from vase_cli.runs.folder import config_hash, lock_folder, now, run_name
from vase_cli.tensor_files import tensor_bytes

_SECONDS_BETWEEN_SAVES = 20.0
_SAVING_SHARE = 0.05


class Calibration(NamedTuple):
    """A finished calibration: its folder, calibration.json, and calibration.safetensors, on the CPU."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]


def calibrate(
    factory: EngineFactory,
    task: EvalTask,
    *,
    root: Path,
    rule: FitRule,
    command: Sequence[str],
    progress: Progress,
    raw: bool = False,
) -> Calibration:
    """Generate one text for each problem, measure it, and fit thresholds.

    On Ctrl-C and on a VaseError all finished texts are kept whole; the same call goes on from there. Another rule, or
    the same call again, measures nothing anew. The factory's method is ``full``, ``root`` the folder of all
    calibrations; the rest is as for :func:`vase_cli.evaluation.evaluate.evaluate`.
    """
    plan = factory.plan
    if plan.policy.evicts:
        raise ConfigError(f"method {plan.method} evicts: a model is measured with method full")
    task = dataclasses.replace(task, samples=1)
    run, job = describe_run(plan, [task], command, raw=raw), Job(factory, task, raw=raw)
    digest = config_hash({**run.config, "calibration": FORMAT})
    folder = root / run_name(plan.entry.name, task.task.name, config_hash=digest)
    if not folder.exists():
        factory.load()  # weights that cannot be loaded leave no folder behind
    with file_access("make the folder", folder, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
    shape = plan.facts.shape
    with lock_folder(folder):
        statistics = ValueStatistics(shape.layers, shape.kv_heads, plan.device.torch)
        state = CalibrationState(folder, statistics, digest)
        _measure(factory, job, state, progress)
        state.write_texts()
        calibration = _fit(factory, task, state, folder, rule)
        write_file(folder / NUMBERS_FILE, tensor_bytes(calibration.tensors))
        write_document(folder / FACTS_FILE, calibration.facts)
    return calibration


def write_to_zoo(calibration: Calibration, entry: ModelEntry, folder: Path, *, built_in: bool) -> tuple[Path, Path]:
    """Write the thresholds beside the model's zoo entry, and their name into it.

    An entry goes into ``folder`` if it is not the user's own yet; one that is ``built_in`` stays as it is. Returns the
    zoo file and the file of the thresholds' facts; ConfigError or RunError if they cannot be written.
    """
    facts = calibration.facts
    path, entry = entry_to_write(entry, folder, built_in=built_in)
    name = path.parent.resolve().name if path.name == "entry.yaml" else path.stem
    measured = {key: facts[key] for key in ("task", "tokens", "rule", "seed", "date")} | {"problems": facts["texts"]}
    of_commit = dataclasses.replace(entry, revision=facts["revision"])
    thresholds = write_thresholds(path.parent, name, calibration.tensors["thresholds"], of_commit, **measured)
    length = facts["lengths"][facts["task"]]["mean"]
    write_entry(path, entry_text(entry, path, thresholds.name, (facts["task"], length)))
    return path, thresholds


def _measure(factory: EngineFactory, job: Job, state: CalibrationState, progress: Progress) -> None:
    """Generate the texts that are not finished yet, and measure each as it ends."""
    plan, name = factory.plan, job.task.task.name
    planned, requests = len(job.requests), job.missing(set(state.finished))
    if not requests:
        progress.start(name, planned, planned)
        return
    rows = state.slots or plan.recipe.slots
    memory = factory.memory([job.demand], rows, reserved_bytes=state.statistics.most_bytes)
    state.slots = memory.max_num_seqs
    decode_path = factory.decode_path(job.planned_steps(memory.max_num_seqs))
    for line in (*plan.notes, memory.message(), decode_path.message):
        progress.note(line)
    problem_ids = {request.id: problem.id for request, problem in job.requests.values()}
    recorder = _Recorder(state, plan.recipe.seed, problem_ids)
    engine = factory.engine(job.demand, max_num_seqs=state.slots, compiled=decode_path.compiled)
    progress.start(name, planned - len(requests), planned)
    try:
        for event in events(engine, requests, progress):
            state.slots = engine.settings.max_num_seqs
            if isinstance(event, FinishedRow):
                recorder.measure(event)
            elif isinstance(event, Completion):
                if event.finish_reason == "error":
                    progress.note(f"warning: not measured: {event.error}")
                    recorder.append(event)
                progress.sample(None)
                recorder.save()
    finally:
        recorder.save(at_once=True)


class _Recorder:
    """Measures finished texts and stores them; the state is saved only while it is whole."""

    def __init__(self, state: CalibrationState, seed: int, problem_ids: Mapping[str, str]) -> None:
        self._state, self._seed, self._problem_ids = state, seed, problem_ids
        self._numbers = {name: number for number, name in enumerate(problem_ids)}
        self._unsaved, self._saved_at, self._saving_s = False, time.monotonic(), 0.0

    @torch.inference_mode()
    def measure(self, row: FinishedRow) -> None:
        """Measure a finished text and store it: both or, where this is interrupted, neither counts."""
        completion, request = row.completion, row.completion.request
        key = stream_key(self._seed, request.problem_id, request.sample, "calibration")
        number, prompt_tokens = self._numbers[request.id], len(request.prompt_token_ids)
        self._unsaved = False
        try:
            self._state.statistics.add(number, key, prompt_tokens, row.values, whole=completion.finish_reason == "stop")
        except ModelError as error:
            raise ModelError(f"{request.id}: {error}; try --dtype bfloat16 or float32, and check the weights") from None
        except torch.OutOfMemoryError as error:
            shortage = "out of memory while its values are measured: take fewer --slots"
            raise ModelError(f"{request.id}: {shortage}") from error
        self.append(completion)

    def append(self, completion: Completion) -> None:
        request = completion.request
        text = Text(
            index=self._numbers[request.id],
            id=request.id,
            problem_id=self._problem_ids[request.id],
            prompt_token_ids=list(request.prompt_token_ids),
            token_ids=list(completion.token_ids),
            finish_reason=completion.finish_reason,
        )
        self._state.append(text)
        self._unsaved = True

    def save(self, *, at_once: bool = False) -> None:
        """Save what is new at once or now and then, so that saving takes a small share of the time."""
        started = time.monotonic()
        due = started - self._saved_at >= max(_SECONDS_BETWEEN_SAVES, self._saving_s / _SAVING_SHARE)
        if self._unsaved and (at_once or due):
            self._state.save()
            self._unsaved, self._saved_at = False, time.monotonic()
            self._saving_s = self._saved_at - started


def _fit(factory: EngineFactory, task: EvalTask, state: CalibrationState, folder: Path, rule: FitRule) -> Calibration:
    plan, statistics, entry = factory.plan, state.statistics, factory.plan.entry
    if not statistics.tokens:
        raise RunError(f"{folder}: every one of {len(state.finished)} texts failed; see the warnings")
    rest = statistics.rest()
    samples = {**statistics.samples, "rest": rest}
    tensors = {f"quantiles.{name}": sample.quantiles(LEVELS) for name, sample in samples.items()}
    tensors |= {f"max.{name}": sample.largest() for name, sample in samples.items()}
    tensors["thresholds"] = fit(rest, rule)
    tensors["over"] = share_over(rest, tensors["thresholds"])
    tensors["first.mean_range"] = statistics.mean_first_ranges()
    tensors["top.range"], tensors["top.text"], tensors["top.position"] = statistics.largest()
    examined, example = examine(state, tensors, factory.tokenizer.pieces)
    facts = {
        "format": FORMAT,
        "name": folder.name,
        "model": entry.name,
        "hub_id": entry.hub_id,
        "revision": entry.revision,
        "weights": weights_digest(entry),
        "files": plan.files,
        "shape": dataclasses.asdict(plan.facts.shape),
        "dtype": plan.facts.dtype,
        "device": plan.device.name,
        "task": task.task.name,
        "problems": len(task.problems.problems),
        "tokens": statistics.tokens,
        "sampling": plan.recipe.sampling.recorded(),
        "seed": plan.recipe.seed,
        "date": now(),
        "vase_version": vase_cli.__version__,
        "rule": str(rule),
        "metrics": list(METRICS),
        "levels": list(LEVELS),
        "counts": {name: sample.count for name, sample in samples.items()},
        "sample_tokens": rest.size,
        **examined,
        "lengths": {task.task.name: examined["lengths"]},
    }
    return Calibration(folder, facts, tensors | example)
