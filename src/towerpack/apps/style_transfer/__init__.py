"""Style transfer: pictures as if painted like another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.style_transfer._config import DataConfig as DataConfig
from towerpack.apps.style_transfer._config import ModelConfig as ModelConfig
from towerpack.apps.style_transfer._config import StyleConfig as StyleConfig

if TYPE_CHECKING:
    from towerpack.apps.style_transfer._display import StyleDisplay as StyleDisplay
    from towerpack.apps.style_transfer._features import FeatureNetwork as FeatureNetwork
    from towerpack.apps.style_transfer._inputter import PhotoInputter as PhotoInputter
    from towerpack.apps.style_transfer._inputter import make_inputter as make_inputter
    from towerpack.apps.style_transfer._modeler import StyleModeler as StyleModeler

_NAMES = {
    "._display": ("StyleDisplay",),
    "._features": ("FeatureNetwork",),
    "._inputter": ("PhotoInputter", "make_inputter"),
    "._modeler": ("StyleModeler",),
}

APPLICATION = Application(
    config=StyleConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:StyleModeler",
    display=f"{__name__}:StyleDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
