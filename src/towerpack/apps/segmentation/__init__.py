"""Semantic segmentation: a class for each pixel of an image."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.segmentation._config import SegmentationConfig

APPLICATION = application(__name__, SegmentationConfig, "Segmentation")

__getattr__, __dir__, __all__ = lazy(__name__)
