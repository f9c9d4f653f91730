"""Elastic deformation by random pulls at some points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import number
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import Image, check_image, check_size, opencv, size_of
from towerpack.dataflow.images._resampling import check_sides, in_parts, pick
from towerpack.dataflow.images._transform import GeometricTransform, Points, Transform

_STEPS = 60
_STRIDE = 2.0  # times what is missing: where an image is almost folded, Newton goes far astray
_PRECISION = 1e-4  # of a pixel


@dataclass(frozen=True, eq=False)
class DeformTransform(GeometricTransform):
    """Shows at each point what was at that point plus a weighted sum of pulls.

    Args:
        h: Height of the image.
        w: Width of the image.
        anchors: [n, 2], (x, y) as fractions of the width and height: where pulls are strongest.
        pulls: [n, 2], in pixels.
        sigma: The weight of a pull is exp(-d * d / (2 * sigma * sigma)), d being the distance from
            its anchor in fractions.
    """

    h: int
    w: int
    anchors: Points
    pulls: Points
    sigma: float

    def apply_image(self, img: Image) -> Image:
        check_size(check_image(img), self.h, self.w)
        x, y = (source.astype(np.float32) - np.float32(0.5) for source in self._sources())
        cv2 = opencv()
        check_sides(img.shape[:2])
        return in_parts(
            img,
            lambda part, _: cv2.remap(
                part, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
            ),
        )

    def apply_mask(self, mask: Image) -> Image:
        check_size(mask, self.h, self.w)
        x, y = (np.floor(source).astype(np.int64) for source in self._sources())
        return pick(mask, y.clip(0, self.h - 1) * self.w + x.clip(0, self.w - 1), 0)

    def move(self, points: Points) -> Points:
        """Newton's method: a point moves to where the deformed image shows it.

        Raises:
            ConfigError: The image is folded there, so that there is no such place, or several.
        """
        moved = points.copy()
        for _ in range(_STEPS):
            pull, slope = self._pull(moved)
            missing = moved + pull - points
            # Asked this way round, points that are not a number stay what they are.
            if not (np.abs(missing) > _PRECISION).any():
                return moved
            (a, b), (c, d) = np.moveaxis(np.eye(2) + slope, 0, -1)
            determinant = a * d - b * c
            determinant[determinant == 0] = _PRECISION
            x, y = missing.T
            step = np.stack([d * x - b * y, a * y - c * x], axis=1) / determinant[:, None]
            far = np.abs(step).max(axis=1) / np.abs(missing).max(axis=1).clip(_PRECISION)
            moved -= step / (far / _STRIDE).clip(1)[:, None]
        raise ConfigError(
            "The deformation folds the image, so that points have no place in it.",
            fix="a smaller randrange, or a larger sigma",
        )

    def _sources(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each pixel, x and y of what its centre shows."""
        x, y = np.arange(self.w) + 0.5, np.arange(self.h) + 0.5
        # A weight is the product of one for x and one for y: all are found by matrix products.
        along = self._weights(x[:, None] / self.w, self.anchors[:, :1])
        down = self._weights(y[:, None] / self.h, self.anchors[:, 1:])
        pulls_x, pulls_y = ((down * pulls) @ along.T for pulls in self.pulls.T)
        return x + pulls_x, y[:, None] + pulls_y

    def _weights(self, places: Points, anchors: Points) -> NDArray[np.float64]:
        away = places[:, None] - anchors
        return np.exp((away * away).sum(axis=-1) / (-2 * self.sigma**2))

    def _pull(self, points: Points) -> tuple[Points, NDArray[np.float64]]:
        """The sum of pulls at points [n, 2], and its derivatives [n, 2, 2]."""
        away = (points[:, None] / (self.w, self.h) - self.anchors) / (self.w, self.h)
        weights = self._weights(points / (self.w, self.h), self.anchors)
        slopes = weights[..., None] * away / -(self.sigma**2)
        return weights @ self.pulls, np.einsum("nkj,ki->nij", slopes, self.pulls)


@dataclass(eq=False, repr=False)
class GaussianDeform(ImageAugmentor):
    """Pulls an image at some points by random distances, and everything around them with it.

    Args:
        anchors: The points, (y, x) as fractions of height and width.
        shape: (height, width) that images must have; `None` for any.
        sigma: How far a pull reaches: the standard deviation of its weight, as a fraction.
        randrange: Greatest pull in x and in y, in pixels; by default an eighth of the width, and of
            the height. Where pulls fold the image, coordinates are refused.
    """

    anchors: Sequence[tuple[float, float]]
    shape: tuple[int, int] | None = None
    sigma: Annotated[float, number(above=0)] = 0.5
    randrange: Annotated[float | None, number(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = np.shape(self.anchors)
        if len(shape) != 2 or shape[1] != 2:
            raise ConfigError(f"The shape of anchors is {list(shape)}.", expected="[n, 2]")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        h, w = size_of(img)
        if self.shape is not None:
            check_size(img, self.shape[0], self.shape[1])
        reach = np.array((w / 8, h / 8) if self.randrange is None else (self.randrange,) * 2)
        pulls = self.generator(rng).uniform(-reach, reach, (len(self.anchors), 2))
        anchors = np.asarray(self.anchors, np.float64)[:, ::-1]
        return DeformTransform(h, w, anchors, pulls, self.sigma)
