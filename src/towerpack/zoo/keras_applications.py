"""Networks of `keras.applications` as networks for image classification: `keras:EfficientNetV2B0`.

Their pixels, names and weights are Keras's. Importing this module loads TensorFlow.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._keras.owned import find_variables
from towerpack.nn import Dropout, FullyConnected, expose
from towerpack.zoo._keras import KerasApplication


class KerasNetwork:
    """Network of `keras.applications` with a new last layer: `network(image, num_classes)`.

    Args:
        name: Name of the network in `keras.applications`, such as 'ConvNeXtTiny'.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._make: Any = getattr(keras.applications, name)
        self._preprocess: Any = sys.modules[self._make.__module__].preprocess_input  # type: ignore[attr-defined]

    def normalize(self, image: tf.Tensor) -> tf.Tensor:
        """Return pixels in the form that the network's ImageNet weights need.

        Args:
            image: RGB images [n, h, w, 3] with values from 0 to 255, of any type.

        Raises:
            ConfigError: The images do not have 3 channels.
        """
        if image.shape[-1] != 3:
            raise ConfigError(
                f"Images for keras:{self.name} must have 3 channels, got {image.shape[-1]}.",
                fix="set data.channels to 3",
            )
        return self._preprocess(tf.cast(image, tf.float32), data_format="channels_last")

    def __call__(self, image: tf.Tensor, num_classes: int, *, dropout: float = 0.2) -> tf.Tensor:
        """Return logits [n, num_classes] for normalized images. Call in a tower.

        Args:
            image: Images [n, h, w, 3] after `normalize`.
            num_classes, dropout: Number of classes, and dropout rate of the pooled features.
        """
        features = KerasApplication(self.name.lower(), image, self._make)
        expose("features", features)
        return FullyConnected("fc", Dropout("dropout", features, dropout), num_classes)

    def imagenet_weights(self) -> dict[str, np.ndarray]:
        """Return ImageNet weights for all layers but the last, as arrays by variable name.

        Keras downloads the weights once and stores them in `~/.keras/models`.

        Raises:
            ConfigError: The weights cannot be downloaded.
        """
        try:
            model = self._make(
                include_top=False, weights="imagenet", pooling="avg", input_shape=(224, 224, 3)
            )
        except Exception as error:  # Keras raises a plain Exception.
            if type(error) is not Exception:
                raise
            raise ConfigError(
                f"The ImageNet weights of keras:{self.name} cannot be downloaded.",
                got=str(error),
                fix="download this file on another machine into ~/.keras/models, or set "
                "transfer.pretrained to a file of weights",
            ) from error
        arrays = {}
        scales = _scales_after(model)
        for name, variable in find_variables({self.name.lower(): model}).items():
            if "seed_generator" not in name:
                array, scale = np.asarray(variable), scales.get(id(variable))
                arrays[name] = array if scale is None else array / scale
        return arrays


def _scales_after(model: Any) -> dict[int, np.ndarray]:
    """Return divisors of variances, by id of the variable, that replace a `Rescaling` layer.

    Keras's EfficientNets have this layer after their normalization only with ImageNet weights.
    """
    return {
        id(layer.adapt_variance.value): np.square(following.scale, dtype=np.float32)
        for layer, following in itertools.pairwise(model.layers)
        if isinstance(layer, keras.layers.Normalization)
        and isinstance(following, keras.layers.Rescaling)
    }


def __getattr__(name: str) -> KerasNetwork:
    if name.startswith("_"):
        raise AttributeError(name)
    return KerasNetwork(name)
