"""Transforms of the package albumentations, as an augmentor."""

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

_COPIES = threading.local()  # of the transforms, as each thread uses its own


class Albumentations(ImageAugmentor):
    """Apply one or several transforms of albumentations 2.0, the last under the MIT licence.

    What `Albumentations(A.Compose([A.HorizontalFlip(), A.RandomGamma()]))` draws comes from the
    generator of the pipeline. Masks, boxes, coordinates and keypoints follow; each of them costs
    another run. Boxes are moved by their corners, and `bbox_params` have no effect. In resizes
    points are off by up to half a pixel of the smaller image. Points that distortions lose become
    NaN, in the row where they were.

    Contract: as `ImageAugmentor`. Each thread uses a copy of the transforms.
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
        """Apply the transforms with what a seed draws."""
        copies = _COPIES.__dict__.setdefault("of", WeakKeyDictionary()).setdefault(self, {})
        of_points = "keypoints" in targets
        composed = copies.get(of_points)
        if composed is None:
            composed = copies[of_points] = copy.deepcopy(self._composed)
            if of_points:
                _keep_no_reflections(composed)
        composed.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return composed(image=img, **targets)


class AlbumentationsTransform(GeometricTransform):
    """What was drawn for one image; some transforms look at it, and all at its size."""

    def __init__(self, augmentor: Albumentations, img: Image, seed: int) -> None:
        self._augmentor = augmentor
        self._img = img
        self._seed = seed

    def apply_image(self, img: Image) -> Image:
        return self._augmentor.run(self._seed, check_image(img))["image"]

    def apply_mask(self, mask: Image) -> Image:
        size_of(mask)
        plain = mask.view(np.uint8) if mask.dtype == bool else mask  # OpenCV warps no bool
        moved: Image = self._augmentor.run(self._seed, self._img, mask=plain)["mask"]
        return moved.astype(mask.dtype, copy=False)

    def move(self, points: Points) -> Points:
        """Where points come to lie; NaN for those that albumentations loses."""
        moved = np.full(points.shape, np.nan)
        # The third column is kept as it is: it tells which points are left.
        numbered = np.column_stack([points - 0.5, np.arange(len(points))]).astype(np.float32)
        numbered = numbered[np.isfinite(points).all(axis=1)]
        if not len(numbered):
            return moved
        run = self._augmentor.run(self._seed, self._img, keypoints=numbered)
        kept = np.asarray(run["keypoints"], np.float64).reshape(-1, 3)
        moved[kept[:, 2].astype(int)] = kept[:, :2] + 0.5
        return moved

    def __repr__(self) -> str:
        return f"AlbumentationsTransform({describe(self._img)}, seed={self._seed})"


def _keep_no_reflections(composed: Any) -> None:
    """At borders that mirror the image, keep one point of each, and not its reflections too."""
    for transform in composed.transforms:
        if hasattr(transform, "transforms"):
            _keep_no_reflections(transform)
        elif hasattr(transform, "border_mode"):
            transform.border_mode = BORDERS["constant"]
