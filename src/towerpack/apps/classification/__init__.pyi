# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps._class_report import ClassificationReport as ClassificationReport
from towerpack.apps.classification._config import (
    ClassificationConfig as ClassificationConfig, ModelConfig as ModelConfig,
    DataConfig as DataConfig,
)
from towerpack.apps.classification._display import ClassificationDisplay as ClassificationDisplay
from towerpack.apps.classification._image_inputter import (
    ImageInputter as ImageInputter, Pictures as Pictures, make_inputter as make_inputter,
)
from towerpack.apps.classification._modeler import ClassificationModeler as ClassificationModeler

APPLICATION: Application
