"""Base classes of augmentors, and augmentors that combine others.

An augmentor draws a random transform for each image.

Augmentors in Tensorpack's style draw from `self.rng`, in `_get_augment_params` or in
`get_transform(img)`. While they draw, a context variable holds the datapoint's generator.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._arguments import Probability, check_arguments
from towerpack.dataflow.images._transform import (
    NoOpTransform,
    PhotometricTransform,
    Transform,
    TransformFactory,
    TransformList,
    as_floats,
)
from towerpack.dataflow.images.image import Image, check_image
from towerpack.dataflow.stages._on_error import function_name

RNG = np.random.Generator

_DRAWING: ContextVar[RNG | None] = ContextVar("towerpack_augmentor", default=None)


class ImageAugmentor:
    """Base class of augmentors, which draw a transform for an image in `get_transform`.

    The transform is a function of the random generator and the image. Augmentors never change their
    input, are thread-safe, and can be pickled.
    """

    _unseeded: tuple[int, RNG] | None = None  # process id and generator

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        method = cls.__dict__.get("get_transform")
        if inspect.isfunction(method) and "rng" not in inspect.signature(method).parameters:
            cls.get_transform = _with_rng(method)

    def __post_init__(self) -> None:
        check_arguments(self)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        """Draw a transform for an image. Most augmentors use only the shape of the image.

        Args:
            img: [height, width] or [height, width, channels], uint8 or float32.
            rng: Generator to draw from. By default, an unseeded generator of this augmentor.
        """
        with _drawing_from(self.generator(rng)):
            return _LegacyTransform(self, self._get_augment_params(img))

    def augment(self, img: Image, rng: RNG | None = None) -> Image:
        """Return the augmented image.

        Args:
            img, rng: Image, and generator to draw from, as for `get_transform`.
        """
        return self.augment_with_transform(img, rng)[0]

    def __call__(self, img: Image, rng: RNG | None = None) -> Image:
        return self.augment(img, rng)

    def augment_with_transform(self, img: Image, rng: RNG | None = None) -> tuple[Image, Transform]:
        """Return the augmented image and its transform, to apply to masks, boxes and points.

        Args:
            img, rng: See `get_transform`.
        """
        transform = self.get_transform(check_image(img), rng)
        return transform.apply_image(img), transform

    def generator(self, rng: RNG | None = None) -> RNG:
        # `rng`, that of the datapoint, or an unseeded generator of this augmentor.
        rng = _DRAWING.get() if rng is None else rng
        if rng is not None:
            return rng
        # A forked child must not draw the same numbers as its parent.
        if self._unseeded is None or self._unseeded[0] != os.getpid():
            self._unseeded = (os.getpid(), np.random.default_rng())
        return self._unseeded[1]

    def reset_state(self) -> None:
        """Replace the unseeded generator. Pipelines do this automatically."""
        self._unseeded = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies must not draw the same numbers as the original.
        return {key: value for key, value in self.__dict__.items() if key != "_unseeded"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_arguments(self))})"

    # Methods that subclasses in Tensorpack's style call and define

    @property
    def rng(self) -> np.random.RandomState:
        """Random generator of the datapoint, with the methods of `np.random.RandomState`."""
        return np.random.RandomState(self.generator().bit_generator)

    def _init(self, params: dict[str, Any] | None = None) -> None:
        """Set attributes from arguments: `self._init(locals())`."""
        for key, value in (params or {}).items():
            if key != "self" and not key.startswith("_"):
                setattr(self, key, value)

    def _rand_range(self, low: float = 1.0, high: float | None = None, size: Any = None) -> Any:
        """Draw a number uniformly from [low, high), or from [0, low) without `high`."""
        low, high = (0.0, low) if high is None else (low, high)
        uniform: Any = self.generator().uniform
        return uniform(low, high, size)

    def _get_augment_params(self, img: Image) -> Any:
        """Draw the parameters of `_augment` from `self.rng`."""
        return None

    def _augment(self, img: Image, param: Any) -> Image:
        """Return the image, changed by the parameters `param`."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} must define get_transform or _augment.")

    def _augment_coords(self, coords: NDArray[Any], param: Any) -> NDArray[Any]:
        """Return points (x, y) of shape [n, 2], moved by the parameters `param`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define _augment_coords to move coordinates."
        )


Augmentor = ImageAugmentor
"""Alias of `ImageAugmentor` from Tensorpack."""


class _LegacyTransform(Transform):
    # Augmentors in Tensorpack's style may change their input, so that each call gets a copy.

    def __init__(self, augmentor: ImageAugmentor, param: Any) -> None:
        self._augmentor: Any = augmentor
        self._param = param

    def apply_image(self, img: Image) -> Image:
        return self._augmentor._augment(img.copy(), self._param)

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        coords = as_floats(coords, "coordinates", 2).copy()
        return self._augmentor._augment_coords(coords, self._param)

    def __repr__(self) -> str:
        return f"{self._augmentor!r}, drawn as {self._param!r:.60}"


@contextlib.contextmanager
def _drawing_from(rng: RNG) -> Generator[None]:
    """Make augmentors in Tensorpack's style draw from `rng` in the `with` block."""
    token = _DRAWING.set(rng)
    try:
        yield
    finally:
        _DRAWING.reset(token)


def _with_rng(get_transform: Callable[[Any, Any], Transform]) -> Any:
    def wrapped(self: Any, img: Any, rng: RNG | None = None) -> Transform:
        with _drawing_from(self.generator(rng)):
            return get_transform(self, img)

    return wrapped


