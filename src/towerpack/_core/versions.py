"""Which versions are installed, without importing anything."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Final

NOTED: Final = ("towerpack", "numpy", "safetensors", "tensorflow", "keras")
"""The distributions whose versions runs and checkpoints note."""


def version_of(distribution: str) -> str | None:
    """The installed version; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def library_versions(distributions: Sequence[str] = NOTED) -> dict[str, str]:
    """Versions of Python and of those distributions that are installed."""
    found = {name: version_of(name) for name in distributions}
    installed = {name: version for name, version in found.items() if version is not None}
    return {"python": platform.python_version(), **installed}
