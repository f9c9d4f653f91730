"""User code that is named on the command line; recipes, which return a data flow."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.naming import did_you_mean
from towerpack.cli._tracebacks import traceback_of

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

_FORM = "module:function, or path/to/file.py:function"


def load_recipe(spec: str) -> DataFlow:
    """The flow that `module:function` or `file.py:function` returns when called without arguments.

    Runs the user's code: importing the module, and the function. Modules are looked for in the
    working directory too.

    Raises:
        ConfigError: There is no such module or function, its code raised, or it returned no flow.
    """
    from towerpack.dataflow import DataFlow

    where, _, name = spec.rpartition(":")
    if not where or not name.isidentifier():
        raise ConfigError(f"{spec!r} is not a recipe.", expected=_FORM)
    module = load_module(where)
    function = getattr(module, name, None)
    if function is not None and not callable(function):
        raise ConfigError(
            f"{name!r} in {where} is no function.",
            got=f"a {type(function).__name__}",
            expected="a function without arguments that returns a DataFlow",
            fix=f"write `def make(): return {name}`, and name `make`"
            if isinstance(function, DataFlow)
            else None,
        )
    if not callable(function):
        raise ConfigError(
            f"{where} has no function {name!r}.",
            expected="a function without arguments that returns a DataFlow",
            fix=did_you_mean(name, vars(module)),
        )
    flow = run_user_code(function, f"{spec} raised")
    if not isinstance(flow, DataFlow):
        raise ConfigError(
            f"{spec} returned a {type(flow).__name__}.",
            expected="a DataFlow",
            fix=f"end {name} with `return ds`",
        )
    return flow


def load_module(where: str) -> ModuleType:
    """The module of this name, or in the file `….py`. Runs it.

    Raises:
        ConfigError: There is none, or its code raised.
    """
    if where.endswith(".py"):
        return _module_of_file(Path(os.path.expanduser(where)))
    # Console scripts, unlike `python -m`, do not look in the working directory. It comes last, so
    # that no file there replaces a package.
    sys.path.append(os.getcwd())
    if not all(part.isidentifier() for part in where.split(".")):
        raise ConfigError(f"{where!r} is not the name of a module.", expected=_FORM)
    try:
        found = importlib.util.find_spec(where)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            f"There is no module {where!r}.",
            expected=_FORM,
            fix="run it in the directory that holds the module, or name the file",
        )
    return run_user_code(lambda: importlib.import_module(where), f"importing {where} raised")


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.", expected=_FORM)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or (loader := spec.loader) is None:
        raise ConfigError(f"{path} cannot be imported.", expected=_FORM)
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
    """Call the user's code; its errors are told with the traceback that leads into it."""
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
