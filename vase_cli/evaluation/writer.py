"""What this process adds to a run: texts as they are finished, their grades, and the figures of its engines."""

from vase_cli.engine.cache import CacheShape
from vase_cli.engine.engine import Engine
from vase_cli.engine.plan import RunPlan
from vase_cli.engine.requests import EngineStats
from vase_cli.evaluation.regrade import store_summary
from vase_cli.evaluation.summary import summarize
from vase_cli.runs.folder import RunFolder
from vase_cli.runs.schema import Run, Sample, SampleGrade, Summary

_SAMPLES_BETWEEN_FIGURES = 8


class RunWriter:
    """Stores samples in a run's folder or, without one, keeps them.

    ``samples`` are those of the run by id, an earlier process's too; ``max_num_seqs`` are the rows of the engines, the
    last one's where memory ran out.
    """

    def __init__(self, plan: RunPlan, run: Run, folder: RunFolder | None, max_num_seqs: int) -> None:
        self.samples = {} if folder is None else folder.samples
        self.max_num_seqs = max_num_seqs
        self._plan, self._run, self._folder = plan, run, folder
        self._stats: list[EngineStats] = []
        self._caches: list[CacheShape] = []
        self._appended = 0

    def count(self, engine: Engine) -> None:
        """Count the figures of an engine from here on."""
        self._stats.append(engine.stats)
        self._caches.append(engine.cache.shape)
        self._write_figures()

    def append(self, sample: Sample) -> None:
        """Store a text, and now and then the figures."""
        if self._folder is not None:
            self._folder.append(sample)
        self.samples[sample.id] = sample
        self._appended += 1
        if self._appended % _SAMPLES_BETWEEN_FIGURES == 1:
            self._write_figures()

    def append_grade(self, grade: SampleGrade) -> Sample:
        """Store the grade of a text; returns the sample with it."""
        sample = self.samples[grade.id].graded(grade) if self._folder is None else self._folder.append_grade(grade)
        self.samples[grade.id] = sample
        return sample

    def finish(self) -> Summary:
        """Store the figures, and the summary of all samples."""
        self._write_figures()
        return summarize(self.samples.values(), self._run) if self._folder is None else store_summary(self._folder)

    def _write_figures(self) -> None:
        if self._folder is None or not self._stats:
            return
        stats, cache = sum(self._stats, EngineStats()), max(self._caches, key=lambda shape: shape.bytes)
        figures = {
            "device": self._plan.device.name,
            "slots": self.max_num_seqs,
            "samples": self._appended,
            "prefill_tokens": stats.prefill_tokens,
            "prefill_s": round(stats.prefill_s, 3),
            "decode_tokens": stats.decode_tokens,
            "decode_s": round(stats.decode_s, 3),
            "weights_bytes": self._plan.facts.weights_bytes,
            "cache_bytes": cache.bytes,
            "cache_bytes_per_token": cache.token_bytes,
            "peak_bytes": self._plan.device.peak_bytes(),
        }
        self._folder.record_session(figures)
