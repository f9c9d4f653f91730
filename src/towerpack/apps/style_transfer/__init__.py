"""Style transfer: images in the style of another image."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.style_transfer._config import StyleConfig

APPLICATION = application(__name__, StyleConfig, "Style")

__getattr__, __dir__, __all__ = lazy(__name__)
