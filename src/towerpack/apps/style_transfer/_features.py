from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from towerpack._core.errors import ConfigError
from towerpack._core.naming import alike, did_you_mean
from towerpack.apps.style_transfer._config import ModelConfig
from towerpack.inference import Predictor
from towerpack.nn import expose
from towerpack.training import SmartInit
from towerpack.training.weights.read_foreign import read_arrays
from towerpack.zoo import efficientnet_lite, vgg19

_LITE: Final = "efficientnet-lite0"
_CONTENT: Final = {_LITE: ("stride8",), "vgg19": ("conv4_2",)}
_STYLE: Final = {
    _LITE: ("stride2", "stride4", "stride8", "stride16"),
    "vgg19": ("conv1_1", "conv2_1", "conv3_1", "conv4_1", "conv5_1"),
}


class FeatureNetwork:
    """Pretrained network in inference mode. Its weights are constants of the graph.

    The weights are neither trained nor stored in checkpoints.

    Args:
        config: Name of the network, and its layers.

    Attributes:
        content: Names of the layers that compare content.
        style: Names of the layers that compare style.

    Raises:
        ConfigError: There is no such file or layer.
        CheckpointError: The file does not contain the weights of VGG-19.
        MissingExtraError: The package with the weights is not installed.
    """

    def __init__(self, config: ModelConfig) -> None:
        is_lite = alike(config.features, [_LITE]) is not None
        kind = _LITE if is_lite else "vgg19"
        self.content: Sequence[str] = config.content_layers or _CONTENT[kind]
        self.style: Sequence[str] = config.style_layers or _STYLE[kind]
        names = list(dict.fromkeys([*self.content, *self.style]))
        known = _LITE_LAYERS if is_lite else _VGG_LAYERS
        for name in names:
            if name not in known:
                raise ConfigError(f"{kind} has no layer {name!r}.", fix=did_you_mean(name, known))
        layers, weights = (_lite, SmartInit(_LITE)) if is_lite else _vgg(config.features)

        def build(image: tf.Tensor) -> None:
            for name, features in layers(image).items():
                if name in names:
                    expose(name, features)

        image = tf.TensorSpec([None, None, None, 3], tf.float32, "image")
        predictor = Predictor((lambda: [image], build), weights, outputs=names)
        compute = tf.function(predictor.tensors, input_signature=[image], autograph=False)
        # Use constants, because a tower would save and restore variables with those of the run.
        self._compute: Any = convert_variables_to_constants_v2(compute.get_concrete_function())
        self._names = sorted(names)

    def __call__(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the features [n, h, w, channels] by layer.

        Args:
            image: float32 [n, h, w, 3]: red, green, blue from 0 to 255.
        """
        return dict(zip(self._names, self._compute(image), strict=True))


def gram(features: tf.Tensor) -> tf.Tensor:
    """Return the Gram matrix of channels (Gatys et al. 2016), float32 [n, channels, channels]."""
    shape: Any = tf.shape(features)
    pixels = tf.reshape(features, [shape[0], -1, features.shape[-1]])
    return tf.matmul(pixels, pixels, transpose_a=True) / tf.cast(shape[1] * shape[2], tf.float32)


_LITE_LAYERS: Final = tuple(f"stride{2**i}" for i in range(1, 6))
_VGG_LAYERS: Final = tuple(
    f"conv{s}_{i + 1}" for s in range(1, 6) for i in range(2 if s < 3 else 4)
)


def _lite(image: tf.Tensor) -> dict[str, tf.Tensor]:
    return dict(zip(_LITE_LAYERS, efficientnet_lite.backbone((image - 127) / 128), strict=True))


def _vgg(file: str) -> tuple[Any, SmartInit]:
    if not Path(file).expanduser().exists():
        raise ConfigError(
            f"model.features must be a packaged network or an existing file, got {file!r}.",
            expected=f"{_LITE}, or a .npz, .safetensors, .h5 or .keras file of VGG-19",
        )
    path = str(Path(file).expanduser())
    weights, pixels = vgg19.arranged(read_arrays(path)[1], file)
    widths = tuple(v.shape[-1] for n, v in weights.items() if n.endswith("kernel"))
    return lambda image: vgg19.features(image, widths, pixels), SmartInit(weights)
