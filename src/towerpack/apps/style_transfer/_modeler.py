"""The model of style transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.apps._modeler import Modeler
from towerpack.apps._pictures import read_picture
from towerpack.apps.style_transfer._config import StyleConfig
from towerpack.apps.style_transfer._features import FeatureNetwork, gram
from towerpack.apps.style_transfer._inputter import PhotoInputter
from towerpack.callbacks import Inferencer, ScalarStats
from towerpack.config import Registry
from towerpack.dataflow.images import TransformList
from towerpack.model import ModelDesc
from towerpack.nn import expose, summary
from towerpack.ops.geometry import scaled, shortest_edge
from towerpack.ops.picture_files import picture_of

networks: Registry[Any] = Registry("network", {"fns": "towerpack.zoo.fns:net"})
_JPEG_QUALITY = 95
_LOSSES = ("content", "style", "tv")


class Painter(ModelDesc):
    """A network from pictures to pictures. Exposes `'picture'` [n, h, w, 3] from 0 to 255.

    Args:
        network: What paints.
        options: More arguments of it.
    """

    def __init__(self, network: Callable[..., tf.Tensor], options: Mapping[str, Any]) -> None:
        self._network, self._options = network, options

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, None, None, 3], tf.uint8, "image")]

    def build_graph(self, image: tf.Tensor) -> None:
        self.painted(image)

    def painted(self, image: tf.Tensor) -> tf.Tensor:
        """The picture, within another model's graph."""
        picture = self._network(tf.cast(image, tf.float32) / 127.5 - 1, **self._options)
        expose("picture", picture)
        return picture


class StyleModeler(Modeler):
    """Perceptual losses (Johnson et al. 2016) of what a network makes of photographs.

    Each is a share: squared differences of features over the squares of the photograph's features,
    of Gram matrices over those of the style's; so weights mean about the same for all feature
    networks, layers and sizes. Exposes `'picture'` [n, h, w, 3] from 0 to 255, and the losses.
    """

    best = ("val/cost", "min")
    infer_outputs = ("picture",)
    config: StyleConfig

    def __init__(self, config: StyleConfig, inputter: PhotoInputter) -> None:
        super().__init__(config, inputter)
        self.network = networks.get(config.model.network)
        self.painter = Painter(self.network, config.model.options)

    @cached_property
    def _features(self) -> FeatureNetwork:
        return FeatureNetwork(self.config.model)

    @cached_property
    def _grams(self) -> dict[str, np.ndarray]:
        with tf.init_scope():  # The style is no part of the graph that asks for it.
            style = tf.constant(_style_picture(self.config)[None], tf.float32)
            found = self._features(style)
            return {name: gram(found[name]).numpy() for name in self._features.style}

    def inputs(self) -> list[tf.TensorSpec]:
        return self.painter.inputs()

    def build_graph(self, image: tf.Tensor) -> tf.Tensor:
        model, grams = self.config.model, self._grams
        pixels = tf.cast(image, tf.float32)
        picture = self.painter.painted(image)
        seen, wanted = self._features(picture), self._features(pixels)
        losses = {
            "content": [
                _share(seen[n], tf.stop_gradient(wanted[n])) for n in self._features.content
            ],
            "style": [_share(gram(seen[n]), tf.constant(g)) for n, g in grams.items()],
            "tv": [_variation(picture / 255)],
        }
        cost = tf.constant(0.0)
        for name in _LOSSES:
            value = tf.add_n(losses[name]) / len(losses[name])
            expose(name, value)
            summary.moving_average(f"train/{name}", value)
            cost += getattr(model, f"{name}_weight") * value
        return cost

    def metrics(self) -> Sequence[Inferencer]:
        return [ScalarStats(["cost", *_LOSSES], mode="min")]

    def for_inference(self) -> Painter:
        return self.painter

    def export_arguments(self) -> Mapping[str, Any]:
        """Files in, JPEGs of the same size out."""

        def serve(compute: Callable[..., Any]) -> Any:
            def paint(file: tf.Tensor) -> tf.Tensor:
                made = compute(picture_of(file)[None])["picture"][0]
                made = tf.saturate_cast(tf.round(made), tf.uint8)
                # Strokes of strong colours would blur.
                return tf.io.encode_jpeg(made, quality=_JPEG_QUALITY, chroma_downsampling=False)

            def pictures(image_bytes: tf.Tensor) -> dict[str, Any]:
                text = tf.TensorSpec([], tf.string)
                return {"picture_bytes": tf.map_fn(paint, image_bytes, fn_output_signature=text)}

            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            return tf.function(pictures, input_signature=files, autograph=False)

        about = {"task": self.config.task, "preprocessing": {"size": "as it is"}}
        return {"model": self.painter, "serve": serve, "metadata": about}


def _style_picture(config: StyleConfig) -> np.ndarray:
    file = config.model.style
    if file is None:
        raise ConfigError("The recipe names no style picture.", fix="set model.style to a picture")
    picture = read_picture(file)
    size = picture.shape[0], picture.shape[1]
    steps = scaled(size, shortest_edge(size, config.model.style_size))
    return TransformList(steps).apply_image(picture)


def _share(found: tf.Tensor, wanted: tf.Tensor) -> Any:
    difference = tf.reduce_mean(tf.math.squared_difference(found, wanted))
    return difference / tf.reduce_mean(tf.square(wanted))


def _variation(picture: tf.Tensor) -> Any:
    down = tf.math.squared_difference(picture[:, 1:], picture[:, :-1])
    along = tf.math.squared_difference(picture[:, :, 1:], picture[:, :, :-1])
    return tf.reduce_mean(down) + tf.reduce_mean(along)
