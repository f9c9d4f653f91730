"""Text generation with networks that predict the next character or word."""

from __future__ import annotations

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.text_generation._config import TextGenerationConfig

APPLICATION = Application(
    config=TextGenerationConfig,
    inputter=f"{__name__}:TextInputter",
    modeler=f"{__name__}:TextGenerationModeler",
    display=f"{__name__}:TextGenerationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__)
