"""Transforms, which apply the same change to an image, its masks, boxes and points.

Coordinates are continuous. The pixel in row 0 and column 0 is the square from (0, 0) to (1, 1) with
the center (0.5, 0.5). A flip is therefore `w - x`, and a resize is a multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images.image import Image, Points

# Positions along the sides of a box that are tried if corners are lost. Most losses are at edges.
_ALONG = np.array([0, 0.01, 0.02, 0.05, *np.arange(1, 10) / 10, 0.95, 0.98, 0.99, 1])


class Transform:
    """Deterministic change of an image and of its masks, coordinates and boxes.

    Transforms never change their input, but may return it or a view of it. A subclass defines some
    of `apply_image`, `apply_mask` and `apply_coords`. The other methods are derived from these.
    """

    def apply_image(self, img: Image) -> Image:
        """Transform an image.

        Args:
            img: [height, width] or [height, width, channels], uint8 or float32.
        """
        raise self._undefined("images", "apply_image")

    def apply_mask(self, mask: Image) -> Image:
        """Move a label map like the image, without interpolating labels.

        Args:
            mask: [height, width] or [height, width, channels], of any dtype.
        """
        raise self._undefined("masks", "apply_mask")

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        """Apply the image's transform to points. The results may lie outside of the new image.

        Args:
            coords: [n, 2] points (x, y).
        """
        raise self._undefined("coordinates", "apply_coords")

    def apply_boxes(self, boxes: NDArray[Any]) -> NDArray[Any]:
        """Return the bounding boxes of the moved corners, without clipping. See `clip_boxes`.

        If a corner becomes NaN, points within the box are used instead. The result is NaN only if
        all points are lost.

        Args:
            boxes: [n, 4] boxes (x0, y0, x1, y1).
        """
        boxes = as_floats(boxes, "boxes", 4)
        moved = self._moved(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2))
        around = np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)
        lost = np.isnan(around).any(axis=1)
        if lost.any():
            some = self._moved(_points_within(boxes[lost]))
            # fmin and fmax ignore NaN unless all values are NaN.
            ends = [np.fmin.reduce(some, axis=1), np.fmax.reduce(some, axis=1)]
            around[lost] = np.concatenate(ends, axis=1)
        return around.astype(boxes.dtype)

    def apply_keypoints(self, keypoints: NDArray[Any]) -> NDArray[Any]:
        """Move keypoints like the image.

        Args:
            keypoints: [..., 2 or more], of which only x and y change; a third may be visibility.
        """
        points = as_keypoints(keypoints)
        moved = self._moved(points[..., :2])
        return np.concatenate([moved, points[..., 2:]], axis=-1).astype(points.dtype)

    def _moved(self, points: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.apply_coords(points.reshape(-1, 2))).reshape(points.shape)

    def _undefined(self, values: str, method: str) -> ConfigError:
        message = f"{self!r} cannot transform {values}, because it does not define {method}."
        return ConfigError(message, fix=f"define {method} in its class, or pass no {values}")


class GeometricTransform(Transform):
    """Base class of transforms that move pixels. Subclasses define `apply_image` and `apply_mask`.

    To transform points too, subclasses define `move`, which maps points float64 [n, 2] (x, y).
    """

    def move(self, points: Points) -> Points:
        raise self._undefined("coordinates", "move")

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        coords = as_floats(coords, "coordinates", 2)
        return self.move(coords.astype(np.float64)).astype(coords.dtype)


class PhotometricTransform(Transform):
    """Transform that changes pixels by a function. Masks, coordinates and boxes do not change.

    Args:
        func: Function from an image to a new image.
        name: Name in `repr` (default: the name of the function).
    """

    def __init__(self, func: Callable[[Image], Image], name: str | None = None) -> None:
        self._func = func
        self._name = name

    def apply_image(self, img: Image) -> Image:
        return self._func(img)

    def apply_mask(self, mask: Image) -> Image:
        return mask

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        return as_floats(coords, "coordinates", 2)

    def __repr__(self) -> str:
        name = self._name or getattr(self._func, "__name__", type(self._func).__name__)
        return f"PhotometricTransform({name})"


class NoOpTransform(PhotometricTransform):
    """Transform that changes nothing."""

    def __init__(self) -> None:
        pass

    def apply_image(self, img: Image) -> Image:
        return img

    def __repr__(self) -> str:
        return "NoOpTransform()"


class TransformFactory(Transform):
    """Transform that calls the given functions.

    Args:
        name: Name in `repr`.
        functions: Functions by the name of the method: `apply_image=`, `apply_mask=` and others.
    """

    def __init__(self, name: str | None = None, **functions: Callable[[Any], Any]) -> None:
        self._name = name
        self.__dict__.update(functions)

    def __repr__(self) -> str:
        methods = [key for key in self.__dict__ if key.startswith("apply_")]
        return f"TransformFactory({self._name or ', '.join(methods)})"


class TransformList(Transform):
    """Sequence of transforms, with each `apply_...` method that all of its transforms have.

    Boxes become the box around their corners after all transforms, except at transforms that define
    `apply_boxes` themselves.

    Args:
        tfms: The transforms.
    """

    def __init__(self, tfms: Iterable[Transform]) -> None:
        self.tfms = list(tfms)

    def apply_image(self, img: Image) -> Image:
        return self._chain("apply_image", img)

    def apply_mask(self, mask: Image) -> Image:
        return self._chain("apply_mask", mask)

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        return self._chain("apply_coords", as_floats(coords, "coordinates", 2))

    def apply_boxes(self, boxes: NDArray[Any]) -> NDArray[Any]:
        boxes = as_floats(boxes, "boxes", 4)
        for by_itself, run in groupby(self._flat(), _moves_boxes_by_itself):
            if by_itself:
                boxes = TransformList(run)._chain("apply_boxes", boxes)
            else:
                # Move corners through several transforms at once. Taking the box around them
                # after each transform would enlarge it with every rotation.
                boxes = Transform.apply_boxes(TransformList(run), boxes)
        return boxes

    def apply_keypoints(self, keypoints: NDArray[Any]) -> NDArray[Any]:
        return self._chain("apply_keypoints", as_keypoints(keypoints))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("apply_"):
            raise AttributeError(f"TransformList has no attribute {name!r}")
        return partial(self._chain, name)

    def __add__(self, other: TransformList | list[Transform]) -> TransformList:
        return TransformList([*self, *other])

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.tfms)

    def __len__(self) -> int:
        return len(self.tfms)

    def __repr__(self) -> str:
        return f"TransformList({self.tfms!r})"

    def _flat(self) -> Iterator[Transform]:
        for transform in self.tfms:
            yield from transform._flat() if type(transform) is TransformList else [transform]

    def _chain(self, method: str, value: Any) -> Any:
        for transform in self.tfms:
            value = getattr(transform, method)(value)
        return value


def clip_boxes(
    boxes: NDArray[Any], height: int, width: int, *, min_area: float = 0.0
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Clip boxes to the image, and select the boxes to keep.

    Args:
        boxes: [n, 4] boxes (x0, y0, x1, y1).
        height, width: Size of the image in pixels.
        min_area: Fraction of its area that a box must have inside of the image to be kept. The
            area inside must always be above 0.

    Returns:
        All boxes, clipped, and a mask [n] of the boxes to keep.
    """
    boxes = as_floats(boxes, "boxes", 4)
    clipped = np.clip(boxes, 0, np.array((width, height, width, height), boxes.dtype))
    # Inverted boxes have an area of 0. Use float64, because float16 ends at 65504.
    inside, whole = (
        np.maximum(all_[:, 2:].astype(np.float64) - all_[:, :2], 0).prod(axis=1)
        for all_ in (clipped, boxes)
    )
    return clipped, (inside > 0) & (inside >= min_area * whole)


