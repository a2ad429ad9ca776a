"""``vase recipes``: recipes, and what one resolves to."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli import catalog_files
from vase_cli.cli.catalog_files import Destination, Force, Names, RecipesFolder, ZooFolder, cell, value_rows
from vase_cli.cli.output import AsJson, print_columns, print_json, print_list, print_notes
from vase_cli.config.budget import resolve_budget
from vase_cli.config.catalog import Catalog, CatalogFile
from vase_cli.config.method_options import make_method
from vase_cli.config.schema import Recipe

_Name = Annotated[str, typer.Argument(help="Recipe name, or a .yaml file.")]

app = typer.Typer(help="List recipes, show one resolved, check or copy their files.", no_args_is_help=True)


@app.command("list")
def list_recipes(as_json: AsJson = False, zoo: ZooFolder = None, recipes: RecipesFolder = None) -> None:
    """One row for each recipe: name, model, method, budget, tasks, where the file is."""
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    entries = []
    for file, recipe in catalog_files.loaded(catalog, "recipes", partial(_resolved, catalog)):
        row = (recipe.name, recipe.model, recipe.method, _budget(recipe), cell(recipe.tasks), file.source)
        entries.append((dataclasses.asdict(recipe), row))
    print_list(("NAME", "MODEL", "METHOD", "BUDGET", "TASKS", "FILE"), entries, as_json=as_json)


@app.command("show")
def show_recipe(name: _Name, as_json: AsJson = False, zoo: ZooFolder = None, recipes: RecipesFolder = None) -> None:
    """Every value that a run of the recipe has, and where it comes from."""
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    recipe, entry = catalog.resolve(name, {})
    print_notes(catalog.notes(name, entry))
    if as_json:
        print_json(dataclasses.asdict(recipe))
    else:
        print_columns(("KEY", "VALUE", "FROM"), value_rows(recipe, skip="name"))


@app.command("validate")
def validate_recipes(names: Names = None, zoo: ZooFolder = None, recipes: RecipesFolder = None) -> None:
    """Check recipes with their model, method options, tasks and budgets; the exit code is 2 if any is wrong."""
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    catalog_files.validate(catalog, "recipes", names or [], lambda file: _check(_resolved(catalog, file)))


@app.command("copy")
def copy_recipe(
    name: _Name, destination: Destination = None, force: Force = False, recipes: RecipesFolder = None
) -> None:
    """Copy a recipe into your own folder, to edit it there; prints where it is."""
    catalog_files.copy(Catalog.open(recipes=recipes).find("recipes", name), destination, force=force)


def _resolved(catalog: Catalog, file: CatalogFile) -> Recipe:
    return catalog.resolve(str(file.path), {}).recipe


def _check(recipe: Recipe) -> None:
    """Check what a run checks before it loads the model, except problem files, which may be elsewhere."""
    from vase_cli.tasks.base import resolve_tasks

    method = make_method(recipe)
    for task in resolve_tasks([task for task in recipe.tasks if not Path(task).suffix]):
        spec, window = recipe.budget_for(task.name), recipe.window
        if method.evicts and spec is not None:
            limit, lengths = recipe.max_total_tokens or task.max_total_tokens, recipe.dense_tokens
            budget = resolve_budget(spec, task=task.name, window=window, token_limit=limit, dense_tokens=lengths)
            method.check(budget.tokens, window)


def _budget(recipe: Recipe) -> str:
    budgets = [recipe.budget_for(task) for task in recipe.tasks] or [*recipe.budgets.values()]
    return ", ".join(dict.fromkeys(map(str, budgets))) if recipe.budgets else cell(recipe.budget)
