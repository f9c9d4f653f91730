# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps._box_files import Annotated as Annotated
from towerpack.apps.instances._config import (
    DataConfig as DataConfig, InstancesConfig as InstancesConfig, ModelConfig as ModelConfig,
)
from towerpack.apps.instances._display import InstancesDisplay as InstancesDisplay
from towerpack.apps.instances._inputter import (
    InstancesInputter as InstancesInputter, make_inputter as make_inputter,
)
from towerpack.apps.instances._modeler import InstancesModeler as InstancesModeler

APPLICATION: Application
