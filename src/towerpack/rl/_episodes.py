"""Saving an episode as a GIF, or as a strip of frames in a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from towerpack._core.errors import ConfigError


def save_episode(
    path: str | Path, frames: Sequence[np.ndarray], *, fps: float = 30.0, count: int = 8
) -> Path:
    """Write an episode to a GIF, or `count` frames of it side by side to a PNG.

    Args:
        path: File name that ends in `.gif` or `.png`.
        frames: uint8 [height, width] or [height, width, 3].
        fps: Frames per second; browsers show at most 50.
        count: Frames of a strip, evenly spaced from the first to the last.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".png") or not len(frames):
        raise ConfigError(
            f"{len(frames)} frames cannot be written to {path.name}.",
            expected="at least one frame, to a name that ends in .gif or .png",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        chosen = np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int)
        Image.fromarray(np.concatenate([frames[i] for i in chosen], axis=1)).save(path)
    else:
        first, *others = map(Image.fromarray, frames)
        first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return path
