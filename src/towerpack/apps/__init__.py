"""Applications: an Inputter (data), a Modeler (model), and a Runner that trains and evaluates."""

from towerpack._core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__)
