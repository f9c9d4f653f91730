"""Augmentors: what draws transforms. The bases, lists, choices, and one made of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import Probability, check_arguments
from towerpack.dataflow.images._image import Image, check_image
from towerpack.dataflow.images._legacy import LegacyAugmentor, LegacyTransform, lent
from towerpack.dataflow.images._transform import (
    NoOpTransform,
    PhotometricTransform,
    Transform,
    TransformFactory,
    TransformList,
)
from towerpack.dataflow.stages._mapping import function_name

RNG = np.random.Generator


class ImageAugmentor(LegacyAugmentor):
    """Draws a transform for an image. A subclass defines `get_transform`.

    Contract: what it draws is a function of the generator and of the image that it is given; its
    input is never changed; safe to use from several threads; pickles.
    """

    def __post_init__(self) -> None:
        check_arguments(self)

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


class Identity(ImageAugmentor):
    """Changes nothing."""

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return NoOpTransform()


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
        transforms: list[Transform] = []
        for step in self.steps(rng):
            img = transforms[-1].apply_image(img) if transforms else img
            transforms.append(step.get_transform(img, rng))
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


@dataclass(eq=False, repr=False)
class RandomApplyAug(CompositeAugmentor):
    """Applies an augmentor to some of the images.

    Args:
        aug: The augmentor.
        prob: How likely.
    """

    aug: ImageAugmentor
    prob: Probability

    def __post_init__(self) -> None:
        super().__post_init__()
        check_augmentors([self.aug])

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return [self.aug] if rng.random() < self.prob else []


@dataclass(eq=False, repr=False)
class RandomChooseAug(CompositeAugmentor):
    """Applies one of several augmentors.

    Args:
        aug_lists: Augmentors, all as likely as each other, or pairs (augmentor, probability).
    """

    aug_lists: Sequence[ImageAugmentor | tuple[ImageAugmentor, float]]

    def __post_init__(self) -> None:
        given: Any = self.aug_lists
        several: list[Any] = (
            [*given] if isinstance(given, (list, tuple)) else [*check_augmentors(given)]
        )
        if not any(isinstance(item, (list, tuple)) for item in several):
            several = [(augmentor, 1 / len(several)) for augmentor in several]
        try:
            pairs = [(augmentor, float(prob)) for augmentor, prob in several]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self!r}: augmentors with and without probabilities.",
                expected="a list of augmentors, or a list of pairs (augmentor, probability)",
            ) from error
        self._augmentors = check_augmentors([augmentor for augmentor, _ in pairs])
        weights = [prob for _, prob in pairs]
        if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"The probabilities {weights} do not sum to 1.")
        self._probabilities = np.array(weights) / sum(weights)

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return [self._augmentors[rng.choice(len(self._augmentors), p=self._probabilities)]]


@dataclass(eq=False, repr=False)
class RandomOrderAug(CompositeAugmentor):
    """Applies augmentors in random order.

    Args:
        aug_lists: The augmentors.
    """

    aug_lists: Sequence[ImageAugmentor]

    def __post_init__(self) -> None:
        self._augmentors = check_augmentors(self.aug_lists)

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        order: list[int] = rng.permutation(len(self._augmentors)).tolist()
        return [self._augmentors[i] for i in order]


@dataclass(eq=False, repr=False)
class MapImage(ImageAugmentor):
    """An augmentor that is not random, made of functions.

    Args:
        func: From an image to an image. In a stage with `copy=True`, the default, it may work in
            place; elsewhere it may not.
        coord_func: What becomes of coordinates [n, 2]; without it they are refused.
        mask_func: What becomes of masks; without it they are refused.
    """

    func: Callable[[Image], Image]
    coord_func: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    mask_func: Callable[[Image], Image] | None = None

    def __post_init__(self) -> None:
        if not callable(cast("object", self.func)):
            raise ConfigError(f"MapImage needs a function, not {self.func!r:.60}.")

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        functions = {"mask": self.mask_func, "coords": self.coord_func, "image": self.func}
        given = {f"apply_{key}": f for key, f in functions.items() if f is not None}
        return TransformFactory(
            f"MapImage({function_name(self.func)})", **cast("dict[str, Any]", given)
        )


def check_augmentors(augmentors: Any) -> list[ImageAugmentor]:
    """One or several augmentors as a list, or a `ConfigError`."""
    alone = isinstance(augmentors, ImageAugmentor) and not isinstance(augmentors, AugmentorList)
    several: Any = [augmentors] if alone else augmentors
    if not isinstance(several, Iterable):
        raise ConfigError(f"{several!r:.60} is no augmentor.", expected="one, or a list of them")
    found: list[ImageAugmentor] = []
    for augmentor in cast("Iterable[Any]", several):
        if not isinstance(augmentor, ImageAugmentor):
            raise ConfigError(
                f"{augmentor!r:.60} is no augmentor.",
                fix="MapImage(f) makes one of a function; an instance, not a class, of yours",
            )
        found.append(augmentor)
    return found


def _arguments(augmentor: object) -> Iterator[str]:
    """Those arguments that are attributes, too, and are not what they are by default."""
    parameters = cast("dict[str, Any]", inspect.signature(type(augmentor)).parameters)
    for number, (name, parameter) in enumerate(parameters.items()):
        if not hasattr(augmentor, name):
            continue
        value, default = getattr(augmentor, name), parameter.default
        required = default is inspect.Parameter.empty
        if required or not (value is default or bool(np.all(value == default))):
            yield f"{value!r:.60}" if required and number == 0 else f"{name}={value!r:.60}"
