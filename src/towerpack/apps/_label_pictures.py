"""Label pictures: a number for each pixel, as files and annotations hold them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require

Colour = tuple[int, int, int]


def to_labels(
    pixels: NDArray[Any],
    palette: NDArray[np.int64] | None,
    colours: Sequence[Colour] | None,
    what: str,
) -> NDArray[np.int64]:
    """Return the labels [h, w] of a label picture.

    PNGs of 1, 8 or 16 bits hold labels, those with a palette its indices, and those in color the
    labels' colors. A palette in which labels have their colors counts as color, and so does a gray
    picture if the labels' colors are all gray.

    Args:
        pixels: As `open_labels` returns them.
        palette: As `open_labels` returns it.
        colours: Red, green, blue of each label; None if label pictures are not in color.
        what: Names the picture in messages.

    Raises:
        FormatError: The picture holds another color.
    """
    if pixels.ndim == 2 and colours is not None:
        if palette is not None:
            return _by_palette(pixels, palette, colours, what)
        if all(red == green == blue for red, green, blue in colours):
            pixels = np.repeat(pixels[:, :, None], 3, 2)
    if pixels.ndim == 2:
        return pixels.astype(np.int64)
    if colours is None:
        raise FormatError(
            f"{what} is in colour.",
            expected="grey, or indices of a palette",
            fix="list the colours in data.colours, or in the file of data.classes",
        )
    codes, wanted = _codes(np.array(colours)), _codes(pixels)
    order = np.argsort(codes)
    places = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
    labels = order[places]
    if (codes[labels] != wanted).any():
        row, column = np.argwhere(codes[labels] != wanted)[0]
        raise FormatError(
            f"{what} has a colour of no class.",
            got=f"{pixels[row, column].tolist()} in row {row}, column {column}",
        )
    return labels


def open_labels(file: str, what: str) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Return what a label picture holds: labels or palette indices [h, w], or colours [h, w, 3].

    Args:
        file: Its name.
        what: Names it in messages.

    Returns:
        The pixels, and the palette [colours, 3] if they are indices of one.

    Raises:
        FormatError: It cannot be read.
    """
    require("matplotlib", extra="apps", needed_for="Label pictures")
    from PIL import Image

    try:
        with Image.open(file) as opened:
            indexed = opened.mode in ("1", "L", "P") or opened.mode.startswith("I")
            pixels = np.asarray(opened if indexed else opened.convert("RGB"))
            palette = opened.getpalette("RGB") if opened.mode == "P" else None
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise FormatError(f"{what} is damaged: {error}.") from error
    return pixels, None if palette is None else np.array(palette).reshape(-1, 3)


def _by_palette(
    indices: NDArray[Any], palette: NDArray[Any], colours: Sequence[Colour], what: str
) -> NDArray[np.int64]:
    """Labels of palette indices: by their colours, if the palette has colours of labels."""
    known = {int(code): label for label, code in enumerate(_codes(np.array(colours)))}
    used = np.unique(indices).tolist()
    codes = _codes(palette)
    labels = {i: known[int(codes[i])] for i in used if i < len(codes) and int(codes[i]) in known}
    if not labels or all(i == label for i, label in labels.items()):
        return indices.astype(np.int64)
    table = np.arange(int(indices.max()) + 1)
    for i in used:
        if i not in labels and i < len(colours):
            raise FormatError(
                f"{what} has a palette in another order than the classes.",
                got=f"a colour of no class, {palette[i].tolist()}, index {i}",
            )
    for i, label in labels.items():
        table[i] = label
    return table[indices].astype(np.int64)


def draw_instances(
    annotations: Sequence[Mapping[str, Any]],
    size: tuple[int, int],
    labels: Mapping[Any, int],
    void: int,
    where: str,
) -> NDArray[np.uint8]:
    """Instances of COCO as a label picture: the smaller over the larger, the rest 0.

    Args:
        annotations: With `segmentation`, `category_id`, and `iscrowd` if they have it.
        size: Height and width of the picture.
        labels: Of the categories.
        void: What crowds are.
        where: For messages.

    Raises:
        FormatError: A mask makes no sense.
    """
    masks: Any = require("pycocotools.mask", extra="apps", needed_for="COCO's masks")
    canvas = np.zeros(size, np.uint8)
    read: list[tuple[int, NDArray[np.bool_]]] = []
    for one in annotations:
        try:
            shape = one["segmentation"]
            if isinstance(shape, list):
                shape = masks.merge(masks.frPyObjects(shape, *size))
            elif isinstance(shape["counts"], list):
                shape = masks.frPyObjects(shape, *size)
            with warnings.catch_warnings():
                # pycocotools 2.0.11 knows nothing of NumPy 2's `__array__(copy=)`.
                warnings.simplefilter("ignore", DeprecationWarning)
                mask = masks.decode(shape).astype(bool)
            label = void if one.get("iscrowd") else labels[one["category_id"]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            about = f"the annotation {one.get('id')}"
            raise FormatError(f"{where}: {about} makes no sense: {error!r}.") from error
        if mask.shape != size:
            raise FormatError(f"{where}: a mask of {list(mask.shape)} pixels, not {list(size)}.")
        read.append((label, mask))
    for label, mask in sorted(read, key=lambda pair: -int(pair[1].sum())):
        canvas[mask] = label
    return canvas


def voc_colour(label: int) -> Colour:
    """Pascal VOC's: the label's bits in turn are the highest ones of red, green and blue."""
    found = [0, 0, 0]
    for bit in range(8):
        found[bit % 3] |= (label >> bit & 1) << (7 - bit // 3)
    return found[0], found[1], found[2]


def _codes(pixels: NDArray[Any]) -> NDArray[np.int64]:
    return pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
