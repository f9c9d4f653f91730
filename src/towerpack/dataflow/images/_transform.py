"""Transforms: what was drawn once, applied to an image and to everything that belongs to it.

Coordinates are continuous: the pixel in row 0 and column 0 is the square from (0, 0) to (1, 1), and
its centre is (0.5, 0.5). So a flip is `w - x`, and a resize is a plain multiplication.
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

# Where along the sides of a box to look for points that are not lost: most are lost at an edge.
_ALONG = np.array([0, 0.01, 0.02, 0.05, *np.arange(1, 10) / 10, 0.95, 0.98, 0.99, 1])


class Transform:
    """A deterministic change of an image, and of masks, coordinates and boxes alongside it.

    A transform never changes what it is given; it may return a view of it, or the same object. A
    subclass defines what it can do: `apply_image`, `apply_mask` and `apply_coords`; the other
    methods follow from these.
    """

    def apply_image(self, img: Image) -> Image:
        """The image, changed: [height, width] or [height, width, channels], uint8 or float32."""
        raise self._undefined("images", "apply_image")

    def apply_mask(self, mask: Image) -> Image:
        """A label map of any dtype, moved like the image: labels are picked, never mixed."""
        raise self._undefined("masks", "apply_mask")

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        """Points (x, y) of shape [n, 2], moved like the image; they may leave it."""
        raise self._undefined("coordinates", "apply_coords")

    def apply_boxes(self, boxes: NDArray[Any]) -> NDArray[Any]:
        """Boxes (x0, y0, x1, y1) of shape [n, 4]: each becomes the box around its moved corners.

        Not clipped; see `clip_boxes`. Where a corner is lost (becomes NaN), the box is that around
        those of its points which are left, and NaN if none is.
        """
        boxes = as_floats(boxes, "boxes", 4)
        moved = self._moved(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2))
        around = np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)
        lost = np.isnan(around).any(axis=1)
        if lost.any():
            some = self._moved(_points_within(boxes[lost]))
            # fmin and fmax pass over those that are lost, unless all are.
            ends = [np.fmin.reduce(some, axis=1), np.fmax.reduce(some, axis=1)]
            around[lost] = np.concatenate(ends, axis=1)
        return around.astype(boxes.dtype)

    def apply_keypoints(self, keypoints: NDArray[Any]) -> NDArray[Any]:
        """Keypoints [..., 2 or more]: x and y are moved, the rest (visibility) stays."""
        points = as_keypoints(keypoints)
        moved = self._moved(points[..., :2])
        return np.concatenate([moved, points[..., 2:]], axis=-1).astype(points.dtype)

    def _moved(self, points: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.apply_coords(points.reshape(-1, 2))).reshape(points.shape)

    def _undefined(self, what: str, method: str) -> ConfigError:
        message = f"{self!r} does not say what becomes of {what}."
        return ConfigError(message, fix=f"define {method} in it, or leave {what} out")


class GeometricTransform(Transform):
    """Base of transforms that move pixels: `apply_image`, `apply_mask` and `move` define it."""

    def move(self, points: Points) -> Points:
        """Where points (x, y) of shape [n, 2] come to lie. May not change `points`."""
        raise self._undefined("coordinates", "move")

    def apply_coords(self, coords: NDArray[Any]) -> NDArray[Any]:
        coords = as_floats(coords, "coordinates", 2)
        return self.move(coords.astype(np.float64)).astype(coords.dtype)


class PhotometricTransform(Transform):
    """Change pixels where they are by a function; masks, coordinates and boxes stay the same."""

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
    """Change nothing."""

    def __init__(self) -> None:
        pass

    def apply_image(self, img: Image) -> Image:
        return img

    def __repr__(self) -> str:
        return "NoOpTransform()"


class TransformFactory(Transform):
    """A transform made of functions: `apply_image=`, `apply_mask=`, or any other `apply_...`."""

    def __init__(self, name: str | None = None, **functions: Callable[[Any], Any]) -> None:
        self._name = name
        self.__dict__.update(functions)

    def __repr__(self) -> str:
        given = [key for key in self.__dict__ if key.startswith("apply_")]
        return f"TransformFactory({self._name or ', '.join(given)})"


class TransformList(Transform):
    """Transforms, one after the other; any `apply_...` that all of them have works.

    Boxes are moved by their corners, through all transforms that define no `apply_boxes` at once.
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
                # Not one transform's boxes after the other's: each would be the box around the
                # last one's box, and grow with every rotation.
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
    """Cut off what lies outside of the image, and say which boxes to keep.

    Args:
        boxes: [n, 4]: x0, y0, x1, y1.
        height, width: Of the image.
        min_area: A box is worth keeping if it has an area inside, and at least this fraction of
            its whole area.

    Returns:
        All boxes, clipped, and a mask [n] of those to keep: `boxes[keep], labels[keep]`.
    """
    boxes = as_floats(boxes, "boxes", 4)
    clipped = np.clip(boxes, 0, np.array((width, height, width, height), boxes.dtype))
    # 0 for boxes that end before they begin. In float64: float16 ends at 65504.
    inside, whole = (
        np.maximum(all_[:, 2:].astype(np.float64) - all_[:, :2], 0).prod(axis=1)
        for all_ in (clipped, boxes)
    )
    return clipped, (inside > 0) & (inside >= min_area * whole)


def as_floats(values: Any, what: str, columns: int) -> NDArray[Any]:
    """Rows [n, columns] as an array of floats, whose dtype stays as it is, or a `ConfigError`."""
    array = _floats(values, columns)
    if array.ndim != 2 or array.shape[1] != columns:
        expected = f"[n, {columns}]: " + ("x, y" if columns == 2 else "x0, y0, x1, y1")
        what = f"The shape {list(array.shape)} is not that of {what}."
        raise ConfigError(what, expected=expected)
    return array


def as_keypoints(keypoints: Any) -> NDArray[Any]:
    """Keypoints [..., 2 or more] as an array of floats, as `as_floats`, or a `ConfigError`."""
    points = _floats(keypoints, 2)
    if points.ndim < 2 or points.shape[-1] < 2:
        expected = "[n, 2], [n, 3] with visibility, or [objects, n, 3]"
        what = "Keypoints have x and y along their last axis."
        raise ConfigError(what, got=describe(points), expected=expected)
    return points


def _floats(values: Any, columns: int) -> NDArray[Any]:
    array: NDArray[Any] = np.asarray(values)
    array = array.reshape(0, columns) if array.shape == (0,) else array  # np.array([]): no rows
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _points_within(boxes: NDArray[Any]) -> NDArray[Any]:
    """Points [n, points, 2] of a grid over each box."""
    starts, ends = boxes[:, None, None, :2], boxes[:, None, None, 2:]
    grid = np.stack(np.meshgrid(_ALONG, _ALONG), axis=-1)
    return (starts * (1 - grid) + ends * grid).reshape(len(boxes), -1, 2).astype(boxes.dtype)


def _moves_boxes_by_itself(transform: Transform) -> bool:
    return getattr(transform.apply_boxes, "__func__", None) is not Transform.apply_boxes
