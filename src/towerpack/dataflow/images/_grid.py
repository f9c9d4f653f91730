from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.datapoints import describe, is_datapoint
from towerpack.dataflow.images._stages import component_of
from towerpack.dataflow.images._transform import as_floats, as_keypoints
from towerpack.dataflow.images.image import Image, resize_mask

_BACKGROUND = 32
_GAP = 4
_TEXT_HEIGHT = 18
_LARGEST_LABEL = 1 << 53  # floats below are exact integers
# Colors that color-blind people can distinguish (Okabe & Ito 2008).
_COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2"]
_SELECT = "pass the index of the component: {0}=... (or --{0} ...)"


class _Grid(np.ndarray[Any, np.dtype[np.uint8]]):
    """Array of an RGB image that notebooks show as a picture."""

    def _repr_png_(self) -> bytes | None:
        if self.dtype != np.uint8 or self.ndim != 3 or self.shape[2] != 3:
            return None  # the result of a computation with the grid
        file = io.BytesIO()
        _pillow("Image").fromarray(np.asarray(self)).save(file, "PNG")
        return file.getvalue()


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
    """Arrange the first images of a flow in a grid, each scaled to fit its cell.

    The range of float32 images is 0..1 if all values are within 0..1, or 0..255 if they are within
    0..255. Other images are scaled from their least to their greatest value.

    Args:
        source: Flow of datapoints or batches, or an iterable of images or datapoints.
        path: PNG file to write.
        rows, cols: Largest number of rows and columns.
        image: Index of the image component. Not needed if the items are images.
        label: Index of the component to print below the image: a number, a text, or a score for
            each class, of which the three highest are printed.
        mask, boxes, keypoints: Indices of the components with a label map (0 is transparent), boxes
            [n, 4] (x0, y0, x1, y1) and points [n, 2 or more] (x, y).
        names: Class names for integer labels.
        rgb: Order of the colors: RGB (`True`) or BGR (`False`).
        cell: Height and width of a cell in pixels.
        seed: Random seed of the flow.

    Returns:
        The grid as RGB image [height, width, 3]. Notebooks show it as a picture.

    Raises:
        ConfigError: The source is empty, or a component does not exist.
    """
    indices = {"image": image, "label": label, "mask": mask, "boxes": boxes, "keypoints": keypoints}
    used = {name: index for name, index in indices.items() if index is not None}
    shown = list(itertools.islice(_samples(source, used, seed), rows * cols))
    if not shown:
        raise ConfigError("The source has no image to show.", got=f"{source!r:.200}")
    text = _TEXT_HEIGHT if label is not None else 0
    down, right = cell + text + _GAP, cell + _GAP
    size = (min(cols, len(shown)) * right - _GAP, math.ceil(len(shown) / cols) * down - _GAP)
    grid = _pillow("Image").new("RGB", size, (_BACKGROUND,) * 3)
    for number, sample in enumerate(shown):
        y, x = divmod(number, cols)
        grid.paste(_cell(sample, cell, text, rgb, names), (x * right, y * down))
    if path is not None:
        grid.save(path, "PNG")
    return np.array(grid).view(_Grid)


