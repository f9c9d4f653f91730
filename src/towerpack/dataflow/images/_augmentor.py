"""Augmentors: what draws transforms. The bases, lists, choices, and one made of functions.

Those in the style of the predecessor draw from `self.rng`, in `_get_augment_params` or in a
`get_transform(img)`. While one of them draws, a context variable holds the datapoint's generator.
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
    """Draw a transform for an image. A subclass defines `get_transform`.

    Contract: what it draws is a function of the generator and of the image that it is given; its
    input is never changed; safe to use from several threads; pickles.
    """

    _own_generator: tuple[int, RNG] | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        own = cls.__dict__.get("get_transform")
        if inspect.isfunction(own) and "rng" not in inspect.signature(own).parameters:
            cls.get_transform = _with_rng(own)

    def __post_init__(self) -> None:
        check_arguments(self)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        """Draw once for an image, of which most augmentors look only at the shape."""
        with _lent(self.generator(rng)):
            return _LegacyTransform(self, self._get_augment_params(img))

    def augment(self, img: Image, rng: RNG | None = None) -> Image:
        """The image, changed at random."""
        return self.augment_with_transform(img, rng)[0]

    def __call__(self, img: Image, rng: RNG | None = None) -> Image:
        return self.augment(img, rng)

    def augment_with_transform(self, img: Image, rng: RNG | None = None) -> tuple[Image, Transform]:
        """The image, changed at random, and what was done, to be applied to what belongs to it."""
        transform = self.get_transform(check_image(img), rng)
        return transform.apply_image(img), transform

    def generator(self, rng: RNG | None = None) -> RNG:
        """`rng`, or where there is none, the augmentor's own unseeded generator."""
        rng = _DRAWING.get() if rng is None else rng
        if rng is not None:
            return rng
        # A forked child must not draw what its parent draws.
        if self._own_generator is None or self._own_generator[0] != os.getpid():
            self._own_generator = (os.getpid(), np.random.default_rng())
        return self._own_generator[1]

    def reset_state(self) -> None:
        """Draw afresh where no generator is given; pipelines need no such call."""
        self._own_generator = None

    def __getstate__(self) -> dict[str, Any]:
        # Two copies that draw the same numbers would be a trap.
        return {key: value for key, value in self.__dict__.items() if key != "_own_generator"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_arguments(self))})"

    # What subclasses in the predecessor's style call and define

    @property
    def rng(self) -> np.random.RandomState:
        """The datapoint's generator, with the old methods."""
        return np.random.RandomState(self.generator().bit_generator)

    def _init(self, params: dict[str, Any] | None = None) -> None:
        """Make attributes of arguments: `self._init(locals())`."""
        for key, value in (params or {}).items():
            if key != "self" and not key.startswith("_"):
                setattr(self, key, value)

    def _rand_range(self, low: float = 1.0, high: float | None = None, size: Any = None) -> Any:
        """Uniform in [low, high), or in [0, low)."""
        low, high = (0.0, low) if high is None else (low, high)
        uniform: Any = self.generator().uniform
        return uniform(low, high, size)

    def _get_augment_params(self, img: Image) -> Any:
        """Draw, from `self.rng`, what `_augment` needs."""
        return None

    def _augment(self, img: Image, param: Any) -> Image:
        """The image, changed as drawn."""
        raise NotImplementedError(f"{type(self).__name__} defines neither get_transform nor this")

    def _augment_coords(self, coords: NDArray[Any], param: Any) -> NDArray[Any]:
        """Points (x, y) of shape [n, 2], moved as drawn."""
        raise NotImplementedError(
            f"{type(self).__name__} has no _augment_coords: define it and return the moved coords"
        )


Augmentor = ImageAugmentor
"""The predecessor's other name for it."""


class _LegacyTransform(Transform):
    """Transform of an augmentor in the predecessor's style, which may change its input."""

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
def _lent(rng: RNG) -> Generator[None]:
    """Let augmentors in the old style draw from `rng`."""
    token = _DRAWING.set(rng)
    try:
        yield
    finally:
        _DRAWING.reset(token)


