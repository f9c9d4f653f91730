"""Packages that list their public names in `__init__.pyi` and load each on first use."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack._core.extras import explain_missing
from towerpack._core.old_arguments import accept

_IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|.*)", re.MULTILINE)


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, read from its `__init__.pyi`.

    The stub imports each public name: `from package._module import Name as Name`. Modules
    (`from package import module as module`) are not in `__all__`.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi").read_text()
    imports = [(module, re.findall(r" as (\w+)", names)) for module, names in _IMPORT.findall(stub)]
    homes = {name: module for module, names in imports for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        # Some packages load optional dependencies only when a name is used.
        with explain_missing(f"{package}.{name}"):
            if homes[name] == package:
                return importlib.import_module(f"{package}.{name}")
            value = getattr(importlib.import_module(homes[name]), name)
        accept(value)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listing, [name for name, module in homes.items() if module != package]
