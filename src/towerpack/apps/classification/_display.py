from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import cv2
import numpy as np

from towerpack.apps._class_report import most_likely
from towerpack.apps._modeler import Display
from towerpack.apps._pictures import typeface

_LEAST_WIDTH: Final = 256
_SHOWN: Final = 3


class ClassificationDisplay(Display):
    """Display of the most likely classes, as bars below the image."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        top = self._top(outputs, self.config.model.top_k)
        return {**top[0], "top": top}

    def _top(self, outputs: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
        return most_likely(self.inputter.class_names, outputs["probabilities"], count)

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        height, width = sample.shape[:2]
        scale = max(1.0, _LEAST_WIDTH / width)
        nearest = cv2.INTER_NEAREST if scale > 2 else cv2.INTER_LINEAR
        size = (round(width * scale), round(height * scale))
        picture = cv2.resize(sample, size, interpolation=nearest)
        if picture.ndim == 2 or picture.shape[2] == 1:
            picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
        line = max(20, size[0] // 16)
        font = typeface(line * 0.62)
        from PIL import Image, ImageDraw

        top = self._top(outputs, min(_SHOWN, self.config.model.top_k))
        page = Image.new("RGB", (size[0], size[1] + line * len(top) + 4), (24, 24, 24))
        page.paste(Image.fromarray(picture), (0, 0))
        drawing = ImageDraw.Draw(page)
        for i, row in enumerate(top):
            name, value = row["class"], row["probability"]
            y = size[1] + 2 + i * line
            drawing.rectangle((0, y, max(1, round(value * size[0])), y + line - 3), (0, 92, 150))
            drawing.text((6, y + line * 0.1), name, (255, 255, 255), font)
            text = f"{100 * value:.1f} %"
            x = size[0] - drawing.textlength(text, font) - 6
            drawing.text((x, y + line * 0.1), text, (255, 255, 255), font)
        return np.asarray(page)
