"""Text classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.text_classification._config import DataConfig as DataConfig
from towerpack.apps.text_classification._config import ModelConfig as ModelConfig
from towerpack.apps.text_classification._config import (
    TextClassificationConfig as TextClassificationConfig,
)

if TYPE_CHECKING:
    from towerpack.apps.text_classification._display import (
        TextClassificationDisplay as TextClassificationDisplay,
    )
    from towerpack.apps.text_classification._inputter import TextInputter as TextInputter
    from towerpack.apps.text_classification._inputter import make_inputter as make_inputter
    from towerpack.apps.text_classification._modeler import (
        TextClassificationModeler as TextClassificationModeler,
    )

_NAMES = {
    "._display": ("TextClassificationDisplay",),
    "._inputter": ("TextInputter", "make_inputter"),
    "._modeler": ("TextClassificationModeler",),
}

APPLICATION = Application(
    config=TextClassificationConfig,
    inputter=f"{__name__}:make_inputter",
    modeler=f"{__name__}:TextClassificationModeler",
    display=f"{__name__}:TextClassificationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
