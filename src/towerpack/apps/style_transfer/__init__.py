"""Style transfer: pictures as if painted like another one."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.style_transfer._config import StyleConfig

APPLICATION = Application(
    config=StyleConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:StyleModeler",
    display=f"{__name__}:StyleDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
