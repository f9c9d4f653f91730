"""Image files for tests: pictures whose pixels tell where they are, saved by Pillow."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest

pillow = pytest.importorskip("PIL.Image")


def smooth(height: int = 48, width: int = 67) -> np.ndarray:
    """A slope, which JPEG keeps well, unlike its mirror images."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    channels = [x / width, y / height, (x + 2 * y) / (width + 2 * height)]
    return (np.stack(channels, 2) * 220 + 20).astype(np.uint8)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Neighbouring pixels differ, so that a wrong one shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


IMG = smooth()


def saved(
    img: np.ndarray = IMG, kind: str = "JPEG", orientation: int | None = None, **options: Any
) -> bytes:
    if orientation is not None and kind == "TIFF":
        options["tiffinfo"] = {0x0112: orientation}
    elif orientation is not None:
        exif = pillow.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif.tobytes()
    defaults = {"JPEG": {"quality": 95}, "WEBP": {"lossless": orientation is not None}}
    file = BytesIO()
    pillow.fromarray(img).save(file, kind, **{**defaults.get(kind, {}), **options})
    return file.getvalue()


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    crc = struct.pack(">I", zlib.crc32(kind + payload))
    return struct.pack(">I", len(payload)) + kind + payload + crc


def close(one: np.ndarray, other: np.ndarray, within: float = 3.0) -> bool:
    difference = np.abs(one.astype(np.float32) - other.astype(np.float32))
    return one.shape == other.shape and float(difference.mean()) < within
