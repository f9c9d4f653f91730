"""Optional dependencies, and the error where one is missing."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Generator
from types import ModuleType

from towerpack._core.errors import MissingExtraError
from towerpack._core.native_log import quiet_start

# Packages whose distributions have another name.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
    "zmq": "pyzmq",
}
# Extras for one service each, which also bring pillow.
_SERVICES = ("mlflow", "wandb")


def requirements() -> dict[str, str]:
    """Return the distributions that Towerpack's metadata names, with the smallest extra of each.

    The extra is "" for distributions that are always needed. Nothing is known of sources that run
    without being installed.
    """
    from importlib import metadata  # takes long to load

    names_of: dict[str, set[str]] = {}
    listed: list[str] | None = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        listed = metadata.requires("towerpack")
    for requirement in listed or ():
        what, _, condition = requirement.partition(";")
        extra = condition.partition("extra == ")[2].strip("'\"")
        names_of.setdefault(extra, set()).add(re.split(r"[^\w.-]", what)[0])
    found: dict[str, str] = {}
    extras = sorted(names_of.keys() - {"all", "cuda", "dev"})
    for extra in sorted(extras, key=lambda e: (e != "", e in _SERVICES, len(names_of[e]))):
        for name in sorted(names_of[extra]):
            found.setdefault(name, extra)
    return found


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import `module` or say which extra brings it."""
    try:
        if module == "tensorflow" and module not in sys.modules:
            with quiet_start():
                return importlib.import_module(module)
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_for} needs the package '{module}', which cannot be imported: {error}.",
            fix=f'pip install "towerpack[{extra}]"',
        ) from error


@contextlib.contextmanager
def explain_missing(needed_for: str) -> Generator[None]:
    """Turn the failing import of an optional package into the sentence that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        name = _DISTRIBUTIONS.get(package, package.replace("_", "-"))
        if not (extra := requirements().get(name)):
            raise
        raise MissingExtraError(
            f"{needed_for} needs the package '{package}', which is not installed.",
            fix=f'pip install "towerpack[{extra}]"',
        ) from error
