"""Conversion of arrays to images and of images to PNG files, without imaging libraries."""

import struct
import zlib
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError


def as_picture(caller: str, image: Any) -> np.ndarray:
    """Convert an image array [h, w] or [h, w, c] of uint8 or floats to uint8 [h, w, 1, 3 or 4].

    Floats range from 0 to 1. If some are larger, all are divided by the maximum. If some are
    negative, 0 becomes mid-gray (127). Errors begin with the name `caller`.
    """
    array: np.ndarray = np.asarray(image)
    picture = array[..., None] if array.ndim == 2 else array
    floating = np.issubdtype(picture.dtype, np.floating)
    shaped = picture.ndim == 3 and picture.shape[2] in (1, 3, 4) and 0 not in picture.shape
    if not shaped or not (floating or picture.dtype == np.uint8):
        raise ConfigError(
            f"{caller} must get an image of shape [height, width] or [height, width, 1, 3 or 4] "
            f"with dtype uint8 or float, got {array.dtype} {list(array.shape)}.",
            fix="pass a single image instead of a batch, and convert it to uint8 or float32",
        )
    return np.ascontiguousarray(_as_bytes(picture) if floating else picture)


def _as_bytes(picture: np.ndarray) -> np.ndarray:
    values = picture.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = finite.min(initial=0), finite.max(initial=0)
    values = values / max(-low, high) * 127 + 127 if low < 0 else values / max(high, 1) * 255
    return (np.nan_to_num(np.clip(values, 0, 255), nan=0) + 0.5).astype(np.uint8)


def png(image: np.ndarray) -> bytes:
    """Encode uint8 [height, width] or [height, width, 1, 3 or 4] as a PNG file (W3C 2003)."""
    height, width, channels = (*image.shape, 1)[:3]
    color = {1: 0, 3: 2, 4: 6}[channels]
    rows = image.reshape(height, width * channels)
    # Filter 2 stores differences from the row above, which makes photographs 25 % smaller.
    differences = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), differences], axis=1)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 1)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
