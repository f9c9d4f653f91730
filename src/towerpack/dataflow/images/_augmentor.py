"""Augmentors: what draws transforms. The bases, and a list of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._image import Image, check_image
from towerpack.dataflow.images._legacy import LegacyAugmentor, LegacyTransform, lent
from towerpack.dataflow.images._transform import PhotometricTransform, Transform, TransformList

RNG = np.random.Generator


class ImageAugmentor(LegacyAugmentor):
    """Draws a transform for an image. A subclass defines `get_transform`.

    Contract: what it draws is a function of the generator and of the image that it is given; its
    input is never changed; safe to use from several threads; pickles.
    """

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        """Draw once.

        Args:
            img: What the transform is for. Most augmentors look only at its shape.
            rng: Where to draw from; by default an unseeded generator of the augmentor's own. In a
                pipeline it is a function of (seed, epoch, position).
        """
        with lent(self.generator(rng)):
            return LegacyTransform(self, self._get_augment_params(img))

    def augment(self, img: Image, rng: RNG | None = None) -> Image:
        """The image, changed at random."""
        return self.augment_with_transform(img, rng)[0]

    def __call__(self, img: Image, rng: RNG | None = None) -> Image:
        """As `augment`."""
        return self.augment(img, rng)

    def augment_with_transform(self, img: Image, rng: RNG | None = None) -> tuple[Image, Transform]:
        """The image, changed at random, and what was done, to be applied to what belongs to it."""
        transform = self.get_transform(check_image(img), rng)
        return transform.apply_image(img), transform

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_arguments(self))})"


Augmentor = ImageAugmentor
"""The predecessor's other name for it."""


class PhotometricAugmentor(ImageAugmentor):
    """Base of augmentors that change pixels where they are. A subclass defines `change`, and `draw`
    if it is random.
    """  # noqa: D205

    def draw(self, img: Image, rng: RNG) -> Any:
        """What `change` needs to know to do the same again."""
        with lent(rng):
            return self._get_augment_params(img)

    def change(self, img: Image, drawn: Any) -> Image:
        """A new image of the same height and width; may not change `img`."""
        return self._augment(img.copy(), drawn)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return _DrawnTransform(self, self.draw(img, self.generator(rng)))


class _DrawnTransform(PhotometricTransform):
    def __init__(self, augmentor: PhotometricAugmentor, drawn: Any) -> None:
        super().__init__(partial(augmentor.change, drawn=drawn))
        self._augmentor = augmentor
        self._drawn = drawn

    def apply_image(self, img: Image) -> Image:
        return super().apply_image(check_image(img))

    def __repr__(self) -> str:
        # Not as a name when it is made: that would take as long as many a transform.
        drawn = "" if self._drawn is None else f", drawn as {self._drawn!r:.60}"
        return f"PhotometricTransform({self._augmentor!r}{drawn})"


class CompositeAugmentor(ImageAugmentor):
    """Base of augmentors made of augmentors. A subclass defines `steps`.

    Each step sees the image as the steps before it leave it, so `get_transform` applies all but
    the last; `augment_with_transform` does no work twice.
    """

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        """Which augmentors to apply this time, one after the other."""
        raise NotImplementedError

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        rng = self.generator(rng)
        steps = self.steps(rng)
        transforms: list[Transform] = []
        for number, step in enumerate(steps, 1):
            transforms.append(step.get_transform(img, rng))
            if number < len(steps):
                img = transforms[-1].apply_image(img)
        return TransformList(transforms)

    def augment_with_transform(self, img: Image, rng: RNG | None = None) -> tuple[Image, Transform]:
        img, rng = check_image(img), self.generator(rng)
        transforms: list[Transform] = []
        for step in self.steps(rng):
            img, transform = step.augment_with_transform(img, rng)
            transforms.append(transform)
        return img, TransformList(transforms)


class AugmentorList(CompositeAugmentor):
    """Augmentors one after the other. Lists can be added: `one + other`, `one + [other]`.

    Args:
        augmentors: The first is applied first.
    """

    def __init__(self, augmentors: Sequence[ImageAugmentor]) -> None:
        self.augmentors = check_augmentors(augmentors)

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return self.augmentors

    def __add__(self, other: AugmentorList | Sequence[ImageAugmentor]) -> AugmentorList:
        return AugmentorList([*self.augmentors, *other])

    def __radd__(self, other: Sequence[ImageAugmentor]) -> AugmentorList:
        return AugmentorList([*other, *self.augmentors])

    def __iter__(self) -> Iterator[ImageAugmentor]:
        return iter(self.augmentors)

    def __len__(self) -> int:
        return len(self.augmentors)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"AugmentorList({self.augmentors!r})"


def check_augmentors(augmentors: Any) -> list[ImageAugmentor]:
    """One or several augmentors as a list.

    Raises:
        ConfigError: Something else is among them.
    """
    several: Any = [augmentors] if isinstance(augmentors, ImageAugmentor) else augmentors
    if isinstance(augmentors, AugmentorList):
        several = augmentors.augmentors
    if not isinstance(several, Iterable):
        raise ConfigError(f"{several!r:.60} is no augmentor.", expected="one, or a list of them")
    several = list(cast("Iterable[Any]", several))
    for augmentor in several:
        if not isinstance(augmentor, ImageAugmentor):
            raise ConfigError(
                f"{augmentor!r:.60} is no augmentor.",
                fix="MapImage(f) makes one of a function; an instance, not a class, of yours",
            )
    return several


def _arguments(augmentor: object) -> Iterator[str]:
    """Those arguments that are attributes, too, and are not what they are by default."""
    for number, (name, parameter) in enumerate(_parameters(augmentor)):
        if not hasattr(augmentor, name):
            continue
        value = getattr(augmentor, name)
        required = parameter.default is inspect.Parameter.empty
        if required or not _equal(value, parameter.default):
            yield f"{value!r:.60}" if required and number == 0 else f"{name}={value!r:.60}"


def _parameters(augmentor: object) -> Iterator[tuple[str, inspect.Parameter]]:
    parameters = cast("dict[str, Any]", inspect.signature(type(augmentor)).parameters)
    return iter(parameters.items())


def _equal(one: Any, other: Any) -> bool:
    return one is other or bool(np.all(one == other))
