"""The cells of a benchmark: one method, budget and number of slots each, with texts of one length or a workload."""

import math
from dataclasses import dataclass, replace
from typing import Any

from vase_cli.bench.workloads import Workload
from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import Demand, GenerationLimits, RunPlan
from vase_cli.engine.rows import Need
from vase_cli.errors import ConfigError

LEAST_STEPS = 128  # measured steps by default, or the two windows that are needed at least
_SPARE_TOKENS = 4  # between the last measured step and the end of the text, as the engine launches steps ahead


@dataclass(frozen=True)
class Steps:
    """Decode steps of a measurement: ``warm_up`` before it, ``measured`` in it."""

    warm_up: int
    measured: int

    @property
    def total(self) -> int:
        """All steps, and the room that the text must leave after them."""
        return self.warm_up + self.measured + _SPARE_TOKENS


@dataclass(frozen=True)
class Cell:
    """One line of the benchmark: model, method and settings, and the tokens of text in its rows."""

    factory: EngineFactory
    limits: GenerationLimits  # budget and limit; the text's leaves room for the steps after ``context``
    slots: int | str  # a number, or "auto"
    context: int  # text tokens of every row when the steps begin
    steps: Steps
    prefill: tuple[int, ...] = ()  # tokens of the longest prompt of each measurement of prefills
    text: int | None = None  # tokens of the whole text, of which the steps are the end; None where the text goes on

    @property
    def demand(self) -> Demand:
        """What an engine is made for: any number of texts up to the limit, and the longest prompt that is prefilled."""
        return Demand(self.limits, max(self.prefill, default=1))

    @property
    def planned_steps(self) -> int:
        """Decode steps to come."""
        return self.steps.total

    def title(self) -> str:
        """The cell in a few words."""
        slots = f"{self.slots} slots" if self.text is None else "the slots that fit"
        return f"{_method(self)}, {slots}, text of {self.text or self.context:,} tokens"

    def shared(self) -> dict[str, Any]:
        """What a summary says of all cells together."""
        return {"warmup": self.steps.warm_up, "steps": self.steps.measured}


@dataclass(frozen=True)
class WorkloadCell:
    """One line of the benchmark: model, method and settings, and requests from the first to the last token."""

    factory: EngineFactory
    limits: GenerationLimits
    slots: int | str  # a number, or "auto"
    workload: Workload
    repeats: int = 1

    @property
    def demand(self) -> Demand:
        """What an engine is made for."""
        needs = [Need(sum(lengths), lengths.new_tokens, certain=True) for lengths in self.workload.lengths]
        needs.sort(key=lambda need: need.text_tokens, reverse=True)
        return Demand(self.limits, self.workload.longest_prompt, tuple(needs))

    @property
    def planned_steps(self) -> int:
        """Decode steps to come, at least."""
        return self.repeats * max(request.new_tokens for request in self.workload.lengths)

    def title(self) -> str:
        """The cell in a few words."""
        return f"{_method(self)}, {self.slots} slots, workload {self.workload.name}"

    def shared(self) -> dict[str, Any]:
        """What a summary says of all cells together."""
        return {"workload": self.workload.name, "repeats": self.repeats}


def make_steps(window: int, warm_up: int | None, measured: int | None) -> Steps:
    """Make the steps of every loop; None is the least that suits the window.

    ConfigError for too few: every row must be cut once before the measurement and twice in it.
    """
    if warm_up is not None and warm_up < window:
        raise ConfigError(f"--warmup {warm_up}: must be at least {window}, one window, so that every row is cut once")
    if measured is not None and measured < 2 * window:
        least = f"must be at least {2 * window}, two windows, so that every row is cut twice"
        raise ConfigError(f"--steps {measured}: {least}")
    enough = max(2, math.ceil(LEAST_STEPS / window)) * window
    return Steps(window if warm_up is None else warm_up, enough if measured is None else measured)


def make_cell(
    factory: EngineFactory,
    slots: int | str,
    length: int,
    steps: Steps,
    *,
    prefill: tuple[int, ...] = (),
    of_text: bool = False,
) -> Cell:
    """Make a cell whose steps begin at ``length`` tokens of text or, ``of_text``, end there with the slots that fit.

    A ratio as budget is a share of ``length``; no prompt of ``prefill`` is longer than the text as the steps begin.
    ConfigError for a text too short for a cut or too long for the model, or a budget that cannot work.
    """
    plan, context = factory.plan, length - steps.total if of_text else length
    limit = context + steps.total
    _check_configured(plan, limit, "steps included", "a shorter --context or --text")
    limits = replace(plan.limits(None, max_new_tokens=None, max_total_tokens=length), max_total_tokens=limit)
    least = 1 if limits.budget_tokens is None else limits.budget_tokens + plan.recipe.window
    if context < least:
        needs = f"{plan.method} needs {least + length - context:,} to be cut in all steps"
        hint = "give a longer --context or --text, or a smaller budget"
        raise ConfigError(f"a text of {length:,} tokens is too short: {needs}; {hint}")
    prompts = tuple(dict.fromkeys(min(tokens, context) for tokens in prefill))
    return Cell(factory, limits, "auto" if of_text else slots, context, steps, prompts, length if of_text else None)


def make_workload_cell(factory: EngineFactory, slots: int | str, workload: Workload, repeats: int) -> WorkloadCell:
    """Make a cell of a workload, of whose longest text a ratio as budget is a share.

    ConfigError for a text too long for the model, or a budget that cannot work.
    """
    plan, longest = factory.plan, workload.longest_text
    _check_configured(plan, longest, f"the longest of workload {workload.name}", "one with shorter texts")
    limits = plan.limits(None, max_new_tokens=None, max_total_tokens=longest)
    return WorkloadCell(factory, limits, slots, workload, repeats)


def _check_configured(plan: RunPlan, tokens: int, which: str, instead: str) -> None:
    configured = plan.facts.max_tokens
    if configured is not None and tokens > configured:
        most = f"{plan.entry.name} is configured for {configured:,}; give {instead}"
        raise ConfigError(f"a text of {tokens:,} tokens, {which}: {most}")


def _method(cell: Cell | WorkloadCell) -> str:
    method, budget = cell.factory.plan.method, cell.limits.budget_tokens
    return method if budget is None else f"{method}, budget {budget:,}"
