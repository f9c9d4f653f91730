"""From a decoded picture of any size to the network's input: one definition, for data and graphs.

Sides that shrink are averaged over areas, sides that grow are interpolated linearly between the
centers of pixels. OpenCV and TensorFlow both have these two ways, and agree within 1 of 255.
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
    """How one picture, uint8 [h, w, 1 or 3], becomes uint8 [height, width, channels].

    The middle is cropped (`fraction`) and scaled. Then dimensions that are too large are
    center-cropped, and dimensions that are too small are zero-padded.

    Attributes:
        height: Of the result.
        width: Of the result.
        channels: 3: red, green, blue; 1: gray (luma of ITU-R BT.601).
        fraction: Of height and width that is kept at first.
        shortest_edge: Length of the shorter side after scaling, with the aspect ratio kept. None
            stretches the picture to the size.
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
                f"{self} makes no sense.",
                expected="sides of 1 or more, 1 or 3 channels, a fraction above 0, at most 1",
            )

    def augmentors(self) -> list[ImageAugmentor]:
        """Return augmentors that do the same with OpenCV; none of them is random."""
        return [colours(self.channels), self.scaling()]

    def scaling(self) -> ImageAugmentor:
        """Return an augmentor for pictures that have their channels: it changes only the size."""
        return _Middle(self)

    def tensors(self, image: tf.Tensor) -> tf.Tensor:
        """Do the same as operations of a TensorFlow graph: `image` is uint8 [h, w, 1 or 3]."""
        import tensorflow as tf

        def double(length: Any) -> tf.Tensor:  # as Python counts: both must round alike
            return tf.cast(length, tf.float64)

        def whole(length: tf.Tensor) -> tf.Tensor:
            return tf.maximum(1, tf.cast(tf.floor(length + 0.5), tf.int32))

        if image.shape[-1] != self.channels:
            grey = self.channels == 1
            image = tf.image.rgb_to_grayscale(image) if grey else tf.image.grayscale_to_rgb(image)
        size = tf.shape(image)[:2]
        kept = whole(double(size) * self.fraction)
        (top, left), (h, w) = tf.unstack((size - kept) // 2), tf.unstack(kept)
        batch = image[None, top : top + h, left : left + w]
        new = tf.constant([self.height, self.width])
        if self.shortest_edge is not None:
            new = whole(self.shortest_edge * double(kept) / double(tf.reduce_min(kept)))
        for side, method in ((tf.minimum(kept, new), "area"), (new, "bilinear")):
            values = tf.image.resize(tf.cast(batch, tf.float32), side, method)
            batch = tf.saturate_cast(tf.round(values), tf.uint8)
        image = tf.image.resize_with_crop_or_pad(batch[0], self.height, self.width)
        return tf.ensure_shape(image, [self.height, self.width, self.channels])

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for the metadata of an export."""
        return asdict(self)


class _Middle(ImageAugmentor):
    """`Geometry` without its colours."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def get_transform(self, img: NDArray[Any], rng: np.random.Generator | None = None) -> Transform:
        h, w = img.shape[:2]
        wanted = self.geometry.height, self.geometry.width
        kept = _whole(h * self.geometry.fraction), _whole(w * self.geometry.fraction)
        edge = self.geometry.shortest_edge
        new = wanted if edge is None else shortest_edge(kept, edge)
        crop = CropTransform((h - kept[0]) // 2, (w - kept[1]) // 2, *kept)
        return TransformList([crop, *scaled(kept, new), *_fitted(new, wanted)])


def scaled(old: Size, new: Size) -> list[Transform]:
    """Return steps that scale one (height, width) to another: shrink first, then grow."""
    least = min(old[0], new[0]), min(old[1], new[1])
    steps = [ResizeTransform(*old, *least, "area"), ResizeTransform(*least, *new, "linear")]
    return [step for step in steps if (step.h, step.w) != (step.new_h, step.new_w)]


def shortest_edge(size: Size, edge: int) -> Size:
    """Return (height, width) of the same aspect ratio whose smaller number is `edge`."""
    shorter = min(size)
    return _whole(edge * size[0] / shorter), _whole(edge * size[1] / shorter)


def colours(channels: int) -> ImageAugmentor:
    """Return an augmentor that gives pictures [h, w] or [h, w, 1 or 3] this many channels."""
    return MapImage(partial(_with_channels, channels=channels))


def _with_channels(img: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    found = 1 if img.ndim == 2 else img.shape[2]
    if found == channels:
        return img.reshape(*img.shape[:2], channels)
    if found not in (1, 3):
        raise ConfigError(
            f"A picture has {found} channels.", expected="1: grey, or 3: red, green, blue"
        )
    cv2: Any = require("cv2", extra="image", needed_for="the colours of pictures")
    made = cv2.cvtColor(img, cv2.COLOR_GRAY2RGB if found == 1 else cv2.COLOR_RGB2GRAY)
    return made.reshape(*img.shape[:2], channels)


def _fitted(old: Size, new: Size) -> list[Transform]:
    """Center-crop dimensions that are too large and zero-pad those that are too small."""
    kept = min(old[0], new[0]), min(old[1], new[1])
    steps: list[Transform] = []
    if kept != old:
        steps.append(CropTransform((old[0] - kept[0]) // 2, (old[1] - kept[1]) // 2, *kept))
    if kept != new:
        corner = (new[0] - kept[0]) // 2, (new[1] - kept[1]) // 2
        steps.append(PasteTransform(*corner, *new, ConstantBackgroundFiller(0)))
    return steps


def _whole(length: float) -> int:
    return max(1, math.floor(length + 0.5))
