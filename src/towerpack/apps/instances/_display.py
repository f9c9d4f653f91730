from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.pictures import png
from towerpack.apps._label_pictures import Color
from towerpack.apps.detection._display import DetectionDisplay, color_of
from towerpack.ops.box_masks import paste_mask

_OPACITY: Final = 0.45


class InstancesDisplay(DetectionDisplay):
    """Display of masks, boxes, class names and scores, with a color for each object."""

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        """Return a label image: the number of the object of best score in each pixel, or 0."""
        if "masks" not in outputs:
            return {}
        size = sample.shape[:2]
        labels = np.zeros(size, np.uint8)
        pasted = list(enumerate(self._pasted(size, outputs), 1))
        for number, mask in reversed(pasted):
            labels[mask] = min(number, 255)
        return {".masks.png": png(labels)}

    def _colors(self, names: Sequence[str]) -> list[Color]:
        return [color_of(number) for number in range(len(names))]

    def _painted(
        self, pixels: np.ndarray, outputs: Mapping[str, np.ndarray], colors: Sequence[Color]
    ) -> np.ndarray:
        painted = pixels.copy()
        masks = [*zip(self._pasted(pixels.shape[:2], outputs), colors, strict=False)]
        for mask, color in reversed(masks):
            blend = (1 - _OPACITY) * painted[mask] + _OPACITY * np.array(color)
            painted[mask] = blend.astype(np.uint8)
        return painted

    def _pasted(
        self, size: tuple[int, int], outputs: Mapping[str, np.ndarray]
    ) -> Iterator[NDArray[np.bool_]]:
        # Rows are sorted by score. Faster R-CNN has no masks.
        for mask, (*_, box) in zip(outputs.get("masks", ()), self._shown(outputs), strict=False):
            yield paste_mask(mask, np.array(box) * (size[::-1] * 2), size)
