from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing, require
from towerpack._core.native_log import quiet_start
from towerpack.cli._run import files_of

if TYPE_CHECKING:
    from towerpack.apps import Recipe

_OPTIONS: Final = "run_dir", "allow_code", "show_config", "json"


def open_recipe(where: str, settings: list[str] | None, allow_code: bool = False) -> Recipe:
    for name in (setting.partition("=")[0] for setting in settings or []):
        if name in _OPTIONS:
            option = name.replace("_", "-")
            raise ConfigError(f"'{name}' is an option, not a setting.", fix=f"pass --{option}")
    with explain_missing("Applications"):
        from towerpack.apps import find_recipe
    with quiet_start():  # A recipe may name a module that loads TensorFlow.
        return find_recipe(where, settings or [], allow_code=allow_code)


def open_run(
    where: str, settings: list[str] | None, run_dir: str | Path | None, allow_code: bool
) -> tuple[Any, Any]:
    """Create the runner and the display of a run. The name of a recipe means `runs/NAME`."""
    require("tensorflow", extra="apps", needed_for="Applications")
    with explain_missing("Applications"):
        from towerpack.apps import RECIPE, Runner
    recipe = open_recipe(where, settings, allow_code)
    folder = run_dir or recipe.run_dir or Path("runs") / recipe.name
    if (files_of(folder) / RECIPE).is_file():
        recipe = open_recipe(str(folder), settings, allow_code)
    runner = Runner.from_recipe(recipe, folder)
    return runner, recipe.display(runner.inputter)
