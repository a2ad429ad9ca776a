"""``vase recipes``: the runs that are written down, and one of them resolved."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from vase_cli.cli._files import (
    AsJson,
    Destination,
    Force,
    Names,
    RecipesFolder,
    ZooFolder,
    cell,
    copy,
    flatten,
    load_each,
    origin_of,
    validate,
)
from vase_cli.cli.output import print_columns, print_notes
from vase_cli.config.budget import resolve_budget
from vase_cli.config.catalog import Catalog, CatalogFile
from vase_cli.config.method_options import make_method
from vase_cli.config.resolve import load_recipe, resolve_recipe
from vase_cli.config.schema import Recipe

app = typer.Typer(help="List recipes, show one resolved, check or copy their files.", no_args_is_help=True)


@app.command("list")
def list_recipes(as_json: AsJson = False, zoo: ZooFolder = None, recipes: RecipesFolder = None) -> None:
    """One row for each recipe: name, model, method, budget, tasks, where the file is."""
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    loaded = load_each(catalog, "recipes", lambda file: _resolved(catalog, file))
    if as_json:
        for _, recipe in loaded:
            typer.echo(json.dumps(dataclasses.asdict(recipe), ensure_ascii=False))
        return
    rows = [("NAME", "MODEL", "METHOD", "BUDGET", "TASKS", "FILE")]
    for file, recipe in loaded:
        rows.append((recipe.name, recipe.model, recipe.method, _budget(recipe), cell(recipe.tasks), file.source))
    print_columns(rows[0], rows[1:])


@app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="Recipe name, or a .yaml file.")],
    as_json: AsJson = False,
    zoo: ZooFolder = None,
    recipes: RecipesFolder = None,
) -> None:
    """Every value that a run of the recipe has, and where it comes from."""
    recipe, _, notes = Catalog.open(zoo=zoo, recipes=recipes).resolve(name, {})
    print_notes(notes)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(recipe), ensure_ascii=False))
        return
    rows = [("KEY", "VALUE", "FROM")]
    for key, value in flatten(recipe, skip=("name", "origins")).items():
        rows.append((key, cell(value), origin_of(recipe.origins, key)))
    print_columns(rows[0], rows[1:])


@app.command("validate")
def validate_recipes(names: Names = None, zoo: ZooFolder = None, recipes: RecipesFolder = None) -> None:
    """Check recipes with their model, method options, tasks and budgets; exit code 2 if any is wrong."""
    catalog = Catalog.open(zoo=zoo, recipes=recipes)
    validate(catalog, "recipes", names or [], lambda file: _check(_resolved(catalog, file)))


@app.command("copy")
def copy_recipe(
    name: Annotated[str, typer.Argument(help="Recipe name, or a .yaml file.")],
    destination: Destination = None,
    force: Force = False,
    recipes: RecipesFolder = None,
) -> None:
    """Copy a recipe into your own folder, to edit it there; prints where it is."""
    file = Catalog.open(recipes=recipes).find("recipes", name)
    typer.echo(copy(file, destination, force=force))


def _resolved(catalog: Catalog, file: CatalogFile) -> Recipe:
    written = load_recipe(file.path, file.name)
    return resolve_recipe(written, catalog.find_model(written.values["model"]), {})


def _check(recipe: Recipe) -> None:
    """Everything that a run checks before it loads the model, but files of problems, which may be elsewhere."""
    from vase_cli.tasks.base import resolve_tasks

    method = make_method(recipe)
    registered = [task for task in recipe.tasks if not Path(task).suffix]
    limits = {task.name: task.max_total_tokens for task in resolve_tasks(registered)}
    for task, limit in limits.items():
        spec = recipe.budget_for(task)
        if method.evicts and spec is not None:
            budget = resolve_budget(
                spec,
                task=task,
                window=recipe.window,
                token_limit=recipe.max_total_tokens or limit,
                dense_tokens=recipe.dense_tokens,
            )
            method.check(budget.tokens, recipe.window)


def _budget(recipe: Recipe) -> str:
    if not recipe.budgets:
        return cell(recipe.budget)
    per_task = [str(recipe.budget_for(task)) for task in recipe.tasks] or [
        str(budget) for budget in recipe.budgets.values()
    ]
    return ", ".join(dict.fromkeys(per_task))