class PhotometricAugmentor(ImageAugmentor):
    """Base class of augmentors that change the values of pixels but do not move pixels.

    A subclass defines `change(img, drawn)`, which returns a new image of the same height and width,
    and, if it is random, `draw(img, rng)`, which returns the random parameters `drawn`.
    """

    def draw(self, img: Image, rng: RNG) -> Any:
        with _drawing_from(rng):
            return self._get_augment_params(img)

    def change(self, img: Image, drawn: Any) -> Image:
        return self._augment(img.copy(), drawn)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return _DrawnTransform(self, self.draw(img, self.generator(rng)))


class _DrawnTransform(PhotometricTransform):
    def __init__(self, augmentor: PhotometricAugmentor, drawn: Any) -> None:
        self._augmentor = augmentor
        self._drawn = drawn

    def apply_image(self, img: Image) -> Image:
        return self._augmentor.change(check_image(img), self._drawn)

    def __repr__(self) -> str:
        drawn = "" if self._drawn is None else f", drawn as {self._drawn!r:.60}"
        return f"PhotometricTransform({self._augmentor!r}{drawn})"


class Identity(ImageAugmentor):
    """Augmentor that returns images unchanged."""

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return NoOpTransform()


class CompositeAugmentor(ImageAugmentor):
    """Base class of augmentors that apply other augmentors.

    A subclass defines `steps(rng)`, which returns the augmentors to apply to an image. Each of
    these draws for the image that the augmentor before it returns, so `get_transform` applies them.
    """

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        raise NotImplementedError

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return self.augment_with_transform(img, rng)[1]

    def augment_with_transform(self, img: Image, rng: RNG | None = None) -> tuple[Image, Transform]:
        img, rng = check_image(img), self.generator(rng)
        transforms: list[Transform] = []
        for step in self.steps(rng):
            img, transform = step.augment_with_transform(img, rng)
            transforms.append(transform)
        return img, TransformList(transforms)


class AugmentorList(CompositeAugmentor):
    """List of augmentors that are applied in order. Lists can be added: `first + [second]`.

    Args:
        augmentors: The augmentors.
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

    def __repr__(self) -> str:
        return f"AugmentorList({self.augmentors!r})"


@dataclass(eq=False, repr=False)
class RandomApplyAug(CompositeAugmentor):
    """Apply the augmentor `aug` to each image with probability `prob`."""

    aug: ImageAugmentor
    prob: Probability

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return [self.aug] if rng.random() < self.prob else []


@dataclass(eq=False, repr=False)
class RandomChooseAug(CompositeAugmentor):
    """Apply one of several augmentors, chosen at random for each image.

    Args:
        aug_lists: Augmentors with equal probabilities, or pairs (augmentor, probability).
    """

    aug_lists: Sequence[ImageAugmentor | tuple[ImageAugmentor, float]]

    def __post_init__(self) -> None:
        pairs = _as_list(self.aug_lists)
        if not pairs or not all(isinstance(item, (list, tuple)) for item in pairs):
            pairs = [(augmentor, 1 / len(pairs)) for augmentor in pairs]
        self._augmentors = check_augmentors([augmentor for augmentor, _ in pairs])
        weights = [float(prob) for _, prob in pairs]
        if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"Probabilities must be 0 or more and sum to 1, got {weights}.")
        self._probabilities = np.array(weights) / sum(weights)

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return [self._augmentors[rng.choice(len(self._augmentors), p=self._probabilities)]]


@dataclass(eq=False, repr=False)
class RandomOrderAug(CompositeAugmentor):
    """Apply augmentors in random order."""

    aug_lists: Sequence[ImageAugmentor]

    def __post_init__(self) -> None:
        self._augmentors = check_augmentors(self.aug_lists)

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        order: list[int] = rng.permutation(len(self._augmentors)).tolist()
        return [self._augmentors[i] for i in order]


@dataclass(eq=False, repr=False)
class MapImage(ImageAugmentor):
    """Augmentor that applies a function, without randomness.

    Args:
        func: Function from an image to an image. It may change its input in a stage with
            `copy=True` (the default), and must not elsewhere.
        coord_func, mask_func: Functions for coordinates [n, 2] and for masks. Without these
            functions, coordinates and masks raise an error.
    """

    func: Callable[[Image], Image]
    coord_func: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    mask_func: Callable[[Image], Image] | None = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        functions: dict[str, Any] = {"apply_mask": self.mask_func, "apply_coords": self.coord_func}
        optional = {name: f for name, f in functions.items() if f is not None}
        name = f"MapImage({function_name(self.func)})"
        return TransformFactory(name, apply_image=self.func, **optional)


def check_augmentors(augmentors: Any) -> list[ImageAugmentor]:
    for augmentor in (several := _as_list(augmentors)):
        if not isinstance(augmentor, ImageAugmentor):
            fix = "pass instances of ImageAugmentor, or wrap a function: MapImage(f)"
            raise ConfigError(f"An augmentor is expected, got {augmentor!r:.60}.", fix=fix)
    return several


def _as_list(augmentors: Any) -> list[Any]:
    return [*augmentors] if isinstance(augmentors, Iterable) else [augmentors]


def _arguments(augmentor: object) -> Iterator[str]:
    """Iterate over constructor arguments that differ from their defaults, as source text."""
    parameters = inspect.signature(type(augmentor)).parameters
    for number, (name, parameter) in enumerate(parameters.items()):
        value, default = getattr(augmentor, name, parameter.default), parameter.default
        if value is not default and not np.all(value == default):
            required = default is inspect.Parameter.empty
            yield f"{value!r:.60}" if required and number == 0 else f"{name}={value!r:.60}"
