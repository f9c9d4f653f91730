"""Transforms of the package albumentations, as an augmentor."""

from __future__ import annotations

import copy
import importlib
import random
import threading
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import MissingExtraError
from towerpack.dataflow._datapoints import describe
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._image import Image, check_image, size_of
from towerpack.dataflow.images._noise import draw_seed
from towerpack.dataflow.images._transform import GeometricTransform, Points, Transform


class Albumentations(ImageAugmentor):
    """Applies transforms of albumentations 2.0, the last version under the MIT licence.

    `Albumentations(A.Compose([A.HorizontalFlip(), A.RandomGamma()]))`, among other augmentors or
    alone. What it draws comes from the generator of the pipeline, not from seeds of its own. Masks,
    boxes, coordinates and keypoints follow; each of them costs another run. Boxes are moved by
    their corners, none is dropped, and `bbox_params` have no effect.

    Albumentations moves points by indices of pixels, and in resizes by a plain factor: there they
    are off by up to half a pixel of the smaller image.

    Contract: as `ImageAugmentor`. Each thread uses a copy of the transforms.

    Args:
        transform: A transform, a `Compose`, or several that are applied one after the other.

    Raises:
        MissingExtraError: The package is not installed.
    """

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self._composed = _composed(transform)
        self._copies = threading.local()

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return AlbumentationsTransform(self, img, draw_seed(self.generator(rng)))

    def run(self, seed: int, img: Image, **targets: Any) -> dict[str, Any]:
        """Apply the transforms with what a seed draws."""
        composed = getattr(self._copies, "composed", None)
        if composed is None:
            composed = self._copies.composed = copy.deepcopy(self._composed)
        composed.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return composed(image=img, **targets)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_copies"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._copies = threading.local()


class AlbumentationsTransform(GeometricTransform):
    """What was drawn for one image.

    Args:
        augmentor: Whose.
        img: The image; some transforms look at it, and all at its size.
        seed: What everything random follows from.
    """

    def __init__(self, augmentor: Albumentations, img: Image, seed: int) -> None:
        self._augmentor = augmentor
        self._img = img
        self._seed = seed

    def apply_image(self, img: Image) -> Image:
        return self._augmentor.run(self._seed, check_image(img))["image"]

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        moved: Image = self._augmentor.run(self._seed, self._img, mask=mask)["mask"]
        return moved.astype(mask.dtype, copy=False)

    def move(self, points: Points) -> Points:
        if not len(points):
            return points
        indices = (points - 0.5).astype(np.float32)
        run = self._augmentor.run(self._seed, self._img, keypoints=indices)
        moved: NDArray[Any] = np.asarray(run["keypoints"], np.float64)
        return moved[:, :2] + 0.5

    def __repr__(self) -> str:
        return f"AlbumentationsTransform({describe(self._img)}, seed={self._seed})"


def _composed(transform: Any) -> Any:
    """One `Compose` in which points are kept, wherever they come to lie."""
    try:
        package: Any = importlib.import_module("albumentations")
    except ImportError as error:
        raise MissingExtraError(
            f"The package 'albumentations' cannot be imported: {error}.",
            fix="pip install albumentations==2.0.8",
        ) from error
    several = cast("list[Any]", transform if isinstance(transform, (list, tuple)) else [transform])
    return package.Compose(
        list(several), keypoint_params=package.KeypointParams(format="xy", remove_invisible=False)
    )
