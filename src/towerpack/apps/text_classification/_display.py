"""Predicted classes of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from towerpack.apps._class_report import most_likely
from towerpack.apps._modeler import Display

_NUM_SHOWN: Final = 5


class TextClassificationDisplay(Display):
    """The most likely classes of a text, as rows."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        top = most_likely(self.inputter.class_names, outputs["probabilities"], _NUM_SHOWN)
        return {**top[0], "top": top}
