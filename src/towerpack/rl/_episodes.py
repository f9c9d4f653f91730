from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from towerpack._core.errors import ConfigError


def save_episode(
    path: str | Path, frames: Sequence[np.ndarray], *, fps: float = 30.0, count: int = 8
) -> Path:
    """Save an episode as a GIF, or some of its frames side by side as a PNG. Return the path.

    Args:
        path: File name that ends in `.gif` or `.png`.
        frames: Frames, uint8 [height, width] or [height, width, 3].
        fps: Frames per second of a GIF; browsers show at most 50.
        count: Number of frames in a PNG, evenly spaced from the first to the last.

    Raises:
        ConfigError: There are no frames, or the file name has another suffix.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".png") or not len(frames):
        raise ConfigError(
            "save_episode must get at least one frame and a file name that ends in .gif or .png, "
            f"got {len(frames)} frames and {path.name}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        chosen = np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int)
        Image.fromarray(np.concatenate([frames[i] for i in chosen], axis=1)).save(path)
    else:
        first, *others = map(Image.fromarray, frames)
        first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return path
