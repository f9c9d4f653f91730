"""Pictures beside their stylized versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from towerpack.apps._modeler import Display

_GAP_PX: Final = 6


class StyleDisplay(Display):
    """The picture on the left, its stylized version on the right."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        height, width = outputs["picture"].shape[:2]
        return {"height": height, "width": width}

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        picture = np.rint(outputs["picture"]).clip(0, 255).astype(np.uint8)
        gap = np.full((picture.shape[0], _GAP_PX, 3), 255, np.uint8)
        return np.hstack([sample, gap, picture])
