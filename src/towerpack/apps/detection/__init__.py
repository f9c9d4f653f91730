"""Object detection: boxes around the objects in an image, and their classes."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.detection._config import DetectionConfig

APPLICATION = application(__name__, DetectionConfig, "Detection")

__getattr__, __dir__, __all__ = lazy(__name__)
