"""Draw `augmentations.jpg`: two photographs of scikit-learn after eight augmentors each.

python docs/images/augmentations.py
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from sklearn.datasets import load_sample_images

from towerpack.dataflow.images import (
    Augmentor,
    AugmentorList,
    CutMix,
    Flip,
    GoogleNetRandomCropAndResize,
    Hue,
    Identity,
    JpegNoise,
    MixUp,
    RandAugment,
    RandomCutout,
    Rotation,
    encode_jpeg,
)

SIZE, TEXT = 216, 30
SEED_OF_PARTNERS = 12  # each photograph gets the other one
STEPS: dict[str, Augmentor] = {
    "Identity": Identity(),
    "Flip": Flip(horiz=True, prob=1),
    "Rotation": Rotation(25),
    "GoogleNetRandomCrop": GoogleNetRandomCropAndResize(target_shape=SIZE),
    "Hue": Hue((-60, 60)),
    "JpegNoise": JpegNoise((8, 12)),
    "RandomCutout": RandomCutout(90, 90),
    "RandAugment(3, 8)": RandAugment(3, 8),
}


def labeled(picture: np.ndarray, text: str) -> np.ndarray:
    """Return the picture with its name below it, on white."""
    tile = np.full((SIZE + TEXT, SIZE + 8, 3), 255, np.uint8)
    tile[:SIZE, 4:-4] = picture
    font = cv2.FONT_HERSHEY_SIMPLEX
    cv2.putText(tile, text, (5, SIZE + 21), font, 0.56, (40, 40, 40), 1, cv2.LINE_AA)
    return tile


def main() -> None:
    """Augment, and put the tiles together."""
    china, flower = load_sample_images().images
    photographs = [china[40:424, 120:504], flower[20:404, 60:444]]
    pair = np.stack(
        [cv2.resize(p, (SIZE, SIZE), interpolation=cv2.INTER_AREA) for p in photographs]
    )
    rng = np.random.default_rng(11)
    tiles = []
    for i, (name, step) in enumerate(STEPS.items()):
        tiles += [labeled(AugmentorList([step]).augment(pair[i % 2].copy(), rng), name)]
    labels = np.arange(2)
    for mix, name in ((MixUp(4.0, num_classes=2), "MixUp"), (CutMix(4.0, num_classes=2), "CutMix")):
        mixed = mix((pair.copy(), labels), np.random.default_rng(SEED_OF_PARTNERS))[0]
        tiles += [labeled(mixed[i], name) for i in range(2)]
    rows = [np.concatenate(tiles[i : i + 4], axis=1) for i in range(0, len(tiles), 4)]
    grid = np.concatenate(rows)
    data = encode_jpeg(grid, quality=85)
    (Path(__file__).parent / "augmentations.jpg").write_bytes(data)


if __name__ == "__main__":
    main()
