"""Import of modules and scripts that the command line names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.naming import did_you_mean
from towerpack.cli._tracebacks import traceback_of

CODE_FORM = "module:function, or path/to/file.py:function"
MODEL_FORMS = "path/to/file.py, file.py:Name, module:Name, or a run directory"


def load_module(where: str) -> ModuleType:
    """Import a module by its name, or a script by its path."""
    if where.endswith(".py"):
        return _module_of_file(Path(os.path.expanduser(where)))
    # Console scripts do not search the working directory, unlike `python -m`. Append it, so that
    # its files do not hide installed packages.
    sys.path.append(os.getcwd())
    if not all(part.isidentifier() for part in where.split(".")):
        raise ConfigError(f"{where!r} is not the name of a module.", expected=CODE_FORM)
    try:
        spec = importlib.util.find_spec(where)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ConfigError(
            f"There is no module {where!r}.",
            expected=CODE_FORM,
            fix="run the command in the directory of the module, or pass the path of its file",
        )
    return run_user_code(lambda: importlib.import_module(where), f"importing {where} raised")


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.", expected=CODE_FORM)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or (loader := spec.loader) is None:
        raise ConfigError(f"{path} cannot be imported.", expected=CODE_FORM)
    module = importlib.util.module_from_spec(spec)
    # As in a script, files of the same directory can be imported.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    run_user_code(lambda: loader.exec_module(module), f"importing {path} raised")
    # Worker processes cannot import the module by name, so its functions are pickled by value.
    cloudpickle: Any = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    return module


def run_user_code(function: Any, what: str) -> Any:
    """Call a user's function. Report its errors with the traceback in the user's code."""
    try:
        return function()
    except TowerpackError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} {type(error).__name__}: {error}",
            fix="correct the error in your code that is shown below",
            details=traceback_of(error),
        ) from error


def model_of(target: str) -> Any:
    """Return the model that `file.py:Name` or `module:Name` names.

    The name may be a class, a model object, or a function that returns one.
    """
    from towerpack.describe import is_model
    from towerpack.model import ModelDesc

    where, _, name = target.rpartition(":")
    if not where:
        where, name = target, ""
    if not where.endswith(".py") and not name:
        raise ConfigError(
            f"{target!r} is neither a script nor a run directory.", expected=MODEL_FORMS
        )
    module = load_module(where)

    def defines(value: Any) -> bool:
        is_local = isinstance(value, type) and value.__module__ == module.__name__
        return is_model(value) or (is_local and issubclass(value, ModelDesc))

    if not name:
        names = [key for key, value in vars(module).items() if defines(value)]
        if len(names) != 1:
            raise ConfigError(
                f"{where} must define one model, but it defines {len(names) or 'none'}.",
                got=", ".join(names) or None,
                expected="one ModelDesc (or Keras model)",
                fix=f"pass {where}:{names[0] if names else 'function_that_returns_a_model'}",
            )
        (name,) = names
    if not hasattr(module, name):
        raise ConfigError(f"{where} has no {name!r}.", fix=did_you_mean(name, vars(module)))
    value = getattr(module, name)
    if callable(value) and not is_model(value):
        return run_user_code(value, f"{where}:{name} raised")
    return value
