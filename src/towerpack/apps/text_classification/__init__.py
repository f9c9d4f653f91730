"""Text classification: one class for each text."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.text_classification._config import TextClassificationConfig

APPLICATION = Application(
    config=TextClassificationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:TextClassificationModeler",
    display=f"{__name__}:TextClassificationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
