"""Label pictures: a number for each pixel, as files and annotations hold them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require
from towerpack.apps._coco import Id, MaskInstance

Colour = tuple[int, int, int]


class LabelPicture(NamedTuple):
    """A label picture as it is stored.

    Attributes:
        pixels: Gray levels or indices [h, w], or colors [h, w, 3].
        palette: Colors [n, 3] of the indices, if it has a palette.
        what: Names it in messages.
    """

    pixels: NDArray[Any]
    palette: NDArray[Any] | None
    what: str

    @property
    def is_gray(self) -> bool:
        """Whether the pixels are gray levels."""
        return self.pixels.ndim == 2 and self.palette is None

    def by_colour(self, colours: Sequence[Colour], void: Collection[int]) -> NDArray[np.int64]:
        """Return the position of each pixel's color in `colours`; indices in `void` stay.

        Raises:
            FormatError: There is another color.
        """
        pixels = self.pixels
        if self.palette is not None:
            absent = ((0, max(0, int(pixels.max()) + 1 - len(self.palette))), (0, 0))
            pixels = np.pad(self.palette, absent)[pixels]
        codes, wanted = _codes(np.array(colours)), _codes(pixels)
        order = np.argsort(codes)
        places = np.minimum(np.searchsorted(codes[order], wanted), len(codes) - 1)
        labels = np.where(codes[order][places] == wanted, order[places], -1)
        fix = "correct data.colours, or the colors in the file of data.classes"
        if self.palette is not None:
            fix += ", or remove all colors to take the indices of the palette as labels"
            labels = np.where((labels < 0) & np.isin(self.pixels, [*void]), self.pixels, labels)
        if (labels < 0).any():
            row, column = np.argwhere(labels < 0)[0]
            got = f"{pixels[row, column].tolist()} in row {row}, column {column}"
            raise FormatError(f"{self.what} has a color of no class.", got=got, fix=fix)
        return labels


def open_labels(file: str, what: str) -> LabelPicture:
    """Read a label picture: a PNG of 1, 8 or 16 bits, with a palette, or in color.

    Args:
        file: Its name.
        what: Names it in messages.

    Raises:
        FormatError: It cannot be read.
    """
    require("matplotlib", extra="apps", needed_for="Label pictures")
    from PIL import Image

    try:
        with Image.open(file) as opened:
            indexed = opened.mode in ("1", "L", "P") or opened.mode.startswith("I")
            pixels = np.asarray(opened if indexed else opened.convert("RGB"))
            colours = opened.getpalette("RGB") if opened.mode == "P" else None
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise FormatError(f"{what} is damaged: {error}.") from error
    palette = None if colours is None else np.array(colours).reshape(-1, 3)
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]  # Some programs write gray pictures in color.
    return LabelPicture(pixels.astype(np.int64), palette, what)


def draw_instances(
    instances: Sequence[MaskInstance], size: tuple[int, int], labels: Mapping[Id, int], void: int
) -> NDArray[np.uint8]:
    """Draw instances of COCO as a label picture: the smaller over the larger, the rest 0.

    Args:
        instances: Checked by `MaskInstance`.
        size: Height and width of the picture.
        labels: Labels of the categories.
        void: Label of crowds.
    """
    masks: Any = require("pycocotools.mask", extra="apps", needed_for="COCO's masks")
    canvas = np.zeros(size, np.uint8)
    drawn: list[tuple[int, NDArray[np.bool_]]] = []
    for one in instances:
        shape: Any = one.segmentation
        if isinstance(shape, list):
            runs = masks.merge(masks.frPyObjects(shape, *size))
        else:
            runs = shape.model_dump()
            runs = runs if isinstance(shape.counts, str) else masks.frPyObjects(runs, *size)
        with warnings.catch_warnings():
            # pycocotools 2.0.11 knows nothing of NumPy 2's `__array__(copy=)`.
            warnings.simplefilter("ignore", DeprecationWarning)
            mask = masks.decode(runs).astype(bool)
        drawn.append((void if one.iscrowd else labels[one.category_id], mask))
    for label, mask in sorted(drawn, key=lambda pair: -int(pair[1].sum())):
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
