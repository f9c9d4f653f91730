"""Run lengths of masks, encoded and decoded by pycocotools."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from towerpack._core.extras import require


@contextmanager
def coco_masks(needed_for: str) -> Generator[Any]:
    """Yield the module `pycocotools.mask`, without its warnings."""
    masks = require("pycocotools.mask", extra="apps", needed_for=needed_for)
    with warnings.catch_warnings():
        # pycocotools 2.0.11 does not support NumPy 2's `__array__(copy=)`.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield masks
