"""Pictures for `trainers.py`, and what all contenders do to each."""

from __future__ import annotations

import numpy as np

SIDE = 32  # what the network sees, as of CIFAR-10
BATCH = 128
WORKERS = 2
FILE_SIDE = 256
CROP = 224


def number(options: list[str]) -> int:
    """Of pictures in an epoch, given the options of a contender."""
    return BATCH * (2 if options else 8)


def photos(count: int) -> tuple[list[bytes], np.ndarray]:
    """JPEG files, smooth and noisy, whose mean colour tells their class; labels."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count)
    colours = rng.uniform(64, 192, (10, 3))
    files = []
    for label in labels:
        coarse = (colours[label] + rng.normal(0, 40, (16, 16, 3))).clip(0, 255).astype(np.uint8)
        image = cv2.resize(coarse, (FILE_SIDE, FILE_SIDE), interpolation=cv2.INTER_CUBIC)
        image = cv2.add(image, rng.integers(0, 24, image.shape, np.uint8))
        files.append(simplejpeg.encode_jpeg(image, quality=90))
    return files, labels


def load(file: bytes, rng: np.random.Generator) -> np.ndarray:
    """Decode, crop, scale and flip: uint8 [32, 32, 3]."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    y, x = rng.integers(0, FILE_SIDE - CROP + 1, 2)
    part = simplejpeg.decode_jpeg(file)[y : y + CROP, x : x + CROP]
    image = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return cv2.flip(image, 1) if rng.random() < 0.5 else image
