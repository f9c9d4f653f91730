"""Towerpack: data flows, named layers, towers, trainers and callbacks for TensorFlow.

    import towerpack as tp

The names in `__init__.pyi` are loaded on first use, so `import towerpack` is fast and loads no
framework. `from towerpack import *` loads all names, and with them TensorFlow.
"""

from towerpack._core.lazy import lazy

__version__ = "0.1.0"

# Programs for Tensorpack expect `logger` from `import *`, too.
__getattr__, __dir__, _everyday = lazy(__name__)
__all__ = ["__version__", "logger", *_everyday]  # pyright: ignore[reportUnsupportedDunderAll]
