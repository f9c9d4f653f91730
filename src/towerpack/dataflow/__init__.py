"""Data pipelines that need no deep learning framework: sources and stages.

ds = DataFromArrays(images, labels)
ds = ShuffleData(ds)
ds = BatchData(ds, 128)
for images, labels in ds: ...
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

# Names are loaded when they are first used, so that worker processes start fast.
__getattr__, __dir__, _names = lazy(__name__)
# Programs write `dataset.Mnist("train")` and `imgaug.Flip()` after `import *`.
__all__ = [*_names, "dataset", "imgaug"]  # pyright: ignore[reportUnsupportedDunderAll]
