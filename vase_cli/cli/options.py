"""The options that commands share, and what they make of a recipe."""

# ruff: noqa: RUF009 - the defaults of Overrides are dataclass fields

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vase_cli.cli.output import echo, print_notes
from vase_cli.cli.startup import quick_imports
from vase_cli.config.budget import Ratio
from vase_cli.config.catalog import Catalog, Resolved
from vase_cli.config.default_recipe import Candidates
from vase_cli.config.method_options import parse_option, share_out
from vase_cli.config.resolve import check_option
from vase_cli.config.schema import Recipe
from vase_cli.config.yaml import parse_scalar

BENCHMARK = "Benchmark"
_METHOD = ("--method", "-m")
_PANELS = (None, "Model and recipe", "Eviction", BENCHMARK, "Sampling and limits", "Machine")

AUTO_SLOTS = "auto takes what fits, at most 256 on a GPU and 16 on a CPU"


def _option(panel: str, help: str, *names: str, default: object = None, metavar: str | None = None) -> Any:
    """A dataclass field that is an option; ``default`` counts where the recipe, too, has no value."""
    shown = True if default is None else f"the recipe's, or {default}"
    option = typer.Option(*names, help=help, metavar=metavar, show_default=shown, rich_help_panel=panel)
    return dataclasses.field(default=None, metadata={"option": option})


