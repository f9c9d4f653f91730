"""Conversion of images of any size to the input size of a network, by OpenCV or TensorFlow.

Sides that shrink are averaged over areas. Sides that grow are interpolated linearly between pixel
centers. OpenCV and TensorFlow support both methods, and their results differ by at most 1 of 255.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow.images import (
    ConstantBackgroundFiller,
    CropTransform,
    ImageAugmentor,
    MapImage,
    PasteTransform,
    ResizeTransform,
    Transform,
    TransformList,
)

if TYPE_CHECKING:
    import tensorflow as tf

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Conversion of one image, uint8 [h, w, 1 or 3], to uint8 [height, width, channels].

    The center is cropped (`fraction`) and scaled. Then dimensions that are too large are
    center-cropped, and dimensions that are too small are zero-padded.

    Attributes:
        height: Height of the result.
        width: Width of the result.
        channels: 3 for RGB, 1 for gray (luma of ITU-R BT.601).
        fraction: Fraction of height and width that the first crop keeps, in (0, 1].
        shortest_edge: Length of the shorter side after scaling with the aspect ratio kept. None
            scales to the size of the result.
    """

    height: int
    width: int
    channels: int = 3
    fraction: float = 1.0
    shortest_edge: int | None = None

    def __post_init__(self) -> None:
        edge = 1 if self.shortest_edge is None else self.shortest_edge
        sizes = min(self.height, self.width, edge) >= 1
        if not (sizes and self.channels in (1, 3) and 0 < self.fraction <= 1):
            raise ConfigError(
                "A geometry needs sides of at least 1, 1 or 3 channels, and a fraction in (0, 1], "
                f"got {self}."
            )

    def augmentors(self) -> list[ImageAugmentor]:
        """Return the same conversion as augmentors that use OpenCV. They are not random."""
        return [colors(self.channels), self.scaling()]

    def scaling(self) -> ImageAugmentor:
        """Return the part of the conversion that changes the size, as an augmentor."""
        return _CenterCropAndScale(self)

    def tensors(self, image: tf.Tensor) -> tf.Tensor:
        """Return the same conversion as TensorFlow operations.

        Args:
            image: uint8 [h, w, 1 or 3].
        """
        import tensorflow as tf

        def double(length: Any) -> tf.Tensor:  # Rounds in the same way as Python.
            return tf.cast(length, tf.float64)

        def whole(length: tf.Tensor) -> tf.Tensor:
            return tf.maximum(1, tf.cast(tf.floor(length + 0.5), tf.int32))

        if image.shape[-1] != self.channels:
            gray = self.channels == 1
            image = tf.image.rgb_to_grayscale(image) if gray else tf.image.grayscale_to_rgb(image)
        size = tf.shape(image)[:2]
        crop = whole(double(size) * self.fraction)
        (top, left), (h, w) = tf.unstack((size - crop) // 2), tf.unstack(crop)
        batch = image[None, top : top + h, left : left + w]
        new = tf.constant([self.height, self.width])
        if self.shortest_edge is not None:
            new = whole(self.shortest_edge * double(crop) / double(tf.reduce_min(crop)))
        image = scaled_tensor(batch[0], new)
        image = tf.image.resize_with_crop_or_pad(image, self.height, self.width)
        return tf.ensure_shape(image, [self.height, self.width, self.channels])

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict for the metadata of an export."""
        return asdict(self)


class _CenterCropAndScale(ImageAugmentor):
    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def get_transform(self, img: NDArray[Any], rng: np.random.Generator | None = None) -> Transform:
        h, w = img.shape[:2]
        wanted = self.geometry.height, self.geometry.width
        size = _whole(h * self.geometry.fraction), _whole(w * self.geometry.fraction)
        edge = self.geometry.shortest_edge
        new = wanted if edge is None else shortest_edge(size, edge)
        crop = CropTransform((h - size[0]) // 2, (w - size[1]) // 2, *size)
        return TransformList([crop, *scaled(size, new), *_fitted(new, wanted)])


def scaled(old: Size, new: Size) -> list[Transform]:
    """Return transforms that scale an image. First sides shrink, then sides grow.

    Args:
        old, new: Height and width before and after scaling.
    """
    least = min(old[0], new[0]), min(old[1], new[1])
    steps = [ResizeTransform(*old, *least, "area"), ResizeTransform(*least, *new, "linear")]
    return [step for step in steps if (step.h, step.w) != (step.new_h, step.new_w)]


def scaled_tensor(image: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Return the same scaling as TensorFlow operations, uint8.

    Args:
        image: uint8 [h, w, channels].
        new: int32 [2], height and width after scaling.
    """
    import tensorflow as tf

    batch = image[None]
    for side, method in ((tf.minimum(tf.shape(image)[:2], new), "area"), (new, "bilinear")):
        values = tf.image.resize(tf.cast(batch, tf.float32), side, method)
        batch = tf.saturate_cast(tf.round(values), tf.uint8)
    return batch[0]


def shortest_edge(size: Size, edge: int) -> Size:
    """Return the size of the same aspect ratio whose shorter side is `edge`.

    Args:
        size: Height and width.
        edge: Length of the shorter side of the result.
    """
    shorter = min(size)
    return _whole(edge * size[0] / shorter), _whole(edge * size[1] / shorter)


def colors(channels: int) -> ImageAugmentor:
    """Return an augmentor that converts images [h, w] or [h, w, 1 or 3] to gray or RGB.

    Args:
        channels: 1 or 3.
    """
    return MapImage(partial(_with_channels, channels=channels))


colours = colors


def _with_channels(img: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    number = 1 if img.ndim == 2 else img.shape[2]
    if number == channels:
        return img.reshape(*img.shape[:2], channels)
    if number not in (1, 3):
        raise ConfigError(f"An image must have 1 channel (gray) or 3 (RGB), got {number}.")
    cv2: Any = require("cv2", extra="image", needed_for="Conversion of colors")
    converted = cv2.cvtColor(img, cv2.COLOR_GRAY2RGB if number == 1 else cv2.COLOR_RGB2GRAY)
    return converted.reshape(*img.shape[:2], channels)


def _fitted(old: Size, new: Size) -> list[Transform]:
    """Center-crop dimensions that are too large, and zero-pad dimensions that are too small."""
    part = min(old[0], new[0]), min(old[1], new[1])
    steps: list[Transform] = []
    if part != old:
        steps.append(CropTransform((old[0] - part[0]) // 2, (old[1] - part[1]) // 2, *part))
    if part != new:
        corner = (new[0] - part[0]) // 2, (new[1] - part[1]) // 2
        steps.append(PasteTransform(*corner, *new, ConstantBackgroundFiller(0)))
    return steps


def _whole(length: float) -> int:
    return max(1, math.floor(length + 0.5))
