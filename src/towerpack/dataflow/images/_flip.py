"""Mirror images and transposed ones."""

from __future__ import annotations

from dataclasses import dataclass

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import Probability
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import (
    Image,
    check_image,
    check_size,
    mirrored,
    size_of,
    transposed,
)
from towerpack.dataflow.images._transform import (
    GeometricTransform,
    NoOpTransform,
    Points,
    Transform,
)


@dataclass(frozen=True)
class FlipTransform(GeometricTransform):
    """Mirrors an image of `h` by `w` pixels.

    Args:
        h: Height of the image.
        w: Width of the image.
        horiz: Swap left and right; otherwise top and bottom.
    """

    h: int
    w: int
    horiz: bool = True

    def apply_image(self, img: Image) -> Image:
        check_size(img, self.h, self.w)
        return mirrored(check_image(img), 1 if self.horiz else 0)

    def apply_mask(self, mask: Image) -> Image:
        check_size(mask, self.h, self.w)
        return mask[:, ::-1] if self.horiz else mask[::-1]

    def move(self, points: Points) -> Points:
        axis, side = (0, self.w) if self.horiz else (1, self.h)
        moved = points.copy()
        moved[:, axis] = side - points[:, axis]
        return moved


@dataclass(frozen=True)
class TransposeTransform(GeometricTransform):
    """Swaps x and y."""

    def apply_image(self, img: Image) -> Image:
        return transposed(check_image(img))

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        return mask.swapaxes(0, 1)

    def move(self, points: Points) -> Points:
        return points[:, ::-1]


@dataclass(eq=False, repr=False)
class Flip(ImageAugmentor):
    """Mirrors some of the images.

    Args:
        horiz: Swap left and right.
        vert: Swap top and bottom. Exactly one of both must be given; use two for both.
        prob: How likely.
    """

    horiz: bool = False
    vert: bool = False
    prob: Probability = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.horiz) == bool(self.vert):
            raise ConfigError(
                f"Flip(horiz={self.horiz}, vert={self.vert}) does not say which way.",
                expected="one of horiz=True, vert=True",
                fix="for both take two of them, Flip(horiz=True) and Flip(vert=True)",
            )

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        if self.generator(rng).random() < self.prob:
            return FlipTransform(*size_of(img), bool(self.horiz))
        return NoOpTransform()


@dataclass(eq=False, repr=False)
class Transpose(ImageAugmentor):
    """Swaps rows and columns of some of the images.

    Args:
        prob: How likely.
    """

    prob: Probability = 0.5

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return TransposeTransform() if self.generator(rng).random() < self.prob else NoOpTransform()
