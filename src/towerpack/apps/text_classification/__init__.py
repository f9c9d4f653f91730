"""Text classification: one class per text."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.text_classification._config import TextClassificationConfig

APPLICATION = application(__name__, TextClassificationConfig, "TextClassification")

__getattr__, __dir__, __all__ = lazy(__name__)
