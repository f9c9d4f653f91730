"""Image classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.classification._config import ClassificationConfig as ClassificationConfig
from towerpack.apps.classification._config import ModelConfig as ModelConfig
from towerpack.apps.classification._data_config import DataConfig as DataConfig

if TYPE_CHECKING:
    from towerpack.apps._class_report import ClassificationReport as ClassificationReport
    from towerpack.apps.classification._display import (
        ClassificationDisplay as ClassificationDisplay,
    )
    from towerpack.apps.classification._image_inputter import ImageInputter as ImageInputter
    from towerpack.apps.classification._image_inputter import Pictures as Pictures
    from towerpack.apps.classification._image_inputter import make_inputter as make_inputter
    from towerpack.apps.classification._modeler import (
        ClassificationModeler as ClassificationModeler,
    )

_NAMES = {
    "._display": ("ClassificationDisplay",),
    "._image_inputter": ("ImageInputter", "Pictures", "make_inputter"),
    "._modeler": ("ClassificationModeler",),
    "towerpack.apps._class_report": ("ClassificationReport",),
}

APPLICATION = Application(
    config=ClassificationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:ClassificationModeler",
    display=f"{__name__}:ClassificationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
