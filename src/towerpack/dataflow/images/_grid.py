"""A picture of many pictures, with what belongs to them drawn in: to see what a pipeline does."""

from __future__ import annotations

import contextlib
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
_LARGEST_LABEL = 1 << 53  # of floats that are whole numbers
# Told apart by most people, on light and dark pictures (Okabe & Ito 2008).
_COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2"]
_NAME = "name it with {0}=..., or on the command line with --{0} ..."


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
        rows, cols: At most so many; the last rows are left out if there are too few images.
        image: Which component is the image, where there are components.
        label: Which component stands below the picture: a number, text, or values of classes, of
            which the greatest three are told.
        mask, boxes, keypoints: Which components are a label map, of which 0 is not shown, boxes
            [n, 4] (x0, y0, x1, y1), and points [n, 2 or more] (x, y).
        names: Of the classes, for labels that are whole numbers.
        rgb: The order of the colours.
        cell: Height and width of a picture in the grid.
        seed: What the flow's randomness is a function of.

    Returns:
        The grid, RGB.
    """
    parts = {"image": image, "label": label, "mask": mask, "boxes": boxes, "keypoints": keypoints}
    given = {name: index for name, index in parts.items() if index is not None}
    shown = list(itertools.islice(_samples(source, given, seed), rows * cols))
    if not shown:
        raise ConfigError("There is no image to show.", got=f"{source!r:.200}")
    text = _TEXT_HEIGHT if label is not None else 0
    down, right = cell + text + _GAP, cell + _GAP
    size = (min(cols, len(shown)) * right - _GAP, math.ceil(len(shown) / cols) * down - _GAP)
    grid = _pillow("Image").new("RGB", size, (_BACKGROUND,) * 3)
    for number, sample in enumerate(shown):
        y, x = divmod(number, cols)
        grid.paste(_cell(sample, cell, text, rgb, names), (x * right, y * down))
    if path is not None:
        grid.save(path, "PNG")
    return np.array(grid)


def _cell(
    sample: dict[str, Any], cell: int, text: int, rgb: bool, names: Sequence[str] | None
) -> Any:
    pixels = displayable(sample["image"], rgb=rgb)
    scale = cell / max(pixels.shape[:2])
    height, width = (max(1, round(side * scale)) for side in pixels.shape[:2])
    image, draw_on = _pillow("Image"), _pillow("ImageDraw").Draw
    # Averages, or nearest: pixels that are enlarged stay visible.
    how = image.Resampling.BOX if scale < 1 else image.Resampling.NEAREST
    img = image.fromarray(pixels).resize((width, height), how)
    if "mask" in sample:
        labels = resize_mask(_as_mask(sample["mask"]), height, width).astype(np.int64)
        palette = np.array([_pillow("ImageColor").getrgb(c) for c in _COLOURS], np.uint8)
        colours = image.fromarray(palette[(labels - 1) % len(_COLOURS)])
        img = image.composite(image.blend(img, colours, 0.5), img, image.fromarray(labels != 0))
    draw = draw_on(img)
    boxes = as_floats(sample.get("boxes", ()), "boxes", 4)
    for (x0, y0, x1, y1), colour in _with_colours(boxes * scale):
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=2)
    points = as_keypoints(sample.get("keypoints", ()))
    for (x, y, *_), colour in _with_colours(points.reshape(-1, points.shape[-1]) * scale):
        draw.circle((x, y), 4, fill=colour, outline=(0, 0, 0))
    framed = image.new("RGB", (cell, cell + text), (_BACKGROUND,) * 3)
    top = (cell - height) // 2
    framed.paste(img, ((cell - width) // 2, top))
    if "label" in sample:
        font = _pillow("ImageFont").load_default(12)
        told = _told(sample["label"], names)
        while len(told) > 1 and font.getlength(told) > cell - 6:
            told = told[: -2 if told.endswith("…") else -1] + "…"
        place = (cell / 2, top + height + 2)
        draw_on(framed).text(place, told, (235, 235, 235), font, anchor="ma")
    return framed


def _with_colours(places: NDArray[Any]) -> Iterator[tuple[list[int], str]]:
    """Each row, in whole numbers that are not too large to draw, and a colour for it."""
    rows = np.clip(np.nan_to_num(np.rint(places)), -(1 << 20), 1 << 20).astype(int).tolist()
    return zip(rows, itertools.cycle(_COLOURS), strict=False)


def displayable(img: Any, *, rgb: bool = True) -> NDArray[np.uint8]:
    """An image as RGB uint8 [height, width, 3], whatever its channels and range."""
    array: Image = np.asarray(img)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "uifb":
        what, expected = "This is no image to show.", "[height, width] or [height, width, channels]"
        raise ConfigError(what, got=describe(img), expected=expected, fix=_NAME.format("image"))
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
    what, expected = "This is no mask to show.", "a whole number for each pixel: [height, width]"
    raise ConfigError(what, got=describe(mask), expected=expected, fix=_NAME.format("mask"))


def _told(label: Any, names: Sequence[str] | None) -> str:
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
                purpose, fix = f"show as {name}", _NAME.format(name)
                sample[name] = component_of(datapoint, index, purpose, fix, pipeline)
            yield from _split(sample)


def _split(sample: dict[str, Any]) -> list[dict[str, Any]]:
    images = sample["image"]
    if not isinstance(images, list) and np.ndim(images) != 4:
        return [sample]
    count = len(cast("Sequence[Any]", images))
    for name, value in sample.items():
        # A batch may be a list, too: its items need not be alike.
        many = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
        if not many or len(cast("Sequence[Any]", value)) != count:
            what = f"There are {count} images, and not as many of what is to show as {name}."
            got, expected = describe(cast("Any", value)), f"{count} of them, as BatchData makes it"
            raise ConfigError(what, got=got, expected=expected, fix=_NAME.format(name))
    return [{name: value[i] for name, value in sample.items()} for i in range(count)]


def _pillow(module: str) -> Any:
    return require(f"PIL.{module}", extra="image", needed_for="image_grid")
