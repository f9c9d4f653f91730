"""Pictures with their predicted classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from towerpack._core.extras import require
from towerpack.apps._inputter import Inputter
from towerpack.apps._modeler import Display
from towerpack.apps.classification._config import ClassificationConfig

_LEAST_WIDTH: Final = 256
_SHOWN: Final = 3


class ClassificationDisplay(Display):
    """The most likely classes, with bars below the picture."""

    def __init__(self, config: ClassificationConfig, inputter: Inputter) -> None:
        super().__init__(config, inputter)
        self._names = list(inputter.class_names)
        self._top_k = min(config.model.top_k, len(self._names))

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """The class, its probability, and the most likely ones in order."""
        top = self._top(outputs, self._top_k)
        return {
            "class": top[0][0],
            "probability": top[0][1],
            "top": [{"class": name, "probability": value} for name, value in top],
        }

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """The picture, at least 256 pixels wide, with the first three classes below it."""
        require("matplotlib", extra="apps", needed_for="Annotated pictures")
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont

        height, width = sample.shape[:2]
        scale = max(1.0, _LEAST_WIDTH / width)
        nearest = cv2.INTER_NEAREST if scale > 2 else cv2.INTER_LINEAR
        size = (round(width * scale), round(height * scale))
        picture = cv2.resize(sample, size, interpolation=nearest)
        if picture.ndim == 2 or picture.shape[2] == 1:
            picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
        line = max(20, size[0] // 16)
        top = self._top(outputs, min(_SHOWN, self._top_k))
        page = Image.new("RGB", (size[0], size[1] + line * len(top) + 4), (24, 24, 24))
        page.paste(Image.fromarray(picture), (0, 0))
        drawing = ImageDraw.Draw(page)
        font_file = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
        font = ImageFont.truetype(str(font_file), round(line * 0.62))
        for i, (name, value) in enumerate(top):
            y = size[1] + 2 + i * line
            drawing.rectangle((0, y, max(1, round(value * size[0])), y + line - 3), (0, 92, 150))
            drawing.text((6, y + line * 0.1), name, (255, 255, 255), font)
            text = f"{100 * value:.1f} %"
            drawing.text(
                (size[0] - drawing.textlength(text, font) - 6, y + line * 0.1),
                text,
                (255, 255, 255),
                font,
            )
        return np.asarray(page)

    def _top(self, outputs: Mapping[str, np.ndarray], count: int) -> list[tuple[str, float]]:
        probabilities = outputs["probabilities"]
        order = np.argsort(-probabilities, kind="stable")[:count]
        return [(self._names[i], float(probabilities[i])) for i in order]
