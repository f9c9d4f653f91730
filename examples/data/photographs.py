"""Photographs that packages bring, for style transfer.

    pip install scikit-image scikit-learn
    python examples/data/photographs.py data/photographs
    towerpack train fns-starry-night path=data/photographs model.style=starry_night.jpg

Fifteen to train on, two (a flower, a palace) for validation and test. The Starry Night (Vincent van
Gogh, 1889) is in many collections; Debian's package opencv-doc has it as examples/data.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

TRAIN = (
    "astronaut",
    "brick",
    "camera",
    "cat",
    "coffee",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "immunohistochemistry",
    "moon",
    "retina",
    "rocket",
)


def main(folder: Path) -> None:
    """Write `train/`, `val/` and `test/`."""
    pictures = {f"train/{name}": getattr(data, name)() for name in TRAIN}
    pictures["val/flower"] = load_sample_image("flower.jpg")
    pictures["test/china"] = load_sample_image("china.jpg")
    for name, picture in pictures.items():
        file = folder / f"{name}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(picture)).convert("RGB").save(file, quality=95)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/photographs"))
