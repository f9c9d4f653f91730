"""Text generation with networks that predict the next character or word."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.text_generation._config import TextGenerationConfig

APPLICATION = application(__name__, TextGenerationConfig, "TextGeneration", inputter="TextInputter")

__getattr__, __dir__, __all__ = lazy(__name__)
