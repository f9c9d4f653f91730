"""Towerpack: data flows, named layers, towers, trainers and callbacks for TensorFlow.

    import towerpack as tp

The names below are loaded when they are first used, so `import towerpack` stays cheap and loads no
framework. `from towerpack import *` asks for all of them, and so loads TensorFlow.
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

__version__ = "0.1.0"

# The version is no part of the table; programs of the predecessor expect `logger` of `import *`.
__getattr__, __dir__, _everyday = lazy(__name__)
__all__ = ["__version__", "logger", *_everyday]  # pyright: ignore[reportUnsupportedDunderAll]
