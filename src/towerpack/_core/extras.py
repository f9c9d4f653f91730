import contextlib
import importlib
import re
import sys
from collections.abc import Generator
from types import ModuleType

from towerpack._core.errors import MissingExtraError
from towerpack._core.native_log import quiet_start

# Import names that differ from the names of the distributions.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
    "zmq": "pyzmq",
}
# Extras for a single service, which also install pillow.
_SERVICES = ("mlflow", "wandb")


def requirements() -> dict[str, str]:
    """Return the packages that Towerpack depends on, and for each its smallest pip extra.

    The extra is "" for packages that are always installed. Return an empty dict if Towerpack runs
    from source code that is not installed.
    """
    from importlib import metadata  # Slow to import

    names_of: dict[str, set[str]] = {}
    listed: list[str] | None = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        listed = metadata.requires("towerpack")
    for requirement in listed or ():
        what, _, condition = requirement.partition(";")
        extra = condition.partition("extra == ")[2].strip("'\"")
        names_of.setdefault(extra, set()).add(re.split(r"[^\w.-]", what)[0])
    extra_of: dict[str, str] = {}
    extras = sorted(names_of.keys() - {"all", "cuda", "dev"})
    for extra in sorted(extras, key=lambda e: (e != "", e in _SERVICES, len(names_of[e]))):
        for name in sorted(names_of[extra]):
            extra_of.setdefault(name, extra)
    return extra_of


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import a module. If the import fails, raise an error that names the pip extra to install."""
    try:
        first = module == "tensorflow" and module not in sys.modules
        with quiet_start() if first else contextlib.nullcontext():
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_for} needs the package '{module}', which cannot be imported: {error}.",
            fix=f'pip install "towerpack[{extra}]"',
        ) from error


@contextlib.contextmanager
def explain_missing(needed_for: str) -> Generator[None]:
    """Convert a failed import of an optional package to an error that names its pip extra."""
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