_model, _eviction, _, _sampling, _machine = (partial(_option, panel) for panel in _PANELS[1:])


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The shared options as they were typed, each None where it was left out.

    A field with the name of a recipe's key replaces that key. A command that compares has ``methods`` and ``budgets``
    in place of ``method`` and ``budget``.
    """

    recipe: str | None = _model(
        "Recipe: a name or a .yaml file; without it and --model, $VASE_RECIPE or the best that fits.", "--recipe", "-r"
    )
    model: str | None = _model("Zoo name, folder or hub id, in place of the recipe's.")
    think: bool | None = _model("Thinking mode, where the model has a switch.")
    system_prompt: str | None = _model("System prompt.", "--system")
    zoo: Path | None = _model("Folder of zoo entries, searched first.")
    recipes: Path | None = _model("Folder of recipes, searched first.")
    method: str | None = _eviction("Eviction method; see `vase methods list`.", *_METHOD, default=Recipe.method)
    methods: list[str] | None = _eviction(
        "Eviction method, or several: full,vase-attnv; see `vase methods list`.", *_METHOD, default=Recipe.method
    )
    budget: str | None = _eviction("Tokens kept per KV head, or 4x: a quarter of the full cache.", "--budget", "-b")
    budgets: list[str] | None = _eviction(
        "Tokens kept per KV head, or 4x: a quarter of the full cache; or several: 2x,4x.", "--budget", "-b"
    )
    method_options: list[str] | None = _eviction(
        "Option of the method; may be repeated.", "--option", "-o", metavar="KEY=VALUE"
    )
    window: int | None = _eviction(
        "Tokens between cuts, and at the end of the text, which always stay.", default=Recipe.window
    )
    temperature: float | None = _sampling("Sampling temperature; 0 is greedy.")
    top_k: int | None = _sampling("Sample among the K most likely tokens; 0 is off.")
    top_p: float | None = _sampling("Sample among the most likely tokens of this total probability; 1 is off.")
    min_p: float | None = _sampling("Drop tokens below this share of the best probability; 0 is off.")
    repetition_penalty: float | None = _sampling("Penalty on tokens that are in prompt or text already; 1 is off.")
    seed: int | None = _sampling("Seed of sampling and eviction.", default=Recipe.seed)
    max_new_tokens: int | None = _sampling("Limit on generated tokens.")
    max_total_tokens: int | None = _sampling("Limit on prompt and generated tokens.")
    slots: str | None = _machine(f"Sequences at a time; {AUTO_SLOTS}.", default=Recipe.slots)
    dtype: str | None = _machine("bfloat16, float16, float32; auto is float32 on a CPU.")
    attention: str | None = _machine("auto, flash_attention_2, triton or sdpa.")
    compile: str | None = _machine(
        "torch.compile of decode steps: on, off; auto compiles long runs of models without fused kernels."
    )
    device: str | None = _machine("auto, cpu, cuda, cuda:N or mps; auto is CUDA where there is one, else the CPU.")

    def changes(self, **own: Any) -> dict[str, Any]:
        """Recipe keys that the options set, None where left out, and ``own``; ConfigError for ``-o`` without ``=``."""
        elsewhere = ("recipe", "zoo", "recipes", "methods", "budgets")
        typed = {name: getattr(self, name) for name in _FIELDS if name not in elsewhere}
        typed["method_options"] = dict(map(parse_option, self.method_options or ())) or None
        typed["slots"] = None if self.slots is None else parse_scalar(self.slots)
        return typed | own

    def catalog(self) -> Catalog:
        """The zoo entries and recipes, in the folders named here first."""
        return Catalog.open(zoo=self.zoo, recipes=self.recipes)

    def with_recipe(self, tasks: Sequence[str] = (), *, or_own: bool = False) -> "Overrides":
        """These options; if they name no recipe or model, with the recipe of ``$VASE_RECIPE``, or the best for tasks.

        Says on stderr which it is. ``tasks``, ``or_own`` and ConfigError as in :meth:`Candidates.choose`.
        """
        if self.recipe is not None or self.model is not None:
            return self
        if named := os.environ.get("VASE_RECIPE"):
            return dataclasses.replace(self, recipe=named)
        changes = {"dtype": self.dtype and check_option("dtype", self.dtype), "think": self.think}
        device = self.device or "auto"
        with quick_imports(device):
            import torch  # noqa: F401 - which knows the device
        choice = Candidates.find(self.catalog(), device, changes).choose(tasks, or_own=or_own)
        echo(choice.line, err=True)
        return dataclasses.replace(self, recipe=choice.recipe)

    def resolve(self, changes: Mapping[str, Any]) -> Resolved:
        """The recipe and model that the options name; notes a shadowed built-in on stderr."""
        catalog = self.catalog()
        resolved = catalog.resolve(self.recipe, changes)
        print_notes(catalog.notes(self.recipe, resolved.entry))
        return resolved

    def compared(self, changes: Mapping[str, Any]) -> list[Resolved]:
        """A recipe for every method at every budget, of the options or else of the recipe; ``full`` comes once.

        Each of several methods takes the options that it has.
        """
        catalog, options = self.catalog(), changes.get("method_options")
        methods: Sequence[str | None] = listed(self.methods) or [None]
        budgets: Sequence[int | str | None] = listed(self.budgets) or [None]
        if not self.methods and not self.budgets:
            compare = catalog.resolve(self.recipe, {**changes, "method": None, "budget": None}).recipe.compare
            methods, budgets = compare.methods or [None], compare.budgets or [None]
        several = [method for method in methods if len(methods) > 1 and method is not None]
        own_options, left_out = share_out(several, options) if options and several else ({}, [])
        compared: list[Resolved] = []
        pairs = [(method, None if method == "full" and several else budget) for budget in budgets for method in methods]
        for method, budget in dict.fromkeys(pairs):
            pair = {"method": method, "budget": budget, "method_options": own_options.get(method or "", options)}
            compared.append(catalog.resolve(self.recipe, {**changes, **pair}))
        print_notes([*catalog.notes(self.recipe, compared[0].entry), *left_out])
        return compared


def with_budget(resolved: Resolved) -> Resolved:
    """The same, with a quarter of the full cache where a method evicts and neither recipe nor options have a budget."""
    recipe = resolved.recipe
    if recipe.method == "full" or recipe.budget is not None or recipe.budgets:
        return resolved
    return resolved._replace(recipe=dataclasses.replace(recipe, budget=Ratio("4x")))


_FIELDS = {field.name: field for field in dataclasses.fields(Overrides)}


def shared(name: str) -> Any:
    """A shared option, for the annotation of a command that takes few of them."""
    return _FIELDS[name].metadata["option"]


def with_overrides(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command whose first argument are the :class:`Overrides`: their fields become options of the command.

    Options come in the order of their panels, those without one first, the command's own before the shared ones.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    taken = {
        name: inspect.Parameter(name, kind, default=None, annotation=Annotated[field.type, shared(name)])
        for name, field in _FIELDS.items()
        if name not in left_out
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(Overrides(**{name: values.pop(name) for name in taken}), **values)

        _, *own = inspect.signature(command).parameters.values()
        parameters = [*own, *taken.values()]
        parameters.sort(key=lambda option: _PANELS.index(option.annotation.__metadata__[0].rich_help_panel))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


Raw = Annotated[bool, typer.Option("--raw", help="Give prompts as they are, without the model's chat template.")]


def listed(values: Sequence[str] | None) -> list[str]:
    """Values of an option, one by one or with commas between them; each once."""
    return list(dict.fromkeys(part.strip() for value in values or () for part in value.split(",")))
