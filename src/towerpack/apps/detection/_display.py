from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cv2
import numpy as np

from towerpack.apps._label_pictures import Color
from towerpack.apps._modeler import Display
from towerpack.apps._pictures import typeface
from towerpack.apps.detection._config import DetectionConfig

_LEAST_WIDTH: Final = 384
_MOST_HEIGHT: Final = 4096  # of an enlarged picture
_GOLDEN: Final = 0.618  # step on the color wheel, so that consecutive classes differ


class DetectionDisplay(Display):
    """Display of detected boxes with class names and scores, drawn on the image."""

    config: DetectionConfig

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Return the number of drawn boxes, the best class and its score, and the boxes."""
        keys = "class", "score", "box"
        boxes = [dict(zip(keys, box, strict=True)) for box in self._shown(outputs)]
        best = boxes[0] if boxes else {"class": "", "score": 0.0}
        return {"count": len(boxes), "best": best["class"], "score": best["score"], "boxes": boxes}

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Draw the boxes on the image, which is enlarged to a width of at least 384 pixels."""
        from PIL import Image, ImageDraw

        height, width = sample.shape[:2]
        scale = max(1.0, min(_LEAST_WIDTH / width, _MOST_HEIGHT / height))
        size = round(width * scale), round(height * scale)
        shown = self._shown(outputs)
        colors = self._colors([name for name, *_ in shown])
        pixels = cv2.resize(sample, size, interpolation=cv2.INTER_LINEAR)
        page = Image.fromarray(self._painted(pixels, outputs, colors))
        drawing = ImageDraw.Draw(page)
        letters = max(11, round(min(size) / 32))
        font = typeface(letters)
        for (name, score, box), color in reversed([*zip(shown, colors, strict=True)]):
            x1, y1, x2, y2 = (round(v * s) for v, s in zip(box, size * 2, strict=True))
            drawing.rectangle((x1, y1, x2, y2), outline=color, width=max(2, letters // 6))
            text = f"{name} {100 * score:.0f}"
            wide = drawing.textlength(text, font) + 4
            left = max(0, min(x1, size[0] - wide))
            top = y1 - letters - 4 if y1 > letters + 4 else y1
            drawing.rectangle((left, top, left + wide, top + letters + 4), fill=color)
            drawing.text((left + 2, top + 1), text, _ink(color), font)
        return np.asarray(page)

    def _colors(self, names: Sequence[str]) -> list[Color]:
        """Return the color of each shown object: here, of its class."""
        known = list(self.inputter.class_names)
        return [color_of(known.index(name)) for name in names]

    def _painted(
        self, pixels: np.ndarray, outputs: Mapping[str, np.ndarray], colors: Sequence[Color]
    ) -> np.ndarray:
        """Draw below the boxes: here, nothing."""
        del outputs, colors
        return pixels

    def _shown(self, outputs: Mapping[str, np.ndarray]) -> list[tuple[str, float, list[float]]]:
        shown = outputs["scores"] >= max(self.config.model.shown, 1e-9)
        rows = zip(*(outputs[k][shown] for k in ("class_ids", "scores", "boxes")), strict=True)
        names = self.inputter.class_names
        return [(names[i], float(s), [float(v) for v in b]) for i, s, b in rows]


def color_of(number: int) -> Color:
    """Return a bright color. Colors of consecutive numbers differ much."""
    red, green, blue = colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _ink(color: Color) -> tuple[int, int, int]:
    light = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return (0, 0, 0) if light > 140 else (255, 255, 255)
