"""A picture of many pictures, with what belongs to them drawn in: to see what a pipeline does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow._datapoints import (
    Datapoint,
    choices_of,
    describe,
    describe_datapoint,
    is_datapoint,
)
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.images._image import Image, opencv
from towerpack.dataflow.images._resampling import resize_mask
from towerpack.dataflow.images._transform import as_floats, as_keypoints

_BACKGROUND = 32
_GAP = 4
_TEXT_HEIGHT = 18
_LARGEST_LABEL = 1 << 53  # of floats that are whole numbers
# Told apart by most people, on light and dark pictures (Okabe & Ito 2008).
_COLOURS = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (213, 94, 0),
    (204, 121, 167),
    (0, 114, 178),
)


def image_grid(
    source: DataFlow | Iterable[Any],
    path: str | Path | None = None,
    *,
    rows: int = 4,
    cols: int = 6,
    image: Hashable = 0,
    label: Hashable | None = None,
    mask: Hashable | None = None,
    boxes: Hashable | None = None,
    keypoints: Hashable | None = None,
    names: Sequence[str] | None = None,
    rgb: bool = True,
    cell: int = 192,
    seed: int = 0,
) -> NDArray[np.uint8]:
    """Show the first images of a flow side by side, each scaled to fit its cell.

    float32 images are shown with white at 1 if they are within 0..1, at 255 if they are within
    0..255, and otherwise (normalised ones) stretched from their least to their greatest value.

    Args:
        source: A flow of datapoints or of batches of them; or images, or datapoints.
        path: Where to write a PNG file; `None` writes none.
        rows: At most so many; the last ones are left out if there are too few images.
        cols: In each row.
        image: Which component is the image, where there are components.
        label: Which component stands below the picture: a number, text, or values of classes, of
            which the greatest three are told.
        mask: Which component is a label map; 0 is not shown.
        boxes: Which component is boxes [n, 4]: x0, y0, x1, y1.
        keypoints: Which component is points [n, 2 or more]: x, y.
        names: Of the classes, for labels that are whole numbers.
        rgb: The order of the colours.
        cell: Height and width of a picture in the grid.
        seed: What the flow's randomness is a function of.

    Returns:
        The grid, RGB.

    Raises:
        ConfigError: There is no image, or something that cannot be drawn, or no folder for it.
    """
    if rows < 1 or cols < 1 or cell < 16:
        raise ConfigError(
            f"A grid of {rows} x {cols} cells of {cell} pixels shows nothing.",
            expected="1 or more rows and columns, of 16 or more pixels",
        )
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: there is no folder {Path(path).parent}.",
            fix="make it, or choose another one",
        )
    parts = Parts(image, label, mask, boxes, keypoints)
    shown = list(itertools.islice(_samples(source, parts, seed), rows * cols))
    if not shown:
        raise ConfigError("There is no image to show.", got=f"{source!r:.200}")
    drawer = _Drawer(cell, rgb, names)
    text = _TEXT_HEIGHT if label is not None else 0
    down, right = cell + text + _GAP, cell + _GAP
    size = (math.ceil(len(shown) / cols) * down - _GAP, min(cols, len(shown)) * right - _GAP)
    grid = np.full((*size, 3), _BACKGROUND, np.uint8)
    for number, sample in enumerate(shown):
        y, x = number // cols * down, number % cols * right
        grid[y : y + cell + text, x : x + cell] = drawer.draw(sample, text)
    if path is not None:
        _write(grid, Path(path))
    return grid


@dataclass(frozen=True)
class Parts:
    """Which components are what; `None`: there is none."""

    image: Hashable = 0
    label: Hashable | None = None
    mask: Hashable | None = None
    boxes: Hashable | None = None
    keypoints: Hashable | None = None

    def of(self, datapoint: Datapoint, pipeline: str | None = None) -> dict[str, Any]:
        """They, by name; `pipeline` is told if one is missing."""
        if not is_datapoint(datapoint):
            return {"image": datapoint}
        found: dict[str, Any] = {}
        for name, index in self.__dict__.items():
            if index is None:
                continue
            try:
                found[name] = datapoint[index]
            except (KeyError, IndexError, TypeError) as error:
                raise _no_such_component(name, index, datapoint, pipeline) from error
        return found


def _no_such_component(
    name: str, index: Hashable, datapoint: Datapoint, pipeline: str | None
) -> ConfigError:
    return ConfigError(
        f"There is no component {index!r} to show as {name}.",
        got=describe_datapoint(datapoint),
        expected=choices_of(datapoint),
        fix=f"name it with {name}=..., or on the command line with --{name} ...",
        pipeline=pipeline,
    )


class _Drawer:
    """Draws samples into cells."""

    def __init__(self, cell: int, rgb: bool, names: Sequence[str] | None) -> None:
        self._cell = cell
        self._rgb = rgb
        self._names = names

    def draw(self, sample: dict[str, Any], text: int) -> NDArray[np.uint8]:
        img = displayable(sample["image"], rgb=self._rgb)
        height, width = img.shape[:2]
        scale = self._cell / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        smooth = 3 if scale < 1 else 0  # area, or nearest: pixels that are enlarged stay visible
        img = opencv().resize(img, size, interpolation=smooth)
        if "mask" in sample:
            img = _with_mask(img, _as_mask(sample["mask"]))
        if "boxes" in sample:
            _draw_boxes(img, as_floats(sample["boxes"], "boxes", 4) * scale)
        if "keypoints" in sample:
            _draw_points(img, as_keypoints(sample["keypoints"]), scale)
        cell = np.full((self._cell + text, self._cell, 3), _BACKGROUND, np.uint8)
        y, x = (self._cell - img.shape[0]) // 2, (self._cell - img.shape[1]) // 2
        cell[y : y + img.shape[0], x : x + img.shape[1]] = img
        if "label" in sample:
            below = cell[y + img.shape[0] :][:text]
            _write_text(below, self._told(sample["label"]))
        return cell

    def _told(self, label: Any) -> str:
        value = np.asarray(label)
        if value.ndim == 1 and value.dtype.kind == "f":
            order = np.argsort(-value)[:3].tolist()
            return ", ".join(f"{self._name(i)} {value[i]:.2f}" for i in order if value[i] > 0.005)
        if value.ndim == 0 and value.dtype.kind in "iu":
            return self._name(int(value))
        return str(label)

    def _name(self, index: int) -> str:
        if self._names is not None and 0 <= index < len(self._names):
            return str(self._names[index])
        return str(index)


def displayable(img: Any, *, rgb: bool = True) -> NDArray[np.uint8]:
    """An image as RGB uint8 [height, width, 3], whatever its channels and range.

    Raises:
        ConfigError: It is no image.
    """
    array: Image = np.asarray(img)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "uifb":
        raise ConfigError(
            "This is no image to show.",
            got=describe(img),
            expected="[height, width] or [height, width, channels]",
            fix="name the component that is the image: image=...",
        )
    if array.dtype != np.uint8:
        array = _levels(array.astype(np.float64))
    if array.shape[2] in (1, 2):
        return np.repeat(array[:, :, :1], 3, axis=2)
    return np.ascontiguousarray(array[:, :, :3] if rgb else array[:, :, 2::-1])


def _levels(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    values = np.nan_to_num(values)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def _as_mask(mask: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(mask)
    except ValueError as error:  # lists of different lengths
        raise _no_mask(describe(mask)) from error
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "uifb":
        raise _no_mask(describe(mask))
    if array.dtype.kind == "f":
        strange = array[~(np.abs(array) < _LARGEST_LABEL)]
        if strange.size:
            raise _no_mask(f"{describe(array)} with {strange[0]} in it")
    return array


def _no_mask(got: str) -> ConfigError:
    return ConfigError(
        "This is no mask to show.",
        got=got,
        expected="a whole number for each pixel: [height, width] or [height, width, 1]",
        fix="name the component that is one: mask=..., or on the command line --mask ...",
    )


def _with_mask(img: NDArray[np.uint8], mask: NDArray[Any]) -> NDArray[np.uint8]:
    labels = resize_mask(mask, img.shape[0], img.shape[1]).astype(np.int64)
    colours = np.array(_COLOURS)[(labels - 1) % len(_COLOURS)]
    mixed = np.where((labels != 0)[:, :, None], img * 0.5 + colours * 0.5, img)
    return mixed.astype(np.uint8)


def _draw_boxes(img: NDArray[np.uint8], boxes: NDArray[Any]) -> None:
    for number, box in enumerate(_pixels(np.rint(boxes))):
        colour = _COLOURS[number % len(_COLOURS)]
        opencv().rectangle(img, box[:2], (box[2] - 1, box[3] - 1), colour, 2)


def _draw_points(img: NDArray[np.uint8], points: NDArray[Any], scale: float) -> None:
    places = points.reshape(-1, points.shape[-1])[:, :2].astype(np.float64) * scale
    for number, (x, y) in enumerate(_pixels(np.floor(places))):
        opencv().circle(img, (x, y), 4, (0, 0, 0), -1)
        opencv().circle(img, (x, y), 3, _COLOURS[number % len(_COLOURS)], -1)


def _pixels(places: NDArray[Any]) -> list[list[int]]:
    """Whole numbers that OpenCV takes: it counts in 32 bits."""
    return np.clip(np.nan_to_num(places), -(1 << 20), 1 << 20).astype(int).tolist()


def _write_text(line: NDArray[np.uint8], text: str) -> None:
    """Write it into the middle of a line, cut off where it is too long."""
    # OpenCV's letters are ASCII.
    shown = text.encode("ascii", "replace").decode()
    while len(shown) > 1 and _width(shown) > line.shape[1] - 6:
        shown = shown[:-2] + "." if shown.endswith(".") else shown[:-1] + "."
    place = (max(3, (line.shape[1] - _width(shown)) // 2), line.shape[0] - 5)
    cv2 = opencv()
    cv2.putText(line, shown, place, 0, 0.42, (235, 235, 235), 1, cv2.LINE_AA)


def _width(text: str) -> int:
    return opencv().getTextSize(text, 0, 0.42, 1)[0][0]


def _samples(source: Any, parts: Parts, seed: int) -> Iterable[dict[str, Any]]:
    """What there is to draw, batches taken apart."""
    if isinstance(source, DataFlow):
        with source.iterate(seed=seed, epoch=0) as iterator:
            for datapoint in iterator:
                yield from _split(parts.of(datapoint, str(source)))
        return
    for item in cast("Iterable[Any]", source):
        yield from _split(parts.of(item))


def _split(sample: dict[str, Any]) -> list[dict[str, Any]]:
    images = sample["image"]
    if not isinstance(images, list) and np.ndim(images) != 4:
        return [sample]
    count = len(cast("Sequence[Any]", images))
    for name, value in sample.items():
        if not _is_many(value) or len(value) != count:
            raise ConfigError(
                f"There are {count} images, and not as many of what is to show as {name}.",
                got=describe(value),
                expected=f"{count} of them, stacked or in a list, as BatchData makes it",
                fix=f"name the component with {name}=..., or on the command line with --{name} ...",
            )
    return [{name: value[i] for name, value in sample.items()} for i in range(count)]


def _is_many(value: Any) -> bool:
    """Whether a batch can hold it; its items need not be alike."""
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _write(grid: NDArray[np.uint8], path: Path) -> None:
    cv2 = opencv()
    done, encoded = cv2.imencode(".png", cv2.cvtColor(grid, cv2.COLOR_RGB2BGR))
    if not done:
        raise DataFlowError(f"OpenCV did not encode {describe(grid)} as PNG.")
    path.write_bytes(encoded.tobytes())
