# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import Application
from towerpack.apps.text_generation._config import (
    DataConfig as DataConfig, ModelConfig as ModelConfig, SampleConfig as SampleConfig,
    TextGenerationConfig as TextGenerationConfig,
)
from towerpack.apps.text_generation._modeler import (
    TextGenerationDisplay as TextGenerationDisplay, TextGenerationModeler as TextGenerationModeler,
)
from towerpack.apps.text_generation._inputter import TextInputter as TextInputter
from towerpack.apps.text_generation._report import TextReport as TextReport
from towerpack.apps.text_generation._sampler import Sampler as Sampler

APPLICATION: Application
