"""Object detection: boxes around the objects in a picture, and their classes."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.detection._config import DetectionConfig

APPLICATION = Application(
    config=DetectionConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:DetectionModeler",
    display=f"{__name__}:DetectionDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
