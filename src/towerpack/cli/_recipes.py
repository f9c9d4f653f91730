from __future__ import annotations

from towerpack._core.extras import explain_missing
from towerpack.cli._console import console, escape, table
from towerpack.cli._recipe import open_recipe


def recipes() -> None:
    """List the packaged recipes and their measured results."""
    with explain_missing("Applications"):
        from towerpack.apps import recipe_names
    rows = table("recipe", "task", "result")
    for name in recipe_names():
        config = open_recipe(name, None).config
        reached = config.reached
        if not isinstance(reached, str):
            reached = ", ".join(f"{k} {v}" for k, v in reached.items())
        rows.add_row(*map(escape, (name, config.title, reached)))
    console().print(rows)
