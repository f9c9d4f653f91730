from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack._core.remote_path import is_url
from towerpack.cli._data_files import open_data, open_url
from towerpack.cli._user_code import CODE_FORM, load_module, run_user_code

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

_EXPECTED = "a function without arguments that returns a DataFlow"


def open_flow(target: str) -> DataFlow:
    """Return the dataflow of a file or folder, or the dataflow that a function returns."""
    if is_url(target):
        return open_url(target)
    path = Path(os.path.expanduser(target))
    if path.exists():
        if path.suffix == ".py":
            raise ConfigError(
                f"The script {target} needs the name of a function.",
                fix=f"name the function: {target}:function",
            )
        return open_data(path)
    if ":" in target:
        return call_flow_function(target)
    raise ConfigError(
        f"There is no file or folder {target}.", expected=f"a file, a folder, {CODE_FORM}"
    )


def call_flow_function(spec: str) -> DataFlow:
    """Call `module:function` or `file.py:function`, and return its dataflow."""
    from towerpack.dataflow import DataFlow

    where, _, name = spec.rpartition(":")
    if not where or not name.isidentifier():
        raise ConfigError(f"{spec!r} is not the name of a function.", expected=CODE_FORM)
    module = load_module(where)
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(
            f"{where} has no function {name!r}.",
            expected=_EXPECTED,
            fix=did_you_mean(name, vars(module)),
        )
    if not callable(function):
        raise ConfigError(
            f"{name!r} in {where} must be a function.",
            got=f"a {type(function).__name__}",
            expected=_EXPECTED,
            fix=f"write `def make(): return {name}`, and pass `make`"
            if isinstance(function, DataFlow)
            else None,
        )
    flow = run_user_code(function, f"{spec} raised")
    if not isinstance(flow, DataFlow):
        raise ConfigError(
            f"{spec} must return a DataFlow, got a {type(flow).__name__}.",
            fix=f"end {name} with `return ds`",
        )
    return flow
