import functools
import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Final

NOTED: Final = ("towerpack", "numpy", "safetensors", "tensorflow", "keras")
"""Distributions whose versions runs and checkpoints record."""


@functools.cache  # each save of a checkpoint asks, and a search takes 0.3 ms
def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def library_versions(distributions: Sequence[str] = NOTED) -> dict[str, str]:
    versions = {name: version_of(name) for name in distributions}
    installed = {name: version for name, version in versions.items() if version is not None}
    return {"python": platform.python_version(), **installed}
