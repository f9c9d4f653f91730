"""Image classification: one class for each picture."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.classification._config import ClassificationConfig

APPLICATION = Application(
    config=ClassificationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:ClassificationModeler",
    display=f"{__name__}:ClassificationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
