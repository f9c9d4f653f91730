"""Instance segmentation: boxes around the objects in an image, their classes and their masks."""

from towerpack._core.lazy import lazy
from towerpack.apps._application import application
from towerpack.apps.instances._config import InstancesConfig

APPLICATION = application(__name__, InstancesConfig, "Instances")

__getattr__, __dir__, __all__ = lazy(__name__)
