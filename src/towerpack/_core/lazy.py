"""Packages that are tables of names: each is loaded when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from towerpack._core.extras import explain_missing
from towerpack._core.old_arguments import accept


def lazy(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: Its `__name__`.
        names: Public names, by the module that each lives in; `.module` is one of the package.
        modules: Modules in the package that are public as a whole; `import *` leaves them out.
    """
    homes = {name: module for module, listed in names.items() for name in listed}

    def load(name: str) -> Any:
        if name not in modules and name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        # Some packages load what they export only when it is asked for.
        with explain_missing(f"{package}.{name}"):
            if name in modules:
                return importlib.import_module(f"{package}.{name}")
            value = getattr(importlib.import_module(homes[name], package), name)
        accept(value)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return load, listing, list(homes)
