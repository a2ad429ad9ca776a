"""The summary's figures by hand, and its presentation."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.run_examples import a_run, a_sample, a_task, measured, open_run, store

from vase_cli.errors import ConfigError
from vase_cli.evaluation.summary import summarize
from vase_cli.evaluation.summary_table import summary_table
from vase_cli.runs.folder import StoredRun
from vase_cli.runs.schema import Session, Summary


def a_session(**changes: Any) -> Session:
    times = {"started_at": "2026-01-02T03:04:05+00:00", "updated_at": "2026-01-02T03:05:05+00:00", "wall_s": 60.0}
    return Session(**{"host": "a", "pid": 1, "closed": True, **times, **measured(), **changes})


def test_a_run_of_two_tasks_by_hand() -> None:
    run = a_run(a_task(problems=2, samples=2), a_task("aime24", problems=1, samples=4, skipped_rows=["x.jsonl:3: cut"]))
    samples = [
        a_sample(0, 0, prompt_tokens=100, completion_tokens=500, cuts=0, cached_tokens=600),
        a_sample(0, 1, rule="last_number", completion_tokens=1500, cuts=4, cached_tokens=512),
        a_sample(1, 0, grade="wrong", finish_reason="length", repetition=True, garbage=True),
        a_sample(1, 1, grade="no_answer", rule="", extracted=None),
        a_sample(0, 0, task="aime24", grade="correct"),
        a_sample(0, 1, task="aime24", grade="error", rule="", extracted=None, error="timeout"),
        a_sample(0, 2, task="aime24", grade="no_answer", finish_reason="error", rule="", extracted=None, error="NaN"),
        a_sample(0, 3, task="aime24", grade="wrong", rule="last_number"),
    ]
    summary = summarize(samples, run)
    gsm8k, aime24, overall = summary.tasks["gsm8k"], summary.tasks["aime24"], summary.overall

    assert gsm8k.accuracy == 0.5  # problems 1 and 0
    assert gsm8k.standard_error == pytest.approx(0.5)
    assert gsm8k.boxed_accuracy == 0.25
    assert gsm8k.fallback_rules == {"last_number": 1}
    assert gsm8k.pass_at_k == {"1": 0.5, "2": 0.5}
    assert gsm8k.no_answer_share == gsm8k.truncated_share == gsm8k.loop_share == gsm8k.garbage_share == 0.25
    assert gsm8k.error_share == 0
    assert gsm8k.mean_prompt_tokens == 100
    assert gsm8k.mean_completion_tokens == (500 + 1500 + 900 + 900) / 4
    assert gsm8k.mean_cuts == (0 + 4 + 3 + 3) / 4
    assert gsm8k.mean_cached_tokens == (600 + 3 * 512) / 4
    assert gsm8k.skipped_rows == 0

    assert (aime24.accuracy, aime24.standard_error) == (0.25, None)  # one problem
    assert aime24.pass_at_k == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert aime24.error_share == 0.5
    assert aime24.fallback_rules == {"last_number": 1}
    assert aime24.skipped_rows == 1

    # gsm8k's problem 0 and aime24's problem 0 are two problems: 1, 0 and 1/4.
    assert (overall.problems, overall.planned_problems) == (3, 3)
    assert overall.accuracy == pytest.approx(1.25 / 3)
    assert overall.pass_at_k.keys() == {"1", "2"}  # gsm8k has two samples only
    assert overall.error_share == 0.25
    assert overall.skipped_rows == 1
    assert summary.complete is True
    assert (summary.samples, summary.planned_samples) == (8, 8)


def test_a_summary_is_the_same_after_json() -> None:
    run = a_run(a_task(), a_task("aime24"))
    for samples in ([], [a_sample()], [a_sample(n, m) for n in range(3) for m in range(2)]):
        for sessions in ([], [a_session()], [a_session(decode_tokens=0, decode_s=0, cache_bytes_per_token=None)]):
            summary = summarize(samples, run, sessions)
            assert Summary(**json.loads(json.dumps(summary.model_dump(), allow_nan=False))) == summary


def test_a_part_of_a_run_says_so_and_counts_only_what_is_there() -> None:
    run = a_run(a_task(problems=3, samples=4), a_task("aime24", problems=1, samples=1))
    samples = [a_sample(0, sample) for sample in range(4)] + [a_sample(1, 0, grade="wrong")]
    summary = summarize(samples, run)
    gsm8k, aime24 = summary.tasks["gsm8k"], summary.tasks["aime24"]
    assert (summary.complete, summary.samples, summary.planned_samples) == (False, 5, 13)
    assert (gsm8k.complete, gsm8k.problems, gsm8k.planned_problems) == (False, 2, 3)
    assert gsm8k.accuracy == 0.5
    assert gsm8k.pass_at_k == {"1": 0.5}  # problem 1 has one sample so far
    assert (aime24.samples, aime24.accuracy, aime24.loop_share, aime24.pass_at_k) == (0, None, None, {})


def test_pass_at_k_goes_up_in_powers_of_two() -> None:
    summary = summarize([a_sample(0, n) for n in range(11)], a_run(a_task(problems=1, samples=11)))
    assert list(summary.overall.pass_at_k) == ["1", "2", "4", "8"]


def test_speed_of_a_resumed_run_counts_what_was_measured_once() -> None:
    # The second process found 4 samples stored and made 2: their tokens over its seconds.
    sessions = [
        a_session(decode_tokens=3000, decode_s=10.0, prefill_tokens=400, prefill_s=1.0, peak_bytes=70, closed=False),
        a_session(decode_tokens=1000, decode_s=10.0, prefill_tokens=200, prefill_s=2.0, peak_bytes=60, slots=1),
        a_session(decode_tokens=0, decode_s=0.0, prefill_tokens=0, prefill_s=0.0, wall_s=2.0, slots=64),
    ]
    summary = summarize([a_sample(n) for n in range(6)], a_run(), sessions)
    assert summary.decode_tokens_per_s == 4000 / 20
    assert summary.prefill_tokens_per_s == 600 / 3
    assert summary.wall_s == 122
    assert summary.sessions == 3
    assert summary.peak_bytes == 70
    assert summary.slots == 1  # of the last that decoded


def test_speeds_of_two_devices_are_not_mixed() -> None:
    sessions = [
        a_session(device="cpu", decode_tokens=10, decode_s=100.0, peak_bytes=10**12),
        a_session(device="NVIDIA H200", decode_tokens=1000, decode_s=1.0, peak_bytes=5),
    ]
    summary = summarize([a_sample()], a_run(), sessions)
    assert (summary.device, summary.decode_tokens_per_s, summary.peak_bytes) == ("NVIDIA H200", 1000, 5)
    assert summary.wall_s == 120


def test_without_a_measurement_speed_and_memory_are_null() -> None:
    summary = summarize([a_sample()], a_run())
    keys = ("wall_s", "device", "slots", "decode_tokens_per_s", "cache_bytes", "peak_bytes", "dense_cache_bytes")
    assert [getattr(summary, key) for key in keys] == [None] * len(keys)


def test_the_dense_cache_holds_the_longest_texts_one_for_each_slot() -> None:
    samples = [a_sample(n, prompt_tokens=10, completion_tokens=n) for n in (5, 90, 40)]
    session = a_session(slots=2, cache_bytes_per_token=7)
    assert summarize(samples, a_run(), [session]).dense_cache_bytes == 7 * (100 + 50)
    # More slots than texts: no cache is needed for what was never held.
    assert summarize(samples, a_run(), [session.model_copy(update={"slots": 64})]).dense_cache_bytes == 7 * (
        100 + 50 + 15
    )


def test_a_cache_is_not_set_against_texts_that_are_not_there() -> None:
    summary = summarize([a_sample(0), a_sample(1)], a_run(), [a_session()])
    assert summary.slots == 2 and "dense cache" in summary_table(summary).lines()[-1]
    assert "dense cache" not in summary_table(summary.model_copy(update={"slots": 3})).lines()[-1]


def test_a_stored_run_gives_its_summary_again(tmp_path: Path) -> None:
    with open_run(tmp_path) as folder:
        for problem in range(3):
            store(folder, a_sample(problem))
        folder.record_session(measured())
        summary = summarize(folder.samples.values(), folder.run, folder.sessions)
        folder.write_summary(summary)
    stored = StoredRun(folder.path)
    again = summarize(stored.samples.values(), stored.run, stored.sessions)
    assert again.model_copy(update={"wall_s": None}) == summary.model_copy(update={"wall_s": None})
    assert json.loads((folder.path / "summary.json").read_text()) == summary.model_dump()
    with pytest.raises(ConfigError, match="no run folder at"):
        StoredRun(tmp_path / "other")


def full_summary(task: str = "gsm8k") -> Summary:
    run = a_run(a_task(task, problems=3, samples=4, skipped_rows=["a", "b"]), a_task("aime24", problems=1, samples=1))
    samples = [a_sample(n, m, task=task, rule="last_number" if m == 3 else "boxed") for n in range(3) for m in range(4)]
    samples[0] = samples[0].model_copy(update={"grade": "no_answer", "garbage": True})
    samples[5] = samples[5].model_copy(update={"grade": "wrong", "published": "wrong", "grade_limit": "length"})
    samples[6] = samples[6].model_copy(update={"finish_reason": "length", "completion_tokens": 1500})
    samples[7] = samples[7].model_copy(update={"finish_reason": "length"})
    return summarize(samples, run, [a_session(weights_bytes=3 * 2**30, peak_bytes=5 * 2**20)])


def test_plain_lines_hold_the_figures() -> None:
    lines = summary_table(full_summary()).lines()
    assert lines[0].startswith("qwen3-8b-vase-attnv-4x-")
    assert " ".join(lines[1].split()) == "task accuracy samples no answer truncated loops tokens cached cuts"
    assert " ".join(lines[2].split()) == "gsm8k 83.3% ± 8.3 12 8.3% 16.7% 0.0% 950 512 3.0"
    assert " ".join(lines[3].split()) == "aime24 - 0 of 1 - - - - - -"
    assert lines[4].split()[0] == "overall"
    assert len({len(line) for line in lines[1:5]}) == 1
    assert lines[5:] == [
        "not complete: 12 of 13 samples",
        "gsm8k: pass@2 100.0%, pass@4 100.0%",
        "gsm8k: graded as published, by the last box anywhere, the thought included: 91.7%, 1 sample otherwise",
        "gsm8k: samples that hit a limit: length of an answer 1, max-new-tokens 1, max-total-tokens 1",
        "gsm8k: answers outside \\boxed{}: last_number 3; accuracy without them 58.3%",
        "gsm8k: 8.3% of the samples end in what is not text",
        "gsm8k: rows of the problem file left out: 2",
        "cpu, 2 slots: decode 400 tokens/s, prefill 200 tokens/s; 60 s in all",
        "weights 3.0 GiB, cache 500 B, the same text in a dense cache 25.4 KiB, peak 5.0 MiB",
    ]


def test_one_task_has_no_overall_line_and_errors_are_said() -> None:
    samples = [a_sample(0, 0), a_sample(0, 1, grade="error", finish_reason="error", error="NaN")]
    lines = summary_table(summarize(samples, a_run(a_task(problems=1)))).lines()
    assert " ".join(lines[2].split()) == "gsm8k 50.0% 2 0.0% 0.0% 0.0% 900 512 3.0"
    assert lines[3:] == ["gsm8k: pass@2 100.0%", "gsm8k: 50.0% of the samples failed; see their 'error'"]


def test_the_table_fits_80_columns_and_takes_names_as_they_are() -> None:
    from rich.console import Console

    console = Console(width=80, file=io.StringIO())
    console.print(summary_table(full_summary(task="[red]m.jsonl")).rich())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert any(line.startswith(" [red]m.jsonl ") and "83.3%" in line for line in text.splitlines())
    for word in ("83.3% ± 8.3", "12", "no answer", "truncated", "950", "512", "3.0", "12 of 13"):
        assert word in text
    assert "…" not in text
