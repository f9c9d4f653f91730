"""Applications and their recipes, found by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean
from towerpack.apps._config import AppConfig
from towerpack.config import Registry, code_in, from_folder, load, read_yaml
from towerpack.zoo import PRETRAINED

if TYPE_CHECKING:
    from towerpack.apps._inputter import Inputter
    from towerpack.apps._modeler import Display, Modeler

RECIPE: Final = "recipe.yaml"
_PARTS: Registry[Any] = Registry("part of an application", {})
_PACKAGED = Path(__file__).parent


@dataclass(frozen=True)
class Application:
    """Parts of a task; each may be `module:name`, loaded on first use.

    Attributes:
        config: Class of the task's recipes.
        inputter: Creates the data: `inputter(config)`.
        modeler: Creates the model: `modeler(config, inputter)`.
        display: Creates what shows results: `display(config, inputter)`.
    """

    config: type[AppConfig]
    inputter: str | Callable[[Any], Inputter]
    modeler: str | Callable[[Any, Any], Modeler]
    display: str | Callable[[Any, Any], Display]


_TASKS: Final = (
    "classification",
    "segmentation",
    "detection",
    "style_transfer",
    "text_classification",
    "text_generation",
)
APPLICATIONS: Registry[Application] = Registry(
    "task", {task: f"towerpack.apps.{task}:APPLICATION" for task in _TASKS}
)


@dataclass(frozen=True)
class Recipe:
    """A checked configuration and where it comes from.

    Attributes:
        application: Of its task.
        config: With all values.
        name: For a person.
        run_dir: The run that it was found in; None for a file.
    """

    application: Application
    config: Any
    name: str
    run_dir: Path | None

    def inputter(self) -> Inputter:
        """Make its data."""
        return _PARTS.get(self.application.inputter)(self.config)

    def modeler(self, inputter: Inputter) -> Modeler:
        """Make its model."""
        return _PARTS.get(self.application.modeler)(self.config, inputter)

    def display(self, inputter: Inputter) -> Display:
        """Make what shows its results."""
        return _PARTS.get(self.application.display)(self.config, inputter)


def find_recipe(
    where: str | os.PathLike[str], overrides: Sequence[str] = (), *, allow_code: bool = False
) -> Recipe:
    """The recipe of a name, file or run.

    Args:
        where: A name of the package (`recipe_names`), a YAML file, or a run directory. Relative
            paths in a YAML file start at its folder, those in a run at the working directory.
        overrides: `key=value`.
        allow_code: Import what the file names as `module:name`. Such a file is a program, and so
            is the directory of a run that it is copied to; without it they are data. Names in
            `overrides` are always imported.

    Raises:
        ConfigError: There is none, it does not fit, or it names code.
    """
    given, path = str(where), Path(where).expanduser()
    # A folder of data may have a recipe too: `towerpack data import` writes one.
    run_dir = path if _is_run(path) else None
    packaged = _packaged()
    given = alike(given, packaged) or given
    if path.is_dir():
        path /= RECIPE
    elif not path.is_file() and given in packaged:
        path = packaged[given]
    if not path.is_file():
        raise ConfigError(
            f"There is no recipe {given!r}."
            if path.name != RECIPE
            else f"{given} holds no {RECIPE}.",
            expected="a name, a .yaml file, or the directory of a run that `towerpack train` made",
            fix=did_you_mean(given, packaged),
        )
    values = read_yaml(path)
    if "task" not in values:
        raise ConfigError(f"{path} names no task.", expected="task: classification")
    code = {} if allow_code else code_named_in(values)
    if code:
        raise ConfigError(
            f"{path} names code that is not a part of towerpack.",
            got="; ".join(f"{key}: {', '.join(names)}" for key, names in code.items()),
            fix="add --allow-code (in Python find_recipe(..., allow_code=True)), if you trust the "
            "file as you trust a program",
        )
    application = APPLICATIONS.get(str(values["task"]))
    if path not in packaged.values() and not _is_run(path.parent):
        data = values.get("data")
        if isinstance(data, dict) and data.keys() & {"train", "val", "test"}:
            data.setdefault("path", ".")
        values = from_folder(application.config, values, path.parent, PRETRAINED)
    config = load(application.config, values, overrides, where=str(path))
    name = path.parent.name if path.name == RECIPE else path.stem
    return Recipe(application, config, name, run_dir)


def code_named_in(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return each `module:name` in the content of a recipe's file, by its key."""
    found = code_in(AppConfig, values)
    return found or code_in(APPLICATIONS.get(str(values["task"])).config, values)


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "checkpoints").is_dir()


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return list(_packaged())


def _packaged() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_PACKAGED.glob("*/recipes/*.yaml"))}
