# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps.text_classification._config import (
    DataConfig as DataConfig, ModelConfig as ModelConfig,
    TextClassificationConfig as TextClassificationConfig,
)
from towerpack.apps.text_classification._modeler import (
    TextClassificationDisplay as TextClassificationDisplay,
    TextClassificationModeler as TextClassificationModeler,
)
from towerpack.apps.text_classification._inputter import (
    TextInputter as TextInputter, make_inputter as make_inputter,
)

APPLICATION: Application
