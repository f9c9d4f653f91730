"""Applications. Each has an inputter (data), a modeler (model) and a display (results)."""

from towerpack._core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__)
