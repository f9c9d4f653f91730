"""Text generation: networks that predict the next character or word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy
from towerpack.apps._application import Application
from towerpack.apps.text_generation._config import DataConfig as DataConfig
from towerpack.apps.text_generation._config import ModelConfig as ModelConfig
from towerpack.apps.text_generation._config import SampleConfig as SampleConfig
from towerpack.apps.text_generation._config import TextGenerationConfig as TextGenerationConfig

if TYPE_CHECKING:
    from towerpack.apps.text_generation._display import (
        TextGenerationDisplay as TextGenerationDisplay,
    )
    from towerpack.apps.text_generation._inputter import TextInputter as TextInputter
    from towerpack.apps.text_generation._modeler import (
        TextGenerationModeler as TextGenerationModeler,
    )
    from towerpack.apps.text_generation._report import TextReport as TextReport
    from towerpack.apps.text_generation._sampler import Sampler as Sampler

_NAMES = {
    "._display": ("TextGenerationDisplay",),
    "._inputter": ("TextInputter",),
    "._modeler": ("TextGenerationModeler",),
    "._report": ("TextReport",),
    "._sampler": ("Sampler",),
}

APPLICATION = Application(
    config=TextGenerationConfig,
    inputter=f"{__name__}:TextInputter",
    modeler=f"{__name__}:TextGenerationModeler",
    display=f"{__name__}:TextGenerationDisplay",
)

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
