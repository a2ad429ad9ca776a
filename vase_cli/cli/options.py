"""The options that ``vase run`` and ``vase eval`` share, and what they make of a recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vase_cli.cli.output import print_notes
from vase_cli.config.catalog import Catalog
from vase_cli.config.method_options import parse_option, share_out
from vase_cli.config.resolve import RECIPE_KEYS
from vase_cli.config.schema import SAMPLING_KEYS, ModelEntry, Recipe
from vase_cli.config.yaml import Scalar, parse_scalar

if TYPE_CHECKING:
    from vase_cli.engine.assembly import Assembly

_MODEL, _METHOD, _SAMPLING, _MACHINE = "Model and recipe", "Eviction", "Sampling and limits", "Machine"

AUTO_SLOTS = "auto takes what fits, at most 256 on a GPU and 16 on a CPU"


def _recipes_or(default: object) -> str:
    """What the help says is the default of a value that a recipe may have."""
    return f"the recipe's, or {default}"


RecipeName = Annotated[
    str | None, typer.Option("--recipe", "-r", help="Recipe: a name or a .yaml file.", rich_help_panel=_MODEL)
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Zoo name, folder or hub id, in place of the recipe's.", rich_help_panel=_MODEL),
]
Think = Annotated[
    bool | None,
    typer.Option("--think/--no-think", help="Thinking mode, where the model has a switch.", rich_help_panel=_MODEL),
]
System = Annotated[str | None, typer.Option("--system", help="System prompt.", rich_help_panel=_MODEL)]
Zoo = Annotated[
    Path | None,
    typer.Option("--zoo", help="Folder of zoo entries, searched first.", rich_help_panel=_MODEL),
]
Recipes = Annotated[
    Path | None,
    typer.Option("--recipes", help="Folder of recipes, searched first.", rich_help_panel=_MODEL),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="Eviction method; see `vase methods list`.",
        show_default=_recipes_or(Recipe.method),
        rich_help_panel=_METHOD,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", "-b", help="Tokens kept per KV head, or 4x: a quarter of the full cache.", rich_help_panel=_METHOD
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        help="Eviction method, or several: full,vase-attnv; see `vase methods list`.",
        show_default=_recipes_or(Recipe.method),
        rich_help_panel=_METHOD,
    ),
]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        "-b",
        help="Tokens kept per KV head, or 4x: a quarter of the full cache; or several: 2x,4x.",
        rich_help_panel=_METHOD,
    ),
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="Option of the method; may be repeated.", rich_help_panel=_METHOD
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        help="Tokens between cuts; the last so many always stay.",
        show_default=_recipes_or(Recipe.window),
        rich_help_panel=_METHOD,
    ),
]
Temperature = Annotated[float | None, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int | None, typer.Option("--top-k", help="0 switches it off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float | None, typer.Option("--top-p", help="1 switches it off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float | None, typer.Option("--min-p", help="0 switches it off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Of tokens and eviction.", show_default=_recipes_or(Recipe.seed), rich_help_panel=_SAMPLING
    ),
]
MaxNewTokens = Annotated[
    int | None, typer.Option("--max-new-tokens", help="Limit on generated tokens.", rich_help_panel=_SAMPLING)
]
MaxTotalTokens = Annotated[
    int | None,
    typer.Option("--max-total-tokens", help="Limit on prompt and generated tokens.", rich_help_panel=_SAMPLING),
]
Slots = Annotated[
    str | None,
    typer.Option(
        "--slots",
        help=f"Sequences at a time; {AUTO_SLOTS}.",
        show_default=_recipes_or("auto"),
        rich_help_panel=_MACHINE,
    ),
]
DType = Annotated[
    str | None,
    typer.Option("--dtype", help="bfloat16, float16, float32; auto is float32 on a CPU.", rich_help_panel=_MACHINE),
]
AttentionName = Annotated[
    str | None, typer.Option("--attention", help="auto, flash_attention_2, triton or sdpa.", rich_help_panel=_MACHINE)
]
Compile = Annotated[
    str | None,
    typer.Option(
        "--compile",
        help="torch.compile of decode steps: on, off; auto is for long runs of families without kernels of ours.",
        rich_help_panel=_MACHINE,
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", rich_help_panel=_MACHINE)]
Out = Annotated[Path, typer.Option("--out", help="Folder of all runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]


def slot_count(given: str | None) -> Scalar | None:
    """``--slots`` as a number where it is one; the recipe's rules judge it."""
    return None if given is None else parse_scalar(given)


def listed(values: Sequence[str] | None) -> list[str]:
    """An option's values, given one by one or with commas between them; each once."""
    return list(dict.fromkeys(one.strip() for value in values or () for one in value.split(",")))


def overrides(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A command's parameters as the recipe's keys; those that a recipe does not have are left out."""
    renamed = {key: parameters[key] for key in (*RECIPE_KEYS, *SAMPLING_KEYS) if key in parameters and key != "tasks"}
    return renamed | {
        "system_prompt": parameters["system"],
        "method_options": dict(parse_option(text) for text in parameters["option"] or ()) or None,
        "slots": slot_count(parameters["slots"]),
        "compile": parameters["compile_decode"],
    }


def resolve(
    recipe: str | None, given: Mapping[str, Any], *, zoo: Path | None, recipes: Path | None
) -> tuple[Recipe, ModelEntry]:
    """The recipe and model that the options name; a shadowed built-in is said on stderr."""
    resolved, entry, notes = Catalog.open(zoo=zoo, recipes=recipes).resolve(recipe, given)
    print_notes(notes)
    return resolved, entry


def compared(
    recipe: str | None,
    given: Mapping[str, Any],
    *,
    methods: Sequence[str],
    budgets: Sequence[str],
    zoo: Path | None,
    recipes: Path | None,
) -> list[tuple[Recipe, ModelEntry]]:
    """A recipe for every method at every budget that is named, here or in the recipe; ``full`` has none, so once.

    Of several methods each gets those of the options that it has.
    """
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    named_methods: Sequence[str | None] = listed(methods) or [None]
    named_budgets: Sequence[int | str | None] = listed(budgets) or [None]
    if not methods and not budgets:
        base, _, _ = catalog.resolve(recipe, {**given, "method": None, "budget": None})
        named_methods, named_budgets = base.compare.methods or [None], base.compare.budgets or [None]
    options, several = given.get("method_options"), [name for name in named_methods if name is not None]
    own_options: dict[str, dict[str, Scalar]] = {}
    shared: list[str] = []
    if options and len(several) > 1:
        own_options, shared = share_out(several, options)
    pairs: dict[tuple[str | None, int | str | None], tuple[Recipe, ModelEntry]] = {}
    for budget in named_budgets:
        for method in named_methods:
            own = None if method == "full" and len(named_methods) > 1 else budget
            if (method, own) not in pairs:
                changes = {"method": method, "budget": own, "method_options": own_options.get(method or "", options)}
                resolved, entry, notes = catalog.resolve(recipe, {**given, **changes})
                print_notes([] if pairs else notes)
                pairs[method, own] = resolved, entry
    print_notes(shared)
    return list(pairs.values())


def assemble(recipe: Recipe, entry: ModelEntry, *, beside: "Assembly | None" = None) -> "Assembly":
    """Bring recipe and model together; this is where torch is imported."""
    from vase_cli.engine.assembly import Assembly

    return Assembly(recipe, entry, beside=beside)
