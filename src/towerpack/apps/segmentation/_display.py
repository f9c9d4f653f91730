from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from towerpack._core.pictures import png
from towerpack.apps._modeler import Display
from towerpack.apps._pictures import typeface
from towerpack.apps.segmentation._inputter import SceneInputter

_OPACITY: Final = 0.5
_CHANNELS: Final = 64  # OpenCV resizes at most 128 channels at once
_LEAST_WIDTH: Final = 256
_GROUND: Final = (24, 24, 24)


class SegmentationDisplay(Display):
    """Display of the class colors over the image, with a legend below."""

    inputter: SceneInputter

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Return the fraction of pixels of each class."""
        names = self.inputter.classes.names
        return dict(zip(names, self._shares(outputs).tolist(), strict=True))

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Blend the image with the class colors. Add a legend sorted by area."""
        from PIL import Image, ImageDraw

        height, width = sample.shape[:2]
        names, colors = self.inputter.classes.names, self.inputter.classes.colors
        palette = np.array(colors, np.uint8)
        mask = self.mask(outputs, (height, width))
        over = cv2.addWeighted(sample, 1 - _OPACITY, palette[mask], _OPACITY, 0)
        page_width = max(width, _LEAST_WIDTH)
        line = max(18, page_width // 32)
        font = typeface(line * 0.62)
        shares = self._shares(outputs)
        labels = [i for i in np.argsort(-shares, kind="stable") if shares[i] > 0]
        texts = [f"{names[i]}  {100 * shares[i]:.1f} %" for i in labels]
        widths = [line * 2 + round(font.getlength(text)) for text in texts]
        positions, x, y = [], 6, height + 4
        for needed in widths:
            if x > 6 and x + needed > page_width:
                x, y = 6, y + line
            positions.append((x, y))
            x += needed
        page = Image.new("RGB", (page_width, y + line + 4), _GROUND)
        page.paste(Image.fromarray(over), ((page_width - width) // 2, 0))
        drawing = ImageDraw.Draw(page)
        for label, text, (x, y) in zip(labels, texts, positions, strict=True):
            color = tuple(palette[label].tolist())
            box = (x, y + line * 0.2, x + line * 0.7, y + line * 0.85)
            drawing.rectangle(box, color, (140, 140, 140))
            drawing.text((x + line, y + line * 0.15), text, (255, 255, 255), font)
        return np.asarray(page)

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        return {".labels.png": png(self.mask(outputs, sample.shape[:2]).astype(np.uint8))}

    def mask(self, outputs: Mapping[str, np.ndarray], size: tuple[int, int]) -> NDArray[np.int64]:
        """Return the class of each pixel of the original image, int64 [h, w].

        Args:
            outputs: Outputs for the image, by name.
            size: Height and width of the image.
        """
        classes = outputs["probabilities"].shape[-1]
        parts = np.split(outputs["probabilities"], range(_CHANNELS, classes, _CHANNELS), -1)
        scaled = [cv2.resize(p, size[::-1]).reshape(*size, p.shape[-1]) for p in parts]
        return np.argmax(np.concatenate(scaled, -1), -1)

    def _shares(self, outputs: Mapping[str, np.ndarray]) -> NDArray[np.float64]:
        mask = np.argmax(outputs["probabilities"], -1)
        return np.bincount(mask.ravel(), minlength=outputs["probabilities"].shape[-1]) / mask.size
