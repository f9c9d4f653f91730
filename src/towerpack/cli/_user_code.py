"""Modules of the user that are named on the command line."""

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
    """Run and return the module of this name, or in the file `….py`.

    Raises:
        ConfigError: There is no such module, or its code raised.
    """
    if where.endswith(".py"):
        return _module_of_file(Path(os.path.expanduser(where)))
    # Console scripts, unlike `python -m`, do not look in the working directory. It comes last, so
    # that no file there replaces a package.
    sys.path.append(os.getcwd())
    if not all(part.isidentifier() for part in where.split(".")):
        raise ConfigError(f"{where!r} is not the name of a module.", expected=CODE_FORM)
    try:
        found = importlib.util.find_spec(where)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            f"There is no module {where!r}.",
            expected=CODE_FORM,
            fix="run it in the directory that holds the module, or name the file",
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
    # It may import its neighbours, as when it is run as a script.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    run_user_code(lambda: loader.exec_module(module), f"importing {path} raised")
    # Worker processes cannot import it by name: its functions travel whole.
    cloudpickle: Any = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    return module


def run_user_code(function: Any, what: str) -> Any:
    """Call the user's code; report its errors with the traceback that leads into it."""
    try:
        return function()
    except TowerpackError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} {type(error).__name__}: {error}",
            fix="see the traceback below",
            details=traceback_of(error),
        ) from error


def model_of(target: str) -> Any:
    """Return the model that a script or module defines, or makes.

    Raises:
        ConfigError: There is no model, or there are several and none is named.
    """
    from towerpack.describe import is_model
    from towerpack.model import ModelDesc

    where, _, name = target.rpartition(":")
    if not where:
        where, name = target, ""
    if not where.endswith(".py") and not name:
        raise ConfigError(
            f"{target!r} is not a script and not a run directory.", expected=MODEL_FORMS
        )
    module = load_module(where)

    def defines(value: Any) -> bool:
        made_here = isinstance(value, type) and value.__module__ == module.__name__
        return is_model(value) or (made_here and issubclass(value, ModelDesc))

    if not name:
        names = [key for key, value in vars(module).items() if defines(value)]
        if len(names) != 1:
            raise ConfigError(
                f"{where} has {'several models' if names else 'no model'}.",
                got=", ".join(names) or None,
                expected="one ModelDesc (or Keras model)",
                fix=f"name {where}:{names[0] if names else 'function_that_returns_a_model'}",
            )
        (name,) = names
    if not hasattr(module, name):
        raise ConfigError(f"{where} has no {name!r}.", fix=did_you_mean(name, vars(module)))
    value = getattr(module, name)
    made = callable(value) and not is_model(value)
    return run_user_code(value, f"{where}:{name} raised") if made else value