def _with_rng(get_transform: Callable[[Any, Any], Transform]) -> Any:
    def wrapped(self: Any, img: Any, rng: RNG | None = None) -> Transform:
        with _lent(self.generator(rng)):
            return get_transform(self, img)

    return wrapped


class PhotometricAugmentor(ImageAugmentor):
    """Base of augmentors that change pixels where they are: by `change`, with what `draw` drew."""

    def draw(self, img: Image, rng: RNG) -> Any:
        """What `change` needs to know to do the same again."""
        with _lent(rng):
            return self._get_augment_params(img)

    def change(self, img: Image, drawn: Any) -> Image:
        """A new image of the same height and width; may not change `img`."""
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
    """Change nothing."""

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return NoOpTransform()


class CompositeAugmentor(ImageAugmentor):
    """Base of augmentors made of augmentors. A subclass defines `steps`.

    Each step sees the image as the steps before it leave it, so `get_transform` applies them all.
    """

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        """Which augmentors to apply this time, one after the other."""
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
    """Augmentors one after the other. Lists can be added: `one + other`, `one + [other]`."""

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
    """Apply an augmentor to some of the images: to each with probability `prob`."""

    aug: ImageAugmentor
    prob: Probability

    def steps(self, rng: RNG) -> Sequence[ImageAugmentor]:
        return [self.aug] if rng.random() < self.prob else []


@dataclass(eq=False, repr=False)
class RandomChooseAug(CompositeAugmentor):
    """Apply one of several augmentors.

    Args:
        aug_lists: Augmentors, all as likely as each other, or pairs (augmentor, probability).
    """

    aug_lists: Sequence[ImageAugmentor | tuple[ImageAugmentor, float]]

    def __post_init__(self) -> None:
        given: Any = self.aug_lists
        several: list[Any] = [*given] if isinstance(given, Iterable) else [given]
        if not several or not all(isinstance(item, (list, tuple)) for item in several):
            several = [(augmentor, 1 / len(several)) for augmentor in several]
        self._augmentors = check_augmentors([augmentor for augmentor, _ in several])
        weights = [float(prob) for _, prob in several]
        if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"The probabilities {weights} do not sum to 1.")
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
    """An augmentor that is not random, made of functions.

    Args:
        func: From an image to an image. In a stage with `copy=True`, the default, it may work in
            place; elsewhere it may not.
        coord_func, mask_func: What becomes of coordinates [n, 2] and masks; refused without it.
    """

    func: Callable[[Image], Image]
    coord_func: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    mask_func: Callable[[Image], Image] | None = None

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        functions: dict[str, Any] = {"apply_mask": self.mask_func, "apply_coords": self.coord_func}
        given = {name: f for name, f in functions.items() if f is not None}
        name = f"MapImage({function_name(self.func)})"
        return TransformFactory(name, apply_image=self.func, **given)


def check_augmentors(augmentors: Any) -> list[ImageAugmentor]:
    """One or several augmentors as a list, or a `ConfigError`."""
    several: list[Any] = [*augmentors] if isinstance(augmentors, Iterable) else [augmentors]
    for augmentor in several:
        if not isinstance(augmentor, ImageAugmentor):
            fix = "MapImage(f) makes one of a function; an instance, not a class, of yours"
            raise ConfigError(f"{augmentor!r:.60} is no augmentor.", fix=fix)
    return several


def _arguments(augmentor: object) -> Iterator[str]:
    """Those arguments that are attributes, too, and are not what they are by default."""
    parameters = inspect.signature(type(augmentor)).parameters
    for number, (name, parameter) in enumerate(parameters.items()):
        value, default = getattr(augmentor, name, parameter.default), parameter.default
        if value is not default and not np.all(value == default):
            required = default is inspect.Parameter.empty
            yield f"{value!r:.60}" if required and number == 0 else f"{name}={value!r:.60}"
