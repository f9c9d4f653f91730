"""What a classifier makes of generated digits: confidence, and the share of each class.

    towerpack demo --run-dir runs/demo
    python examples/gan/judge.py runs/dcgan/samples.npy [runs/demo]

Beside `labels.npy`, as cgan.py writes it, also the share that is what was asked for. FID is the
Fréchet distance (Heusel et al. 2017) of the classifier's features of generated and real digits.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from towerpack.apps import Runner, find_recipe
from towerpack.dataflow.datasets import Digits
from towerpack.gan import frechet_distance


def judged(runner, pictures, folder):
    """Return the classifier's probabilities and features of pictures, which pass through files."""
    folder.mkdir(exist_ok=True)
    prepared = []
    for number, picture in enumerate(pictures):
        path = str(folder / f"{number:04d}.png")
        cv2.imwrite(path, picture)
        prepared.append(runner.inputter.prepare(runner.inputter.read(path)))
    columns = map(np.stack, zip(*prepared, strict=True))
    return runner.predictor(["probabilities", "features"])(*columns)


def main(samples, classifier="runs/demo"):
    """Print the numbers; gives mean confidence and shares [10]."""
    pictures = np.rint((np.load(samples)[..., 0] + 1) * 127.5).astype(np.uint8)
    runner = Runner.from_recipe(find_recipe("digits"), Path(classifier))
    probabilities, features = judged(runner, pictures, Path(samples).with_name("judged"))
    real = np.rint(Digits("train").images * (255 / 16)).astype(np.uint8)
    _, features_of_real = judged(runner, real, Path(samples).with_name("real"))
    classes = probabilities.argmax(1)
    confidence, shares = (
        probabilities.max(1).mean(),
        np.bincount(classes, minlength=10) / len(classes),
    )
    print(f"mean confidence {confidence:.3f}; shares of 0 to 9: {shares}")
    print(f"FID {frechet_distance(features, features_of_real):.1f}")
    labels = Path(samples).with_name("labels.npy")
    if labels.exists():
        print(f"as asked for: {np.mean(classes == np.load(labels)):.1%}")
    return confidence, shares


if __name__ == "__main__":
    main(*sys.argv[1:])
