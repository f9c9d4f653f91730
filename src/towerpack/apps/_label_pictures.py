"""Label images, which store a class for each pixel, as files or as COCO annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.coco_masks import coco_masks
from towerpack._core.errors import FormatError
from towerpack._core.extras import require

Color = tuple[int, int, int]  # red, green, blue


def to_labels(
    pixels: NDArray[Any],
    palette: NDArray[np.int64] | None,
    colors: Sequence[Color] | None,
    what: str,
) -> NDArray[np.int64]:
    """Convert the result of `open_labels` to labels [h, w].

    Usually gray levels and palette indices are the labels. But if the palette contains colors of
    classes, or if all class colors are gray, pixels are looked up by color. `what` names the image
    in errors.
    """
    if pixels.ndim == 2 and colors is not None:
        if palette is not None:
            return _by_palette(pixels, palette, colors, what)
        if all(red == green == blue for red, green, blue in colors):
            pixels = np.repeat(pixels[:, :, None], 3, 2)
    if pixels.ndim == 2:
        return pixels.astype(np.int64)
    if colors is None:
        raise FormatError(
            f"{what} must be gray or indexed, because the classes have no colors.",
            fix="list the colors in data.colors, or in the file of data.classes",
        )
    codes, wanted = _codes(np.array(colors)), _codes(pixels)
    order = np.argsort(codes)
    indices = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
    labels = order[indices]
    if (codes[labels] != wanted).any():
        row, column = np.argwhere(codes[labels] != wanted)[0]
        raise FormatError(
            f"{what} must have only colors of classes.",
            got=f"{pixels[row, column].tolist()} in row {row}, column {column}",
            fix="add the color to data.colors, or correct the picture",
        )
    return labels


def open_labels(file: str, what: str) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    """Read a label image: pixels [h, w] or [h, w, 3], and the palette [colors, 3] or None."""
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
    indices: NDArray[Any], palette: NDArray[Any], colors: Sequence[Color], what: str
) -> NDArray[np.int64]:
    """Return labels [h, w]: by color if the palette contains class colors, else the indices."""
    known = {int(code): label for label, code in enumerate(_codes(np.array(colors)))}
    used = np.unique(indices).tolist()
    codes = _codes(palette)
    labels = {i: known[int(codes[i])] for i in used if i < len(codes) and int(codes[i]) in known}
    if not labels or all(i == label for i, label in labels.items()):
        return indices.astype(np.int64)
    table = np.arange(int(indices.max()) + 1)
    for i in used:
        if i not in labels and i < len(colors):
            raise FormatError(
                f"{what} must have a palette with the colors in the order of the classes.",
                got=f"{palette[i].tolist()}, which is not the color of a class, at index {i}",
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
    """Draw COCO instances to a label image, uint8 [h, w]. Smaller instances cover larger ones.

    `labels` maps categories to labels. Crowds get the label `void`.
    """
    canvas = np.zeros(size, np.uint8)
    read: list[tuple[int, NDArray[np.bool_]]] = []
    for annotation in annotations:
        try:
            mask = decode_mask(annotation["segmentation"], size)
            label = void if annotation.get("iscrowd") else labels[annotation["category_id"]]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            about = f"the annotation {annotation.get('id')}"
            raise FormatError(f"{where}: {about} is invalid: {error!r}.") from error
        if mask.shape != size:
            raise FormatError(f"{where}: a mask must be {list(size)}, got {list(mask.shape)}.")
        read.append((label, mask))
    for label, mask in sorted(read, key=lambda pair: -int(pair[1].sum())):
        canvas[mask] = label
    return canvas


def decode_mask(shape: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask of an object.

    Args:
        shape: Polygons or run lengths of COCO; or the file of a label image and the object's label.
        size: Height and width of the image to which polygons refer.
    """
    if isinstance(shape, tuple):
        file, label = shape
        return open_labels(file, f"the label picture {file}")[0] == label
    with coco_masks("COCO's masks") as masks:
        if isinstance(shape, list):
            shape = masks.merge(masks.frPyObjects(shape, *size))
        elif isinstance(shape["counts"], list):
            shape = masks.frPyObjects(shape, *size)
        return masks.decode(shape).astype(bool)


def voc_color(label: int) -> Color:
    """Return the color of a label in Pascal VOC's palette."""
    color = [0, 0, 0]
    for bit in range(8):
        color[bit % 3] |= (label >> bit & 1) << (7 - bit // 3)
    return color[0], color[1], color[2]


def _codes(pixels: NDArray[Any]) -> NDArray[np.int64]:
    return pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
