"""Registry of applications, and search for recipes by name, file or run directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean
from towerpack._core.remote_path import is_url
from towerpack.apps._config import AppConfig
from towerpack.config import Registry, code_in, from_folder, load, read_yaml
from towerpack.training.state.run_dir import run_files
from towerpack.zoo import IMAGENET, PRETRAINED

if TYPE_CHECKING:
    from towerpack.apps._inputter import Inputter
    from towerpack.apps._modeler import Display, Modeler

RECIPE: Final = "recipe.yaml"
_PARTS: Registry[Any] = Registry("part of an application", {})
_PACKAGED = Path(__file__).parent


@dataclass(frozen=True)
class Application:
    """Parts of a task. All but `config` may be import paths `module:name`, imported on first use.

    Attributes:
        config: Class of the task's recipes.
        inputter: Function `config -> Inputter`.
        modeler: Function `(config, inputter) -> Modeler`.
        display: Function `(config, inputter) -> Display`.
    """

    config: type[AppConfig]
    inputter: str | Callable[[Any], Inputter]
    modeler: str | Callable[[Any, Any], Modeler]
    display: str | Callable[[Any, Any], Display]


def application(
    package: str, config: type[AppConfig], prefix: str, inputter: str = "make_inputter"
) -> Application:
    """Create the application whose classes `PREFIXModeler` and `PREFIXDisplay` are in a package."""
    parts = [f"{package}:{name}" for name in (inputter, f"{prefix}Modeler", f"{prefix}Display")]
    return Application(config, *parts)


_TASKS: Final = (
    "classification", "segmentation", "detection", "instances",
    "style_transfer", "text_classification", "text_generation",
)  # fmt: skip
APPLICATIONS: Registry[Application] = Registry(
    "task", {task: f"towerpack.apps.{task}:APPLICATION" for task in _TASKS}
)


@dataclass(frozen=True)
class Recipe:
    """Validated configuration and its origin.

    Attributes:
        application: Application of the recipe's task.
        config: Configuration with the values of all keys.
        name: Name of the recipe.
        run_dir: Run directory that contains the recipe; None for other recipes.
    """

    application: Application
    config: Any
    name: str
    run_dir: str | Path | None

    def inputter(self) -> Inputter:
        """Create the inputter, which reads the data."""
        return _PARTS.get(self.application.inputter)(self.config)

    def modeler(self, inputter: Inputter) -> Modeler:
        """Create the modeler, which contains the model.

        Args:
            inputter: Data of the recipe.
        """
        return _PARTS.get(self.application.modeler)(self.config, inputter)

    def display(self, inputter: Inputter) -> Display:
        """Create the display of inference results.

        Args:
            inputter: Data of the recipe.
        """
        return _PARTS.get(self.application.display)(self.config, inputter)


def find_recipe(
    where: str | os.PathLike[str], overrides: Sequence[str] = (), *, allow_code: bool = False
) -> Recipe:
    """Load a recipe by its name, file or run directory.

    Args:
        where: Name of a packaged recipe (`recipe_names`), YAML file, run directory or URL. Relative
            paths in a YAML file are relative to its folder. In a run directory, they are relative
            to the working directory.
        overrides: Strings `key=value`.
        allow_code: Whether to import code that the file names as `module:name`. Such a file can
            run any program, and so can a run directory with a copy of it. Code that `overrides`
            name is always imported.

    Raises:
        ConfigError: There is no such recipe, or it is invalid, or it names code.
    """
    name, path = str(where), run_files(where)
    # A data folder may contain a recipe too: `towerpack data import` writes one.
    run_dir = None if not _is_run(path) else name if is_url(where) else path
    packaged = _packaged()
    name = alike(name, packaged) or name
    if path.is_dir():
        path /= RECIPE
    elif not path.is_file() and name in packaged:
        path = packaged[name]
    if not path.is_file():
        raise ConfigError(
            f"{name} does not contain {RECIPE}."
            if path.name == RECIPE
            else f"There is no recipe {name!r}.",
            expected="a name, a .yaml file, or the directory of a run of `towerpack train`",
            fix=did_you_mean(name, packaged),
        )
    values = read_yaml(path)
    if "task" not in values:
        raise ConfigError(
            f"The recipe {path} must have a key 'task'.", expected="task: classification"
        )
    code = {} if allow_code else code_named_in(values)
    if code:
        raise ConfigError(
            f"{path} names code (module:name) that is not part of towerpack.",
            got="; ".join(f"{key}: {', '.join(names)}" for key, names in code.items()),
            fix="add --allow-code (in Python, allow_code=True) if you trust the file",
        )
    application = APPLICATIONS.get(str(values["task"]))
    if path not in packaged.values() and not _is_run(path.parent):
        data = values.get("data")
        if isinstance(data, dict) and data.keys() & {"train", "val", "test"}:
            data.setdefault("path", ".")
        values = from_folder(application.config, values, path.parent, [*PRETRAINED, IMAGENET])
    config = load(application.config, values, overrides, where=str(path))
    name = path.parent.name if path.name == RECIPE else path.stem
    return Recipe(application, config, name, run_dir)


def code_named_in(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the import paths (`module:name`) in the content of a recipe file, by key."""
    return code_in(AppConfig, values) or code_in(
        APPLICATIONS.get(str(values.get("task"))).config, values
    )


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "checkpoints").is_dir()


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    return list(_packaged())


def _packaged() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_PACKAGED.glob("*/recipes/*.yaml"))}
