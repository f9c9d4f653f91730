# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps.style_transfer._config import (
    DataConfig as DataConfig, ModelConfig as ModelConfig, StyleConfig as StyleConfig,
)
from towerpack.apps.style_transfer._modeler import (
    StyleDisplay as StyleDisplay, StyleModeler as StyleModeler,
)
from towerpack.apps.style_transfer._features import FeatureNetwork as FeatureNetwork
from towerpack.apps.style_transfer._inputter import (
    PhotoInputter as PhotoInputter, make_inputter as make_inputter,
)

APPLICATION: Application
