"""Image classification: one class per image."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.classification._config import ClassificationConfig

APPLICATION = application(__name__, ClassificationConfig, "Classification")

__getattr__, __dir__, __all__ = lazy(__name__)
