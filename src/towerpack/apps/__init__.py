"""Applications: an Inputter (data), a Modeler (model) and a Runner (what is done with them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.lazy import lazy

if TYPE_CHECKING:
    from towerpack.apps._application import APPLICATIONS as APPLICATIONS
    from towerpack.apps._application import RECIPE as RECIPE
    from towerpack.apps._application import Application as Application
    from towerpack.apps._application import Recipe as Recipe
    from towerpack.apps._application import find_recipe as find_recipe
    from towerpack.apps._application import recipe_names as recipe_names
    from towerpack.apps._config import AppConfig as AppConfig
    from towerpack.apps._files import write_picture as write_picture
    from towerpack.apps._import import Imported as Imported
    from towerpack.apps._import import import_data as import_data
    from towerpack.apps._infer import Inference as Inference
    from towerpack.apps._infer import infer as infer
    from towerpack.apps._inputter import Inputter as Inputter
    from towerpack.apps._modeler import Display as Display
    from towerpack.apps._modeler import Modeler as Modeler
    from towerpack.apps._modeler import Reporting as Reporting
    from towerpack.apps._runner import CALLBACKS as CALLBACKS
    from towerpack.apps._runner import TRAINERS as TRAINERS
    from towerpack.apps._runner import Evaluation as Evaluation
    from towerpack.apps._runner import Runner as Runner
    from towerpack.apps._tune import Search as Search
    from towerpack.apps._tune import search as search

_NAMES = {
    "._application": (
        "APPLICATIONS",
        "RECIPE",
        "Application",
        "Recipe",
        "find_recipe",
        "recipe_names",
    ),
    "._config": ("AppConfig",),
    "._files": ("write_picture",),
    "._import": ("Imported", "import_data"),
    "._infer": ("Inference", "infer"),
    "._inputter": ("Inputter",),
    "._modeler": ("Display", "Modeler", "Reporting"),
    "._runner": ("CALLBACKS", "TRAINERS", "Evaluation", "Runner"),
    "._tune": ("Search", "search"),
}

__getattr__, __dir__, __all__ = lazy(__name__, _NAMES, ())
