"""The options that commands share, and what they make of a recipe."""

# ruff: noqa: RUF009 - _option makes a dataclass field

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from vase_cli.cli.output import print_notes
from vase_cli.config.catalog import Catalog
from vase_cli.config.method_options import parse_option, share_out
from vase_cli.config.schema import ModelEntry, Recipe
from vase_cli.config.yaml import parse_scalar

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
DEFAULT_RECIPE = "tiny-reasoner"
BENCHMARK = "Benchmark"
_MODEL, _METHOD, _SAMPLING, _MACHINE = "Model and recipe", "Eviction", "Sampling and limits", "Machine"
_PANELS = (None, _MODEL, _METHOD, BENCHMARK, _SAMPLING, _MACHINE)

AUTO_SLOTS = "auto takes what fits, at most 256 on a GPU and 16 on a CPU"

Resolved: TypeAlias = tuple[Recipe, ModelEntry]


def _option(panel: str, help: str, *names: str, default: object = None, metavar: str | None = None) -> Any:
    """A field that is an option; ``default`` counts where the recipe, too, has no value."""
    shown = True if default is None else f"the recipe's, or {default}"
    option = typer.Option(*names, help=help, metavar=metavar, show_default=shown, rich_help_panel=panel)
    return dataclasses.field(default=None, metadata={"option": option})


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The shared options as they were typed, each None where it was left out.

    A field that is named as a key of a recipe takes the place of that key. A command that compares has ``methods`` and
    ``budgets`` in place of ``method`` and ``budget``.
    """

    recipe: str | None = _option(_MODEL, "Recipe: a name or a .yaml file.", "--recipe", "-r")
    model: str | None = _option(_MODEL, "Zoo name, folder or hub id, in place of the recipe's.")
    think: bool | None = _option(_MODEL, "Thinking mode, where the model has a switch.")
    system_prompt: str | None = _option(_MODEL, "System prompt.", "--system")
    zoo: Path | None = _option(_MODEL, "Folder of zoo entries, searched first.")
    recipes: Path | None = _option(_MODEL, "Folder of recipes, searched first.")
    method: str | None = _option(
        _METHOD, "Eviction method; see `vase methods list`.", "--method", "-m", default=Recipe.method
    )
    methods: list[str] | None = _option(
        _METHOD,
        "Eviction method, or several: full,vase-attnv; see `vase methods list`.",
        *("--method", "-m"),
        default=Recipe.method,
    )
    budget: str | None = _option(
        _METHOD, "Tokens kept per KV head, or 4x: a quarter of the full cache.", "--budget", "-b"
    )
    budgets: list[str] | None = _option(
        _METHOD, "Tokens kept per KV head, or 4x: a quarter of the full cache; or several: 2x,4x.", "--budget", "-b"
    )
    method_options: list[str] | None = _option(
        _METHOD, "Option of the method; may be repeated.", "--option", "-o", metavar="KEY=VALUE"
    )
    window: int | None = _option(_METHOD, "Tokens between cuts; the last so many always stay.", default=Recipe.window)
    temperature: float | None = _option(_SAMPLING, "0 is greedy.")
    top_k: int | None = _option(_SAMPLING, "0 switches it off.")
    top_p: float | None = _option(_SAMPLING, "1 switches it off.")
    min_p: float | None = _option(_SAMPLING, "0 switches it off.")
    seed: int | None = _option(_SAMPLING, "Of tokens and eviction.", default=Recipe.seed)
    max_new_tokens: int | None = _option(_SAMPLING, "Limit on generated tokens.")
    max_total_tokens: int | None = _option(_SAMPLING, "Limit on prompt and generated tokens.")
    slots: str | None = _option(_MACHINE, f"Sequences at a time; {AUTO_SLOTS}.", default=Recipe.slots)
    dtype: str | None = _option(_MACHINE, "bfloat16, float16, float32; auto is float32 on a CPU.")
    attention: str | None = _option(_MACHINE, "auto, flash_attention_2, triton or sdpa.")
    compile: str | None = _option(
        _MACHINE, "torch.compile of decode steps: on, off; auto is for long runs of families without kernels of ours."
    )
    device: str | None = _option(
        _MACHINE, "auto, cpu, cuda, cuda:N or mps; auto is CUDA where there is one, else the CPU."
    )

    def changes(self, **own: Any) -> dict[str, Any]:
        """The keys of a recipe that the options set, and the command's ``own``; None is "not given".

        Raises:
            ConfigError: an option of the method that is not ``key=value``.
        """
        elsewhere = ("recipe", "zoo", "recipes", "methods", "budgets")
        typed = {name: getattr(self, name) for name in _FIELDS if name not in elsewhere}
        typed["method_options"] = dict(map(parse_option, self.method_options or ())) or None
        typed["slots"] = None if self.slots is None else parse_scalar(self.slots)
        return typed | own

    def catalog(self) -> Catalog:
        """The zoo entries and recipes, in the folders named here first."""
        return Catalog.open(zoo=self.zoo, recipes=self.recipes)

    def with_recipe(self, default: Callable[[], str] = lambda: DEFAULT_RECIPE) -> "Overrides":
        """These options, with the recipe of ``$VASE_RECIPE``, or else ``default``, if they name no recipe or model."""
        if self.recipe is not None or self.model is not None:
            return self
        return dataclasses.replace(self, recipe=os.environ.get("VASE_RECIPE") or default())

    def resolve(self, changes: Mapping[str, Any]) -> Resolved:
        """The recipe and model that the options name; notes a shadowed built-in on stderr."""
        recipe, entry, notes = self.catalog().resolve(self.recipe, changes)
        print_notes(notes)
        return recipe, entry

    def compared(self, changes: Mapping[str, Any]) -> list[Resolved]:
        """A recipe for every method at every budget that is named, here or in the recipe; ``full`` has none, so once.

        Of several methods each gets those of the options that it has.
        """
        catalog, options = self.catalog(), changes.get("method_options")
        methods: Sequence[str | None] = listed(self.methods) or [None]
        budgets: Sequence[int | str | None] = listed(self.budgets) or [None]
        if not self.methods and not self.budgets:
            base, _, _ = catalog.resolve(self.recipe, {**changes, "method": None, "budget": None})
            methods, budgets = base.compare.methods or [None], base.compare.budgets or [None]
        several = [method for method in methods if method is not None]
        own_options, left_out = share_out(several, options) if options and len(several) > 1 else ({}, [])
        pairs = dict.fromkeys(
            (method, budget if method != "full" or len(methods) == 1 else None)
            for budget in budgets
            for method in methods
        )
        compared: list[Resolved] = []
        for method, budget in pairs:
            pair = {"method": method, "budget": budget, "method_options": own_options.get(method or "", options)}
            recipe, entry, notes = catalog.resolve(self.recipe, {**changes, **pair})
            print_notes([] if compared else notes)
            compared.append((recipe, entry))
        print_notes(left_out)
        return compared


_FIELDS = {field.name: field for field in dataclasses.fields(Overrides)}


def shared(name: str) -> Any:
    """One of the shared options, for the annotation of a command that takes few of them."""
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
        parameters = sorted(
            [*own, *taken.values()],
            key=lambda parameter: _PANELS.index(parameter.annotation.__metadata__[0].rich_help_panel),
        )
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def listed(values: Sequence[str] | None) -> list[str]:
    """An option's values, given one by one or with commas between them; each once."""
    return list(dict.fromkeys(part.strip() for value in values or () for part in value.split(",")))
