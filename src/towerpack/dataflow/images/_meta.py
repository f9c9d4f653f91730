"""Augmentors that choose among augmentors, and one that is made of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.images._augmentor import (
    RNG,
    CompositeAugmentor,
    ImageAugmentor,
    check_augmentors,
)
from towerpack.dataflow.images._flip import check_probability
from towerpack.dataflow.images._image import Image
from towerpack.dataflow.images._transform import NoOpTransform, Transform, TransformFactory
from towerpack.dataflow.stages._map import function_name


class Identity(ImageAugmentor):
    """Changes nothing."""

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return NoOpTransform()


@dataclass(eq=False, repr=False)
class RandomApplyAug(CompositeAugmentor):
    """Applies an augmentor to some of the images.

    Args:
        aug: The augmentor.
        prob: How likely.
    """

    aug: ImageAugmentor
    prob: float

    def __post_init__(self) -> None:
        check_augmentors([self.aug])
        check_probability(self.prob)

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
        several: list[ImageAugmentor | tuple[ImageAugmentor, float]] = (
            [*given] if isinstance(given, (list, tuple)) else [*check_augmentors(given)]
        )
        pairs = [item for item in several if isinstance(item, (tuple, list))]
        if not several or len(pairs) not in (0, len(several)):
            raise ConfigError(
                f"{self!r}: augmentors with and without probabilities.",
                expected="a list of augmentors, or a list of pairs (augmentor, probability)",
            )
        count = len(several)
        weights = [float(prob) for _, prob in pairs] or [1 / count] * count
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise ConfigError(f"The probabilities {weights} do not sum to 1.")
        self._probabilities = np.array(weights) / sum(weights)
        self._augmentors = check_augmentors([aug for aug, _ in pairs] or several)

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
