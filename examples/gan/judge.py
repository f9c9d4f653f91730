"""What a classifier makes of generated digits: confidence, and the share of each class.

    towerpack demo --run-dir runs/demo
    python examples/gan/judge.py runs/dcgan/samples.npy [runs/demo]

Beside `labels.npy`, as cgan.py writes it, also the share that is what was asked for.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from towerpack.apps import Runner, find_recipe


def main(samples, classifier="runs/demo"):
    """Print the numbers; gives mean confidence and shares [10]."""
    pictures = np.rint((np.load(samples)[..., 0] + 1) * 127.5).astype(np.uint8)
    runner = Runner.from_recipe(find_recipe("digits"), Path(classifier))
    folder = Path(samples).with_name("judged")
    folder.mkdir(exist_ok=True)
    prepared = []
    for number, picture in enumerate(pictures):
        path = str(folder / f"{number:04d}.png")
        cv2.imwrite(path, picture)
        prepared.append(runner.inputter.prepare(runner.inputter.read(path)))
    [probabilities] = runner.predictor(["probabilities"])(
        *map(np.stack, zip(*prepared, strict=True))
    )
    classes = probabilities.argmax(1)
    confidence, shares = (
        probabilities.max(1).mean(),
        np.bincount(classes, minlength=10) / len(classes),
    )
    print(f"mean confidence {confidence:.3f}; shares of 0 to 9: {shares}")
    labels = Path(samples).with_name("labels.npy")
    if labels.exists():
        print(f"as asked for: {np.mean(classes == np.load(labels)):.1%}")
    return confidence, shares


if __name__ == "__main__":
    main(*sys.argv[1:])