def as_floats(values: Any, name: str, columns: int) -> NDArray[Any]:
    """Convert rows [n, columns] to floats. Float arrays keep their dtype."""
    array = _floats(values, columns)
    if array.ndim != 2 or array.shape[1] != columns:
        rule = f"[n, {columns}] " + ("(x, y)" if columns == 2 else "(x0, y0, x1, y1)")
        raise ConfigError(f"The shape of {name} must be {rule}, got {list(array.shape)}.")
    return array


def as_keypoints(keypoints: Any) -> NDArray[Any]:
    """Convert keypoints [..., 2 or more] to floats. Float arrays keep their dtype."""
    points = _floats(keypoints, 2)
    if points.ndim < 2 or points.shape[-1] < 2:
        expected = "[n, 2], [n, 3] with visibility, or [objects, n, 3]"
        what = "Keypoints must have x and y along their last axis."
        raise ConfigError(what, got=describe(points), expected=expected)
    return points


def _floats(values: Any, columns: int) -> NDArray[Any]:
    array: NDArray[Any] = np.asarray(values)
    array = array.reshape(0, columns) if array.shape == (0,) else array  # np.array([]) has no rows
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _points_within(boxes: NDArray[Any]) -> NDArray[Any]:
    starts, ends = boxes[:, None, None, :2], boxes[:, None, None, 2:]
    grid = np.stack(np.meshgrid(_ALONG, _ALONG), axis=-1)
    return (starts * (1 - grid) + ends * grid).reshape(len(boxes), -1, 2).astype(boxes.dtype)


def _moves_boxes_by_itself(transform: Transform) -> bool:
    return getattr(transform.apply_boxes, "__func__", None) is not Transform.apply_boxes