def _cell(
    sample: dict[str, Any], cell: int, text: int, rgb: bool, names: Sequence[str] | None
) -> Any:
    pixels = displayable(sample["image"], rgb=rgb)
    scale = cell / max(pixels.shape[:2])
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    image, draw_on = _pillow("Image"), _pillow("ImageDraw").Draw
    # "Nearest" keeps single pixels visible in enlarged images.
    resampling = image.Resampling.BOX if scale < 1 else image.Resampling.NEAREST
    img = image.fromarray(pixels).resize((width, height), resampling)
    if "mask" in sample:
        labels = resize_mask(_as_mask(sample["mask"]), height, width).astype(np.int64)
        palette = np.array([_pillow("ImageColor").getrgb(c) for c in _COLORS], np.uint8)
        colors = image.fromarray(palette[(labels - 1) % len(_COLORS)])
        img = image.composite(image.blend(img, colors, 0.5), img, image.fromarray(labels != 0))
    draw = draw_on(img)
    boxes = as_floats(sample.get("boxes", ()), "boxes", 4)
    for (x0, y0, x1, y1), color in _with_colors(boxes * scale):
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=color, width=2)
    points = as_keypoints(sample.get("keypoints", ()))
    for (x, y, *_), color in _with_colors(points.reshape(-1, points.shape[-1]) * scale):
        draw.circle((x, y), 4, fill=color, outline=(0, 0, 0))
    framed = image.new("RGB", (cell, cell + text), (_BACKGROUND,) * 3)
    top = (cell - height) // 2
    framed.paste(img, ((cell - width) // 2, top))
    if "label" in sample:
        font = _pillow("ImageFont").load_default(12)
        caption = _caption(sample["label"], names)
        while len(caption) > 1 and font.getlength(caption) > cell - 6:
            caption = caption[: -2 if caption.endswith("…") else -1] + "…"
        place = (cell / 2, top + height + 2)
        draw_on(framed).text(place, caption, (235, 235, 235), font, anchor="ma")
    return framed


def _with_colors(places: NDArray[Any]) -> Iterator[tuple[list[int], str]]:
    """Round each row to integers that Pillow can draw, and pair the row with a color."""
    rows = np.clip(np.nan_to_num(np.rint(places)), -(1 << 20), 1 << 20).astype(int).tolist()
    return zip(rows, itertools.cycle(_COLORS), strict=False)


def displayable(img: Any, *, rgb: bool = True) -> NDArray[np.uint8]:
    """Convert an image of any channels and range to uint8 RGB."""
    array: Image = np.asarray(img)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "uifb":
        what = "The component to show as image must have the shape of an image."
        expected = "[height, width] or [height, width, channels]"
        raise ConfigError(what, got=describe(img), expected=expected, fix=_SELECT.format("image"))
    if array.dtype != np.uint8:
        values = np.nan_to_num(array.astype(np.float64))
        low, high = float(values.min()), float(values.max())
        if low >= 0 and high <= 255:
            low, high = 0.0, 1.0 if high <= 1 else 255.0
        array = np.rint((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if array.shape[2] in (1, 2):
        return np.repeat(array[:, :, :1], 3, axis=2)
    return np.ascontiguousarray(array[:, :, :3] if rgb else array[:, :, 2::-1])


def _as_mask(mask: Any) -> NDArray[Any]:
    array = np.asarray(mask)
    array = array[:, :, 0] if array.shape[2:] == (1,) else array
    floats = array.dtype.kind == "f" and bool((np.abs(array) < _LARGEST_LABEL).all())
    if array.ndim == 2 and array.size and (floats or array.dtype.kind in "uib"):
        return array
    what = "The component to show as mask must be a label map."
    expected = "one integer for each pixel: [height, width]"
    raise ConfigError(what, got=describe(mask), expected=expected, fix=_SELECT.format("mask"))


def _caption(label: Any, names: Sequence[str] | None) -> str:
    def name(index: int) -> str:
        return str(names[index]) if names is not None and 0 <= index < len(names) else str(index)

    value = np.asarray(label)
    if value.ndim == 1 and value.dtype.kind == "f":
        order = np.argsort(-value)[:3].tolist()
        return ", ".join(f"{name(i)} {value[i]:.2f}" for i in order if value[i] > 0.005)
    return name(int(value)) if value.ndim == 0 and value.dtype.kind in "iu" else str(label)


def _samples(source: Any, parts: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    flow = isinstance(source, DataFlow)
    pipeline = str(source) if flow else None
    with source.iterate(seed=seed, epoch=0) if flow else contextlib.nullcontext(source) as read:
        for datapoint in read:
            if not is_datapoint(datapoint):
                yield from _split({"image": datapoint})
                continue
            sample: dict[str, Any] = {}
            for name, index in parts.items():
                purpose, fix = f"show as {name}", _SELECT.format(name)
                sample[name] = component_of(datapoint, index, purpose, fix, pipeline)
            yield from _split(sample)


def _split(sample: dict[str, Any]) -> list[dict[str, Any]]:
    images = sample["image"]
    if not isinstance(images, list) and np.ndim(images) != 4:
        return [sample]
    count = len(cast("Sequence[Any]", images))
    for name, value in sample.items():
        # A batch may also be a list of items with different shapes.
        many = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
        if not many or len(cast("Sequence[Any]", value)) != count:
            what = f"{name} must have one entry for each of the {count} images."
            raise ConfigError(what, got=describe(cast("Any", value)), fix=_SELECT.format(name))
    return [{name: value[i] for name, value in sample.items()} for i in range(count)]


def _pillow(module: str) -> Any:
    return require(f"PIL.{module}", extra="image", needed_for="image_grid")
