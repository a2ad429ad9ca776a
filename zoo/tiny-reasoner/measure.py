"""Measures the embedded reasoner: every method at four budgets, as in the table of the model card.

    python zoo/tiny-reasoner/measure.py --temperature 0 --problems 512

Prints one line of JSON for each run as it ends, then a table in Markdown, also when it is interrupted. Weights and
cache are float32 and the window is 32, as in the recipe ``tiny-reasoner``. Several processes share the GPU, which a
model this small leaves idle most of the time.
"""
# ruff: noqa: TID253

import argparse
import json
import math
import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vase_cli import LLM, plugins
from vase_cli.config.budget import Ratio, resolve_budget
from vase_cli.engine.plan import Demand
from vase_cli.engine.requests import Request
from vase_cli.evaluation.repetition import has_repetition
from vase_cli.tasks.recurrence import TASK, held_out_problems

WINDOW = 32
RATIOS = ("2x", "4x", "1.5x", "3x")
PROTECTED = ("random", "vase-attnv")
MOST_SLOTS = {"cuda": 512, "cpu": 32}


@dataclass(frozen=True)
class Job:
    """One run: a method with its options, a budget (None: full cache), and how tokens are drawn."""

    method: str
    options: Mapping[str, bool] = field(default_factory=dict)
    ratio: str = ""
    budget: int | None = None
    temperature: float = 0.0

    @property
    def name(self) -> str:
        """The method as the table names it."""
        return f"{self.method}, prompt protected" if self.options else self.method


def mean_length(llm: LLM) -> float:
    """Mean tokens of prompt and completion over the test problems, as solved without a fault."""
    lengths = [
        len(llm.encode(problem.question).token_ids) + len(llm.encode(problem.solution, raw=True).token_ids) + 1
        for problem in held_out_problems()
    ]
    return sum(lengths) / len(lengths)


def run(job: Job, *, folder: Path, problems: int, device: str) -> dict[str, Any]:
    """Run one job; the figures of its line."""
    started = time.perf_counter()
    asked = {problem.id: problem for problem in TASK.problems(limit=problems).problems}
    llm = LLM(
        folder,
        method=job.method,
        method_options=dict(job.options),
        budget=job.budget,
        window=WINDOW,
        sampling={"temperature": job.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        max_total_tokens=128 + (TASK.max_new_tokens or 0),
        dtype="float32",
        attention="sdpa",
        device=device,
    )
    limits = llm.plan.limits(None, max_new_tokens=TASK.max_new_tokens, max_total_tokens=TASK.max_total_tokens)
    prompts = {name: llm.encode(problem.prompt).token_ids for name, problem in asked.items()}
    requests = [Request(name, token_ids, name) for name, token_ids in prompts.items()]
    rows = min(len(asked), MOST_SLOTS[llm.plan.device.type])
    engine = llm.engine(Demand.of(limits, requests), max_num_seqs=rows)
    right = loops = unfinished = errors = tokens = 0
    with plugins.load("graders", TASK.grader)() as grader:
        for done in engine.generate(requests):
            text = llm.tokenizer.decode(done.token_ids)
            right += grader.grade(asked[done.request.id].answer, text).status == "correct"
            loops += has_repetition(text)
            unfinished += done.finish_reason == "length"
            errors += done.finish_reason == "error"
            tokens += len(done.token_ids)
    count = len(asked)
    accuracy = right / count
    return {
        "method": job.name,
        "ratio": job.ratio,
        "budget": job.budget,
        "temperature": job.temperature,
        "problems": count,
        "accuracy": round(accuracy, 4),
        "stderr": round(math.sqrt(accuracy * (1 - accuracy) / count), 4),
        "mean_completion_tokens": round(tokens / count, 1),
        "loops": round(loops / count, 3),
        "unfinished": round(unfinished / count, 3),
        "errors": errors,
        "cuts": round(engine.stats.cuts / count, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy in percent with its standard error, a row for each method and a column for each budget."""
    budgets = {row["ratio"]: row["budget"] for row in results if row["ratio"]}
    columns = sorted(budgets, key=lambda ratio: float(ratio[:-1]))
    cells = {(row["method"], row["ratio"]): row for row in results}

    def cell(method: str, ratio: str) -> str:
        row = cells.get((method, ratio))
        return "-" if row is None else f"{100 * row['accuracy']:.1f} ± {100 * row['stderr']:.1f}"

    lines = [
        "| method | " + " | ".join(f"{ratio} ({budgets[ratio]} tokens)" for ratio in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for method in sorted({row["method"] for row in results}):
        every = columns if ("full", "") not in cells or method != "full" else [""] * len(columns)
        lines.append(f"| {method} | " + " | ".join(cell(method, ratio) for ratio in every) + " |")
    return "\n".join(lines)


def _jobs(length: float, temperature: float) -> list[Job]:
    """The full cache first, then budget by budget."""
    methods: list[tuple[str, dict[str, bool]]] = [
        *((method, {}) for method in plugins.names("eviction") if plugins.load("eviction", method).evicts),
        *((method, {"protect_prompt": True}) for method in PROTECTED),
    ]
    jobs = [Job("full", temperature=temperature)]
    for ratio in RATIOS:
        budget = resolve_budget(
            Ratio(ratio), task=TASK.name, window=WINDOW, token_limit=2048, dense_tokens={TASK.name: round(length, 1)}
        ).tokens
        jobs += [Job(method, options, ratio, budget, temperature) for method, options in methods]
    return jobs


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    torch.set_num_threads(1)


def main() -> None:
    """Run every job and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="folder of the trained model")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=8)
    arguments = parser.parse_args()
    started = time.perf_counter()
    length = mean_length(LLM(arguments.model, method="full"))
    print(json.dumps({"mean_full_cache_tokens": round(length, 1)}), flush=True)
    work = partial(run, folder=arguments.model, problems=arguments.problems, device=arguments.device)
    results: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, _start_worker) as pool:
        try:
            for result in pool.imap_unordered(work, _jobs(length, arguments.temperature)):
                results.append(result)
                print(json.dumps(result), flush=True)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("stopped early", flush=True)
    seconds = time.perf_counter() - started
    print(f"\ntemperature {arguments.temperature:g}, {arguments.problems} problems, {seconds:.0f} s\n")
    print(table(results))


if __name__ == "__main__":
    main()
