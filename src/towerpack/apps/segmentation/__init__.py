"""Segmentation: a class for each pixel of a picture."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.segmentation._config import SegmentationConfig

APPLICATION = Application(
    config=SegmentationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:SegmentationModeler",
    display=f"{__name__}:SegmentationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
