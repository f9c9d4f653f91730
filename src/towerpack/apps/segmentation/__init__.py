"""Segmentation: the class of each pixel of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.segmentation._config import DataConfig as DataConfig
from towerpack.apps.segmentation._config import ModelConfig as ModelConfig
from towerpack.apps.segmentation._config import SegmentationConfig as SegmentationConfig

if TYPE_CHECKING:
    from towerpack.apps.segmentation._classes import Classes as Classes
    from towerpack.apps.segmentation._display import SegmentationDisplay as SegmentationDisplay
    from towerpack.apps.segmentation._inputter import SceneInputter as SceneInputter
    from towerpack.apps.segmentation._inputter import make_inputter as make_inputter
    from towerpack.apps.segmentation._modeler import SegmentationModeler as SegmentationModeler
    from towerpack.apps.segmentation._report import SegmentationReport as SegmentationReport

_NAMES = {
    "._display": ("SegmentationDisplay",),
    "._classes": ("Classes",),
    "._inputter": ("SceneInputter", "make_inputter"),
    "._modeler": ("SegmentationModeler",),
    "._report": ("SegmentationReport",),
}

APPLICATION = Application(
    config=SegmentationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:SegmentationModeler",
    display=f"{__name__}:SegmentationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
