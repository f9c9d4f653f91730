"""The exported model in the servers that `serving_peers.py` measures Towerpack against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ROW = (28, 28, 1)


def load(folder: str, name: str) -> Callable[[Any], dict[str, np.ndarray]]:
    """Return a function from a batch to arrays by name: a signature of a SavedModel."""
    import tensorflow as tf

    model = tf.saved_model.load(folder)
    signature = model.signatures[name]
    (key,) = signature.structured_input_signature[1]

    def call(batch: Any, _: Any = model) -> dict[str, np.ndarray]:
        outputs = signature(**{key: tf.constant(batch)})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return call


def row(file: bytes, name: str) -> Any:
    """Return a row of a batch: a picture file as it is, or a tensor."""
    return file if name == "files" else np.frombuffer(file, np.float32).reshape(ROW)
