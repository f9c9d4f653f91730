"""Augmenters: training augmentation, evaluation transform and normalization of images.

Augmenters have the names of the networks or papers with which they were published. All return uint8
images. `normalize` is the first operation of the network's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow.images import (
    Affine,
    AugmentorList,
    Brightness,
    CenterPaste,
    Contrast,
    Flip,
    GoogleNetRandomCropAndResize,
    Hue,
    ImageAugmentor,
    RandAugment,
    RandomChooseAug,
    RandomCrop,
    Saturation,
    Transform,
    TransformList,
)
from towerpack.ops.geometry import Geometry, Size, scaled, shortest_edge

if TYPE_CHECKING:
    import tensorflow as tf

IMAGENET_MEAN_RGB = (123.68, 116.78, 103.94)
_LUMA = (0.299, 0.587, 0.114)
_PAD_PX = 4


@dataclass(frozen=True)
class Augmenter:
    """Augmentation of training images, transform of other images, and normalization.

    Create a variant with `dataclasses.replace(cifar, name="mine", train=my_train)`.

    Attributes:
        name: Name in messages and in the metadata of exports.
        train: Function from the network's input size (height, width) to augmentors, which convert
            uint8 images of any size to uint8 images of this size.
        geometry: Function from (height, width) to the deterministic transform for evaluation and
            inference.
        normalize: First operation of the graph, from uint8 [n, h, w, c] to float32.
    """

    name: str
    train: Callable[[Size], Sequence[ImageAugmentor]]
    geometry: Callable[[Size], Geometry]
    normalize: Callable[[tf.Tensor], tf.Tensor]


@dataclass(eq=False, repr=False)
class RandomShortestEdge(ImageAugmentor):
    """Augmentor that scales the shorter side to a random length and keeps the aspect ratio.

    Attributes:
        low: Minimum length in pixels.
        high: Maximum length in pixels.
    """

    low: int
    high: int

    def get_transform(
        self, img: NDArray[np.uint8], rng: np.random.Generator | None = None
    ) -> Transform:
        edge = int(self.generator(rng).integers(self.low, self.high + 1))
        size = img.shape[0], img.shape[1]
        return TransformList(scaled(size, shortest_edge(size, edge)))


def to_unit(image: tf.Tensor) -> tf.Tensor:
    """Normalize pixels to the range from 0 to 1, float32.

    Args:
        image: uint8 [n, h, w, c].
    """
    return _floats(image) / 255


def to_signed_unit(image: tf.Tensor) -> tf.Tensor:
    """Normalize pixels to the range from -1 to 1, float32.

    Args:
        image: uint8 [n, h, w, c].
    """
    return _floats(image) / 127.5 - 1


def minus_mean(image: tf.Tensor) -> tf.Tensor:
    """Subtract the mean color of ImageNet, or its brightness from gray images.

    Args:
        image: uint8 [n, h, w, 1 or 3].
    """
    mean = np.array(IMAGENET_MEAN_RGB)
    return _floats(image) - (mean if image.shape[-1] == 3 else [mean @ _LUMA])


def to_lite_unit(image: tf.Tensor) -> tf.Tensor:
    """Normalize pixels as for EfficientNet-Lite: (pixels - 127) / 128.

    Args:
        image: uint8 [n, h, w, c].
    """
    return (_floats(image) - 127) / 128


def standardize(image: tf.Tensor) -> tf.Tensor:
    """Normalize each image to mean 0 and standard deviation 1.

    The standard deviation counts as at least 1 / sqrt(number of values).

    Args:
        image: uint8 [n, h, w, c].
    """
    import tensorflow as tf

    return tf.image.per_image_standardization(_floats(image))


def _floats(image: tf.Tensor) -> Any:
    import tensorflow as tf

    return tf.cast(image, tf.float32)


def _stretched(size: Size) -> Geometry:
    return Geometry(height=size[0], width=size[1])


def _filled(size: Size) -> Geometry:
    """Scale the shorter side to the larger side of the size, and crop the center."""
    return Geometry(height=size[0], width=size[1], shortest_edge=max(size))


def _margin(size: Size) -> Geometry:
    return Geometry(height=size[0], width=size[1], shortest_edge=round(max(size) * 256 / 224))


def _zoomed(size: Size) -> Geometry:
    return Geometry(height=size[0], width=size[1], fraction=0.875)


def _train_cifar(size: Size) -> list[ImageAugmentor]:
    height, width = size
    return [
        _filled(size).scaling(),
        CenterPaste((height + 2 * _PAD_PX, width + 2 * _PAD_PX)),
        RandomCrop(size),
        Flip(horiz=True),
        Brightness(63),
        Contrast((0.2, 1.8)),
    ]


def _train_vgg(size: Size) -> list[ImageAugmentor]:
    low = round(max(size) * 256 / 224)
    return [RandomShortestEdge(low, 2 * low), RandomCrop(size), Flip(horiz=True)]


def _train_inception(size: Size) -> list[ImageAugmentor]:
    brightness, saturation = Brightness(32), Saturation(0.5)
    hue, contrast = Hue((-36, 36)), Contrast((0.5, 1.5))
    orders = [
        [brightness, saturation, hue, contrast],
        [saturation, brightness, contrast, hue],
        [contrast, hue, brightness, saturation],
        [hue, saturation, contrast, brightness],
    ]
    return [
        GoogleNetRandomCropAndResize((0.05, 1.0), (0.75, 1.33), size),
        Flip(horiz=True),
        RandomChooseAug([AugmentorList(order) for order in orders]),
    ]


def _train_digits(size: Size) -> list[ImageAugmentor]:
    # Small rotations, scales, shears and shifts, with a black background.
    warp = Affine((0.88, 1.12), (0.08, 0.08), 11.5, shear=8.5, border="constant")
    return [_stretched(size).scaling(), warp, Contrast((0.8, 1.2))]


def _train_unmirrored(size: Size) -> list[ImageAugmentor]:
    warp = Affine((0.8, 1.25), (0.1, 0.1), 15, shear=8)
    return [_stretched(size).scaling(), warp, Brightness(32), Contrast((0.6, 1.4))]


def _train_randaugment(size: Size) -> list[ImageAugmentor]:
    return [
        GoogleNetRandomCropAndResize((0.25, 1.0), (0.75, 1.33), size),
        Flip(horiz=True),
        RandAugment(2, 9),
    ]


none = Augmenter("none", lambda size: [_stretched(size).scaling()], _stretched, to_unit)
"""No augmentation; pixels from 0 to 1."""

cifar = Augmenter("cifar", _train_cifar, _filled, standardize)
"""Random shifts of up to 4 pixels, flips, brightness and contrast; images are standardized.

