"""Reading weights from any source of `SmartInit`, and writing weights to files."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing, require
from towerpack._core.files import replacing

if TYPE_CHECKING:
    import numpy as np

    Weights = Mapping[str, np.ndarray]


def read_weights(source: str, *, tag: str | None = None, ema: bool = False) -> Weights:
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import load_checkpoint
        from towerpack.checkpoint.torch_file import check_size
        from towerpack.training.weights.read_foreign import read_arrays
    if tag is not None or ema:
        checkpoint = load_checkpoint(source, tag=tag)
        return checkpoint.averaged if ema else checkpoint.model
    _, weights, is_part = read_arrays(source)
    if not is_part or Path(source).suffix != ".keras":
        return weights
    keras: Any = require("keras", extra="tf", needed_for="A file of Keras")
    tf: Any = require("tensorflow", extra="tf", needed_for="A file of Keras")
    try:
        with zipfile.ZipFile(source) as archive, tf.Graph().as_default():
            # In a graph, variables need no memory, however large the file says they are.
            variables = keras.models.model_from_json(archive.read("config.json")).variables
        check_size((8 * math.prod(v.shape) for v in variables), os.path.getsize(source))
        model = keras.saving.load_model(source, compile=False)
    # Unknown layers, or a damaged configuration: keep the numbers as names of weights.
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError, ImportError):
        return weights
    return {v.path.removeprefix(f"{model.name}/"): v.value.numpy() for v in model.variables}


def write_weights(path: Path, weights: Weights) -> None:
    """Write weights to a new npz or safetensors file."""
    import numpy as np

    from towerpack._core.npz import save_arrays
    from towerpack.checkpoint.tensors import specs_of, write_tensors

    if path.suffix not in (".npz", ".safetensors") or path.exists():
        raise ConfigError(
            f"The output {path} must be a new .npz or .safetensors file, but "
            + ("it exists." if path.exists() else f"the suffix is {path.suffix!r}."),
            fix="pass a different --output",
        )
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    kinds = {name: dtype for name, (_, dtype) in specs_of(arrays, "weights").items()}
    if path.suffix == ".npz" and "bfloat16" in kinds.values():
        raise ConfigError("npz files do not support bfloat16.", fix="pass -o weights.safetensors")
    if path.suffix == ".npz":
        save_arrays(path, arrays)
        return
    with replacing(path) as part:
        write_tensors(part, arrays)


def is_float(array: np.ndarray) -> bool:
    """Return whether an array contains floats, including bfloat16."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
