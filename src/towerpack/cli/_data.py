"""`towerpack data`: look at data and measure them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from towerpack.cli._recipe import load_recipe

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

data_app = typer.Typer(help="Look at data and measure them.", no_args_is_help=True)


@data_app.callback()
def _data() -> None:  # pyright: ignore[reportUnusedFunction]
    """Look at data and measure them."""


def flow_of(target: str) -> DataFlow:
    """The flow of a recipe."""
    return load_recipe(target)
