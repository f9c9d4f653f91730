"""Towerpack: data flows, named layers, towers, trainers and callbacks for TensorFlow.

    import towerpack as tp

The names below are loaded when they are first used, so `import towerpack` stays cheap and loads no
framework. `from towerpack import *` asks for all of them, and so loads TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. `make public-names` writes what follows from this table: the types
# in `__init__.pyi` and the list that a test pins.
_NAMES: dict[str, list[str]] = {
    "towerpack._core.errors": [
        "BatchError",
        "CallbackError",
        "CheckpointError",
        "CheckpointMismatchError",
        "ConfigError",
        "DataFlowError",
        "InternalError",
        "LayerError",
        "MapError",
        "MissingExtraError",
        "NumericsError",
        "SpecError",
        "StateError",
        "TowerpackError",
    ],
}
# Packages and modules that are public as a whole: `tp.dataflow`.
_MODULES: list[str] = []

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _load(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = getattr(_load(_HOME[name]), name)
    globals()[name] = value
    return value


def _load(module: str) -> Any:
    from towerpack._core.extras import explain_missing

    with explain_missing(module):
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
