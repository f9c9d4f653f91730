"""Detection: boxes around the objects in a picture, and their classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.detection._config import DataConfig as DataConfig
from towerpack.apps.detection._config import DetectionConfig as DetectionConfig
from towerpack.apps.detection._config import ModelConfig as ModelConfig

if TYPE_CHECKING:
    from towerpack.apps._box_files import Annotated as Annotated
    from towerpack.apps.detection._display import DetectionDisplay as DetectionDisplay
    from towerpack.apps.detection._inputter import DetectionInputter as DetectionInputter
    from towerpack.apps.detection._inputter import make_inputter as make_inputter
    from towerpack.apps.detection._modeler import DetectionModeler as DetectionModeler
    from towerpack.apps.detection._report import DetectionReport as DetectionReport

_NAMES = {
    "._display": ("DetectionDisplay",),
    "._inputter": ("DetectionInputter", "make_inputter"),
    "._modeler": ("DetectionModeler",),
    "._report": ("DetectionReport",),
    "towerpack.apps._box_files": ("Annotated",),
}

APPLICATION = Application(
    config=DetectionConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:DetectionModeler",
    display=f"{__name__}:DetectionDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
