"""Augmentors in the style of the predecessor: what they inherit so that they go on working.

They draw from `self.rng`, in `_get_augment_params` or in a `get_transform(img)` that takes no
generator. While one of them draws, a context variable holds the generator of the datapoint.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow.images._image import Image
from towerpack.dataflow.images._transform import Transform, as_floats

RNG = np.random.Generator

_DRAWING: ContextVar[RNG | None] = ContextVar("towerpack_augmentor", default=None)


class LegacyAugmentor:
    """The generator of an augmentor, and what subclasses in the old style call and define."""

    __own: tuple[int, RNG] | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        own = cls.__dict__.get("get_transform")
        if inspect.isfunction(own) and "rng" not in inspect.signature(own).parameters:
            cls.get_transform = _with_rng(own)  # pyright: ignore[reportAttributeAccessIssue]

    def __getstate__(self) -> dict[str, Any]:
        # Two copies that draw the same numbers would be a trap.
        own = "_LegacyAugmentor__own"
        return {key: value for key, value in self.__dict__.items() if key != own}

    def generator(self, rng: RNG | None = None) -> RNG:
        """`rng`, or where there is none, the augmentor's own unseeded generator."""
        rng = _DRAWING.get() if rng is None else rng
        if rng is not None:
            return rng
        # A forked child must not draw what its parent draws.
        if self.__own is None or self.__own[0] != os.getpid():
            self.__own = (os.getpid(), np.random.default_rng())
        return self.__own[1]

    def reset_state(self) -> None:
        """Draw afresh where no generator is given; pipelines need no such call."""
        self.__own = None

    @property
    def rng(self) -> np.random.RandomState:
        """The generator of the datapoint that is being augmented, with the old methods."""
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
        raise NotImplementedError(f"{type(self).__name__} does not move coordinates")


class LegacyTransform(Transform):
    """What an augmentor in the old style has drawn; it was free to change its input."""

    def __init__(self, augmentor: LegacyAugmentor, param: Any) -> None:
        self._augmentor: Any = augmentor
        self._param = param

    def apply_image(self, img: Image) -> Image:
        return self._augmentor._augment(img.copy(), self._param)

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        coords = as_floats(coords, "coordinates", 2).copy()
        try:
            return self._augmentor._augment_coords(coords, self._param)
        except NotImplementedError as error:
            raise self._undefined("coordinates", "_augment_coords") from error

    def __repr__(self) -> str:
        return f"{self._augmentor!r}, drawn as {self._param!r:.60}"


@contextlib.contextmanager
def lent(rng: RNG) -> Generator[None]:
    """Let augmentors in the old style draw from `rng`."""
    token = _DRAWING.set(rng)
    try:
        yield
    finally:
        _DRAWING.reset(token)


def _with_rng(get_transform: Callable[[Any, Any], Transform]) -> Callable[..., Transform]:
    @functools.wraps(get_transform)
    def wrapped(self: Any, img: Any, rng: RNG | None = None) -> Transform:
        with lent(self.generator(rng)):
            return get_transform(self, img)

    return wrapped
