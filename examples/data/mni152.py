"""Slices of the average brain MNI152 with its grey and white matter, for segmentation.

    pip install nilearn
    python examples/data/mni152.py data/mni152
    towerpack train unet-mni152 path=data/mni152

nilearn brings the volumes: the skull-stripped T1 of 152 people (ICBM 2009a, Fonov et al. 2011), and
for each voxel of 1 mm the probability of grey and of white matter. A pixel's label is the likeliest
of grey, white and the rest. Slices are axial, in blocks of 10: one of four blocks is for validation
or test, and 2 slices at each of its ends, which resemble their neighbours, are for nothing.
"""

import sys
from pathlib import Path

import cv2
import numpy as np
from nilearn.datasets import (
    load_mni152_gm_template,
    load_mni152_template,
    load_mni152_wm_template,
)

BLOCK, MARGIN = 10, 2
SPLITS = ("train", "val", "train", "test")


def volumes() -> tuple[np.ndarray, np.ndarray]:
    """Brightness, uint8, and label: [x, y, z] each."""
    t1 = load_mni152_template(resolution=1).get_fdata()
    grey = load_mni152_gm_template(resolution=1).get_fdata()
    white = load_mni152_wm_template(resolution=1).get_fdata()
    matter = np.stack([1 - grey - white, grey, white])
    return np.rint(255 * t1 / t1.max()).astype(np.uint8), np.argmax(matter, 0).astype(np.uint8)


def split_of(slice_: int) -> str | None:
    """Where a slice belongs; None for those between the blocks."""
    block, place = divmod(slice_, BLOCK)
    split = SPLITS[block % len(SPLITS)]
    kept = split == "train" or MARGIN <= place < BLOCK - MARGIN
    return split if kept else None


def main(folder: Path) -> None:
    """Write pictures, labels, `classes.txt`, and a CSV file for each split."""
    (folder / "slices").mkdir(parents=True, exist_ok=True)
    t1, labels = volumes()
    lines: dict[str, list[str]] = {split: ["image,label"] for split in SPLITS}
    for z in range(t1.shape[2]):
        split = split_of(z)
        if split is None or (labels[..., z] > 0).mean() < 0.02:
            continue
        names = f"slices/{z:03d}.png", f"slices/{z:03d}-label.png"
        for name, volume in zip(names, (t1, labels), strict=True):
            cv2.imwrite(str(folder / name), np.rot90(volume[..., z]))
        lines[split].append(",".join(names))
    for split, listed in lines.items():
        (folder / f"{split}.csv").write_text("\n".join(listed) + "\n")
    classes = "rest,0,0,0\ngrey matter,235,110,80\nwhite matter,90,170,240\n"
    (folder / "classes.txt").write_text(classes)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/mni152"))
