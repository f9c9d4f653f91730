"""Small pictures with a class for each pixel, as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.apps import write_picture

CLASSES = "paper\ndisc\nsquare\n"


def scene(seed: int, height: int = 40, width: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """A picture [h, w, 3] of a dark disc and a square on bright noise, and its classes [h, w]."""
    rng = np.random.default_rng(seed)
    image = rng.integers(170, 256, (height, width, 3)).astype(np.uint8)
    label = np.zeros((height, width), np.uint8)
    y, x = np.mgrid[:height, :width]
    centre, corner = rng.integers(9, height - 9, 2), rng.integers(2, height - 20, 2)
    label[(y - centre[0]) ** 2 + (x - centre[1]) ** 2 < 64] = 1
    label[corner[0] : corner[0] + 14, corner[1] + 6 : corner[1] + 20] = 2
    image[label == 1] = rng.integers(0, 60, 3) + np.array((0, 0, 120))
    image[label == 2] = rng.integers(0, 60, 3) + np.array((120, 0, 0))
    return image, label


def write_scenes(folder: Path, counts: dict[str, int]) -> None:
    """A CSV file for each split, `classes.txt`, pictures; one row of each label picture is 255."""
    seed = 0
    for split, count in counts.items():
        lines = ["image,label"]
        for _ in range(count):
            image, label = scene(seed)
            label[-1] = 255
            write_picture(folder / f"{seed}.png", image)
            write_picture(folder / f"{seed}-label.png", label)
            lines.append(f"{seed}.png,{seed}-label.png")
            seed += 1
        (folder / f"{split}.csv").write_text("\n".join(lines))
    (folder / "classes.txt").write_text(CLASSES)
