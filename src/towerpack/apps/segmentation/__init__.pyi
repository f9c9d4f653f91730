# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps.segmentation._classes import Classes as Classes
from towerpack.apps.segmentation._config import (
    DataConfig as DataConfig, ModelConfig as ModelConfig, SegmentationConfig as SegmentationConfig,
)
from towerpack.apps.segmentation._display import SegmentationDisplay as SegmentationDisplay
from towerpack.apps.segmentation._inputter import (
    SceneInputter as SceneInputter, make_inputter as make_inputter,
)
from towerpack.apps.segmentation._modeler import (
    SegmentationModeler as SegmentationModeler, SegmentationReport as SegmentationReport,
)

APPLICATION: Application
