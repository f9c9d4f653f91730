"""Tables and pictures as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from towerpack._core.files import replace_file


def csv_of(rows: Iterable[Sequence[Any]]) -> bytes:
    """Text of a CSV file, in UTF-8."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def png_of(figure: Any) -> bytes:
    """Content of a PNG file of a Matplotlib figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write a PNG.

    Args:
        path: Its folder is made.
        picture: uint8 [h, w], or [h, w, 3]: red, green, blue.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    bgr = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    replace_file(path, cv2.imencode(".png", bgr)[1].tobytes())
