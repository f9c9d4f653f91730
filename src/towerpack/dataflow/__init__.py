"""Data pipelines that need no framework: sources, stages, plans and exact resuming.

ds = DataFromArrays(images, labels)
ds = ShuffleData(ds)
ds = BatchData(ds, 128)
for images, labels in ds: ...
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

# Each name is loaded when it is first used, so that a worker process, which needs little of all
# this, starts fast.
__getattr__, __dir__, _names = lazy(__name__)
# Programs write `dataset.Mnist("train")` and `imgaug.Flip()` after `import *`.
__all__ = [*_names, "dataset", "imgaug"]  # pyright: ignore[reportUnsupportedDunderAll]
