"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from towerpack._core.files import replace_file


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write a PNG.

    Args:
        path: Its folder is made.
        picture: uint8 [h, w], or [h, w, 3]: red, green, blue.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, png_of(picture))


def png_of(picture: np.ndarray) -> bytes:
    """A PNG of a picture as `write_picture` takes it."""
    bgr = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", bgr)[1].tobytes()
