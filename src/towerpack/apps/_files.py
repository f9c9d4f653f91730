"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack._core.files import replace_file
from towerpack._core.pictures import png


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write a PNG.

    Args:
        path: Its folder is made.
        picture: uint8 [h, w], or [h, w, 3]: red, green, blue.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, png(picture))