Krizhevsky 2012 (cuda-convnet), with the parameters of TensorFlow's tutorial.
"""

vgg = Augmenter("vgg", _train_vgg, _margin, minus_mean)
"""Random scale, crop and flip; the mean color of ImageNet is subtracted.

Simonyan & Zisserman 2014, section 3. For 224 pixels, the shorter side is scaled to 256..512 in
training and to 256 otherwise; for other sizes, in proportion.
"""

inception = Augmenter("inception", _train_inception, _zoomed, to_signed_unit)
"""Random crops of varying size and shape, flips and color changes; pixels from -1 to 1.

Szegedy et al. 2015, section 6, with the color changes of TF-Slim. Outside of training, the central
87.5 % of both sides are stretched to the size. Only for color images.
"""

randaugment = Augmenter("randaugment", _train_randaugment, _zoomed, to_signed_unit)
"""Random crops of varying size and shape, flips, and RandAugment (2, 9) of Cubuk et al. 2019.

Geometry and normalization are the same as in `inception`.
"""

digits = Augmenter("digits", _train_digits, _stretched, to_signed_unit)
"""Small rotations, shears and shifts for digits on black, without flips; pixels from -1 to 1."""

efficientnet_lite = Augmenter("efficientnet_lite", _train_randaugment, _margin, to_lite_unit)
"""Training as in `randaugment`; else a center crop of 224 pixels from a shorter side of 256.

Tan & Le 2019, with the normalization of EfficientNet-Lite: (pixels - 127) / 128.
"""

unmirrored = Augmenter("unmirrored", _train_unmirrored, _stretched, to_lite_unit)
"""Small rotations, scales, shears and shifts, brightness and contrast, but no flips.

For images of unknown content, such as letters, digits or arrows. The normalization matches the
weights of EfficientNet-Lite.
"""
