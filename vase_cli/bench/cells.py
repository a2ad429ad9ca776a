"""The cells of a benchmark: one method, budget, number of slots and length of text each."""

import math
from dataclasses import dataclass, replace

from vase_cli.engine.factory import EngineFactory
from vase_cli.engine.plan import GenerationLimits
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
    text: int | None = None  # tokens of the whole text, of which the steps are the end; None where the text goes on

    def title(self) -> str:
        """The cell in a few words."""
        budget = "" if self.limits.budget is None else f", budget {self.limits.budget.tokens:,}"
        slots = f"{self.slots} slots" if self.text is None else "the slots that fit"
        return f"{self.factory.plan.method}{budget}, {slots}, text of {self.text or self.context:,} tokens"


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


def make_cell(factory: EngineFactory, slots: int | str, length: int, steps: Steps, *, of_text: bool = False) -> Cell:
    """Make a cell whose steps begin at ``length`` tokens of text or, ``of_text``, end there with the slots that fit.

    A ratio as budget is a share of ``length``. ConfigError for a text too short for a cut or too long for the model,
    or a budget that cannot work.
    """
    plan, context = factory.plan, length - steps.total if of_text else length
    limit, configured = context + steps.total, plan.facts.max_tokens
    if configured is not None and limit > configured:
        most = f"{plan.entry.name} is configured for {configured:,}; give a shorter --context or --text"
        raise ConfigError(f"a text of {limit:,} tokens, steps included: {most}")
    limits = replace(plan.limits(None, max_new_tokens=None, max_total_tokens=length), max_total_tokens=limit)
    least = 1 if limits.budget_tokens is None else limits.budget_tokens + plan.recipe.window
    if context < least:
        needs = f"{plan.method} needs {least + length - context:,} to be cut in all steps"
        hint = "give a longer --context or --text, or a smaller budget"
        raise ConfigError(f"a text of {length:,} tokens is too short: {needs}; {hint}")
    return Cell(factory, limits, "auto", context, length) if of_text else Cell(factory, limits, slots, context)
