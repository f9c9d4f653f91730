from __future__ import annotations

import copy
import importlib
import random
import threading
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images._arguments import BORDERS
from towerpack.dataflow.images._augmentor import RNG, ImageAugmentor
from towerpack.dataflow.images._noise import draw_seed
from towerpack.dataflow.images._transform import GeometricTransform, Transform
from towerpack.dataflow.images.image import Image, Points, check_image, size_of

_COPIES = threading.local()  # each thread uses its own copies of the transforms


class Albumentations(ImageAugmentor):
    """Apply one or several transforms of albumentations 2.0, the last MIT-licensed version.

    `Albumentations(A.Compose([A.HorizontalFlip(), A.RandomGamma()]))` draws its random numbers from
    the generator of the pipeline. Masks, boxes, coordinates and keypoints are transformed like the
    image, each in another run of the transforms. Boxes are moved by their corners, and
    `bbox_params` have no effect. After a resize, points are off by up to half a pixel of the
    smaller image. Points that a distortion removes become NaN and keep their row. Each thread uses
    a copy of the transforms.

    Args:
        transform: One transform of albumentations, or a list of them.
    """

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        package: Any = importlib.import_module("albumentations")
        several = isinstance(transform, (list, tuple))
        steps = list(cast("list[Any]", transform)) if several else [transform]
        points = package.KeypointParams(format="xy", remove_invisible=False)
        self._composed = package.Compose(steps, keypoint_params=points)

    def get_transform(self, img: Image, rng: RNG | None = None) -> Transform:
        return AlbumentationsTransform(self, img, draw_seed(self.generator(rng)))

    def run(self, seed: int, img: Image, **targets: Any) -> dict[str, Any]:
        copies = _COPIES.__dict__.setdefault("copies", WeakKeyDictionary()).setdefault(self, {})
        has_points = "keypoints" in targets
        composed = copies.get(has_points)
        if composed is None:
            composed = copies[has_points] = copy.deepcopy(self._composed)
            if has_points:
                _disable_reflections(composed)
        composed.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return composed(image=img, **targets)


class AlbumentationsTransform(GeometricTransform):
    # The image is stored because every transform needs its size, and some need its pixels.

    def __init__(self, augmentor: Albumentations, img: Image, seed: int) -> None:
        self._augmentor = augmentor
        self._img = img
        self._seed = seed

    def apply_image(self, img: Image) -> Image:
        return self._augmentor.run(self._seed, check_image(img))["image"]

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        plain = mask.view(np.uint8) if mask.dtype == bool else mask  # OpenCV cannot warp bool
        moved: Image = self._augmentor.run(self._seed, self._img, mask=plain)["mask"]
        return moved.astype(mask.dtype, copy=False)

    def move(self, points: Points) -> Points:
        moved = np.full(points.shape, np.nan)
        # The third column holds row numbers, because albumentations drops some points.
        numbered = np.column_stack([points - 0.5, np.arange(len(points))]).astype(np.float32)
        numbered = numbered[np.isfinite(points).all(axis=1)]
        if not len(numbered):
            return moved
        result = self._augmentor.run(self._seed, self._img, keypoints=numbered)
        rows = np.asarray(result["keypoints"], np.float64).reshape(-1, 3)
        moved[rows[:, 2].astype(int)] = rows[:, :2] + 0.5
        return moved

    def __repr__(self) -> str:
        return f"AlbumentationsTransform({describe(self._img)}, seed={self._seed})"


def _disable_reflections(composed: Any) -> None:
    """Use constant borders, because mirrored borders would return each point several times."""
    for transform in composed.transforms:
        if hasattr(transform, "transforms"):
            _disable_reflections(transform)
        elif hasattr(transform, "border_mode"):
            transform.border_mode = BORDERS["constant"]
