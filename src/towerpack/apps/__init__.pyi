# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.apps._application import (
    APPLICATIONS as APPLICATIONS, Application as Application, RECIPE as RECIPE, Recipe as Recipe,
    find_recipe as find_recipe, recipe_names as recipe_names,
)
from towerpack.apps._config import AppConfig as AppConfig
from towerpack.apps._import import Imported as Imported, import_data as import_data
from towerpack.apps._infer import Inference as Inference, infer as infer
from towerpack.apps._inputter import Inputter as Inputter
from towerpack.apps._modeler import Display as Display, Modeler as Modeler, Reporting as Reporting
from towerpack.apps._pictures import write_picture as write_picture
from towerpack.apps._runner import (
    CALLBACKS as CALLBACKS, Evaluation as Evaluation, Runner as Runner, TRAINERS as TRAINERS,
)
from towerpack.apps._tune import (
    Search as Search, search as search, search_batch_size as search_batch_size,
)
