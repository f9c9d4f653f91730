"""Towerpack: data flows, named layers, towers, trainers and callbacks for TensorFlow.

    import towerpack as tp

The names in `__init__.pyi` are loaded when they are first used, so `import towerpack` stays cheap
and loads no framework. `from towerpack import *` asks for all of them, and so loads TensorFlow.
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

__version__ = "0.1.0"

# Programs of the predecessor expect `logger` of `import *`, too.
__getattr__, __dir__, _everyday = lazy(__name__)
__all__ = ["__version__", "logger", *_everyday]  # pyright: ignore[reportUnsupportedDunderAll]
