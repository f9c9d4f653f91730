from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.apps._modeler import Display, Modeler
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
_GAP_PX: Final = 6
_LOSSES = ("content", "style", "tv")


class Painter(ModelDesc):
    """Model that stylizes images. Exposes `'picture'` [n, h, w, 3] from 0 to 255."""

    def __init__(self, network: Callable[..., tf.Tensor], options: Mapping[str, Any]) -> None:
        self._network, self._options = network, options

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, None, None, 3], tf.uint8, "image")]

    def build_graph(self, image: tf.Tensor) -> None:
        self.painted(image)

    def painted(self, image: tf.Tensor) -> tf.Tensor:
        """Return the stylized image, for use in the graph of another model."""
        picture = self._network(tf.cast(image, tf.float32) / 127.5 - 1, **self._options)
        expose("picture", picture)
        return picture


class StyleModeler(Modeler):
    """Modeler of style transfer, with perceptual losses (Johnson et al. 2016).

    The content loss is relative to the squared features of the photograph, and the style loss to
    the squared Gram matrices of the style. Weights therefore have similar effects for all feature
    networks, layers and sizes. Exposes `'picture'` [n, h, w, 3] from 0 to 255, and the losses.

    Args:
        config: Recipe.
        inputter: Data of the recipe.
    """

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
        with tf.init_scope():  # compute the style outside of the graph that uses it
            style = tf.constant(_style_picture(self.config)[None], tf.float32)
            features = self._features(style)
            return {name: gram(features[name]).numpy() for name in self._features.style}

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
        """Return a signature from image files to JPEG files of the same size."""

        def serve(compute: Callable[..., Any]) -> Any:
            def paint(file: tf.Tensor) -> tf.Tensor:
                picture = compute(picture_of(file)[None])["picture"][0]
                picture = tf.saturate_cast(tf.round(picture), tf.uint8)
                # Downsampled chroma would blur strokes of strong colors.
                return tf.io.encode_jpeg(picture, quality=_JPEG_QUALITY, chroma_downsampling=False)

            def pictures(image_bytes: tf.Tensor) -> dict[str, Any]:
                text = tf.TensorSpec([], tf.string)
                return {"picture_bytes": tf.map_fn(paint, image_bytes, fn_output_signature=text)}

            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            return tf.function(pictures, input_signature=files, autograph=False)

        about = {"task": self.config.task, "preprocessing": {"size": "as it is"}}
        return {"model": self.painter, "serve": serve, "metadata": about}


class StyleDisplay(Display):
    """Display of the image on the left and its stylized version on the right."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        height, width = outputs["picture"].shape[:2]
        return {"height": height, "width": width}

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        picture = np.rint(outputs["picture"]).clip(0, 255).astype(np.uint8)
        gap = np.full((picture.shape[0], _GAP_PX, 3), 255, np.uint8)
        return np.hstack([sample, gap, picture])


def _style_picture(config: StyleConfig) -> np.ndarray:
    file = config.model.style
    if file is None:
        raise ConfigError(
            "Style transfer needs a style picture, but model.style is not set.",
            fix="set model.style to the path of a picture",
        )
    picture = read_picture(file)
    size = picture.shape[0], picture.shape[1]
    steps = scaled(size, shortest_edge(size, config.model.style_size))
    return TransformList(steps).apply_image(picture)


def _share(features: tf.Tensor, wanted: tf.Tensor) -> Any:
    difference = tf.reduce_mean(tf.math.squared_difference(features, wanted))
    return difference / tf.reduce_mean(tf.square(wanted))


def _variation(picture: tf.Tensor) -> Any:
    down = tf.math.squared_difference(picture[:, 1:], picture[:, :-1])
    along = tf.math.squared_difference(picture[:, :, 1:], picture[:, :, :-1])
    return tf.reduce_mean(down) + tf.reduce_mean(along)
