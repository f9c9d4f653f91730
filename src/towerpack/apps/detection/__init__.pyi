# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps._box_files import Annotated as Annotated
from towerpack.apps.detection._config import (
    DataConfig as DataConfig, DetectionConfig as DetectionConfig, ModelConfig as ModelConfig,
)
from towerpack.apps.detection._display import DetectionDisplay as DetectionDisplay
from towerpack.apps.detection._inputter import (
    DetectionInputter as DetectionInputter, make_inputter as make_inputter,
)
from towerpack.apps.detection._modeler import (
    DetectionModeler as DetectionModeler, DetectionReport as DetectionReport,
)

APPLICATION: Application
