"""Readers of packaged weights, TensorFlow checkpoints and Keras files."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import CheckpointError
from towerpack._core.naming import alike
from towerpack.checkpoint import read_weights
from towerpack.checkpoint.torch_file import check_size, most_bytes
from towerpack.zoo import PRETRAINED, read_pretrained

_TENSORFLOW: Final = re.compile(r"\.(index|meta|data-\d+-of-\d+)$")
_OBJECT: Final = "/.ATTRIBUTES/VARIABLE_VALUE"


Weights = tuple[str, Mapping[str, np.ndarray], bool]


def read_arrays(source: Any) -> Weights:
    """Read weights that are packaged, or in a file of TensorFlow, Keras or Towerpack.

    Returns:
        A description of the source, arrays by name, and whether the names are those of a Keras
            model that may be a part of the trained model.
    """
    return _foreign(source) or (*read_weights(source), False)


def _foreign(source: Any) -> Weights | None:
    name = alike(source, PRETRAINED) if isinstance(source, str) else None
    if name and (name == source or not Path(source).exists()):
        return f"the package of {name}", read_pretrained(name), False
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(os.fspath(source))
    if path.suffix in (".keras", ".h5") and path.exists():
        return str(path), _read(path, _keras), True
    if path.name == "checkpoint" and not path.is_dir():
        # TensorFlow's list of checkpoints, or else a run directory with such a file.
        import tensorflow as tf

        latest: Any = _read(path.parent, tf.train.latest_checkpoint)
        return _foreign(latest) or (*read_weights(path.parent), False)
    prefix = _TENSORFLOW.sub("", str(path))
    if Path(f"{prefix}.index").exists():
        return prefix, _read(Path(prefix), _tensorflow), False
    return None


def _read(path: Path, reader: Any) -> Any:
    try:
        return reader(path)
    except Exception as error:  # damage raises errors of many kinds
        raise CheckpointError(f"{path} cannot be read: {error}.") from error


def _tensorflow(prefix: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    try:
        reader: Any = tf.train.load_checkpoint(str(prefix))
        numbers = {n: t for n, t in reader.get_variable_to_dtype_map().items() if t != tf.string}
        return {name.removesuffix(_OBJECT): reader.get_tensor(name) for name in numbers}
    except (tf.errors.OpError, RuntimeError) as error:
        raise ValueError(error) from error


def _keras(path: Path) -> dict[str, np.ndarray]:
    """Read a Keras file. Names are `conv1/0` if the file numbers variables, else `conv1/kernel`."""
    import h5py

    left = most_bytes(path.stat().st_size)
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            check_size((e.file_size for e in archive.infolist()), path.stat().st_size)
            content = archive.read("model.weights.h5")
    else:
        content = path.read_bytes()
    arrays: dict[str, np.ndarray] = {}

    def array(value: Any) -> np.ndarray:
        nonlocal left
        if value.external or value.is_virtual:
            raise ValueError(f"the values of {value.name} are in another file")
        left -= value.nbytes
        if left < 0:
            raise ValueError("its weights are far larger than the file")
        return np.asarray(value)

    with h5py.File(io.BytesIO(content), "r") as file:

        def visit(name: str, entry: Any) -> None:
            if name.endswith("vars") and "name" in entry.attrs:
                for number, value in entry.items():
                    arrays[f"{entry.attrs['name']}/{number}"] = array(value)

        file.visititems(visit)
        layers: Any = file.get("model_weights", file)
        for layer in map(_text, layers.attrs.get("layer_names", ())):
            for weight in map(_text, layers[layer].attrs["weight_names"]):
                parts = weight.removesuffix(":0").split("/")
                below = parts[parts.index(layer) :] if layer in parts else [layer, parts[-1]]
                arrays["/".join(below)] = array(layers[layer][weight])
    if not arrays:
        raise ValueError("it has no Keras layers")
    return arrays


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
