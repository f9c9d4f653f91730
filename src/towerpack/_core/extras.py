"""Optional dependencies: one sentence where one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from towerpack._core.errors import MissingExtraError


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import `module` or say which extra brings it.

    Raises:
        MissingExtraError: The module, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_for} needs the package '{module}', which cannot be imported: {error}.",
            fix=f'pip install "towerpack[{extra}]"',
        ) from error
