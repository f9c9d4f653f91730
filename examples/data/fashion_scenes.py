"""Scenes for detection and instances: articles of Fashion-MNIST on photographs, as COCO JSON.

    apt-get install dataset-fashion-mnist        # the four files of Xiao et al. 2017 (MIT licence)
    pip install scikit-image scikit-learn        # the photographs; pycocotools for the masks
    python fashion_scenes.py /usr/share/datasets/fashion-mnist scenes

Each scene is a random part of a photograph with one to eight articles, 28 to 90 pixels long,
tinted, some partly behind others. Articles and photographs of validation and test are in no
training scene: articles come from the data set's test part, halved, and photographs are listed
below.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import skimage
from pycocotools import mask as coco_mask
from sklearn.datasets import load_sample_image

from towerpack.dataflow.datasets import FashionMnist

CLASSES = (
    "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
PHOTOGRAPHS = {
    "train": (
        "china.jpg", "astronaut.png", "coffee.png", "motorcycle_left.png", "rocket.jpg", "ihc.png",
        "hubble_deep_field.jpg", "retina.jpg", "grass.png", "brick.png", "coins.png", "text.png",
    ),
    "val": ("chelsea.png", "gravel.png"),
    "test": ("flower.jpg", "camera.png", "moon.png"),
}  # fmt: skip
BLACK = 24  # articles are brighter
LEAST_VISIBLE = 0.7  # share of an article that others leave to be seen


def photograph(name: str) -> np.ndarray:
    """One of scikit-learn's or scikit-image's, uint8 [h, w, 3]."""
    if name in ("china.jpg", "flower.jpg"):
        return np.asarray(load_sample_image(name))
    file = Path(skimage.__file__).parent / "data" / name
    return cv2.cvtColor(cv2.imread(str(file)), cv2.COLOR_BGR2RGB)


def background(photos: list[np.ndarray], size: int, rng: np.random.Generator) -> np.ndarray:
    """A random square of one of them, scaled to the size."""
    photo = photos[rng.integers(len(photos))]
    h, w = photo.shape[:2]
    side = int(rng.uniform(0.3, 1.0) * min(h, w))
    y, x = rng.integers(h - side + 1), rng.integers(w - side + 1)
    part = cv2.resize(photo[y : y + side, x : x + side], (size, size), interpolation=cv2.INTER_AREA)
    return part[:, ::-1].copy() if rng.random() < 0.5 else part


def cut_out(article: np.ndarray, length: float, rng: np.random.Generator) -> Any:
    """An article [28, 28] as (pixels [h, w, 3], mask [h, w]), its longer side so many pixels."""
    outline = np.zeros_like(article)
    contours, _ = cv2.findContours(
        (article > BLACK).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    cv2.drawContours(outline, contours, -1, 255, -1)  # dark parts inside belong to it
    x, y, w, h = cv2.boundingRect(outline)
    factor = length / max(w, h)
    size = max(4, round(w * factor)), max(4, round(h * factor))
    grey, mask = (
        cv2.resize(a[y : y + h, x : x + w], size, interpolation=cv2.INTER_CUBIC)
        for a in (article, outline)
    )
    tint = rng.uniform(0.55, 1.0, 3) if rng.random() < 0.7 else np.ones(3)
    pixels = (grey[..., None] * tint).astype(np.uint8)
    if rng.random() < 0.5:
        pixels, mask = pixels[:, ::-1], mask[:, ::-1]
    return pixels, mask > 127


def scene(
    articles: np.ndarray, labels: np.ndarray, photos: list[np.ndarray], size: int, rng: Any
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """A picture uint8 [size, size, 3], and COCO's annotation of each article."""
    picture = background(photos, size, rng)
    owner = np.zeros((size, size), np.int32)  # number of the article that is seen in each pixel
    whole, classes = [], []
    for _ in range(rng.integers(1, 9)):
        k = rng.integers(len(articles))
        pixels, mask = cut_out(articles[k], np.exp(rng.uniform(np.log(28), np.log(90))), rng)
        h, w = mask.shape
        for _try in range(20):
            y, x = rng.integers(size - h + 1), rng.integers(size - w + 1)
            after = owner.copy()
            after[y : y + h, x : x + w][mask] = len(whole) + 1
            seen = np.bincount(after.ravel(), minlength=len(whole) + 2)[1:]
            if all(s >= LEAST_VISIBLE * n for s, n in zip(seen, whole, strict=False)):
                owner = after
                picture[y : y + h, x : x + w][mask] = pixels[mask]
                whole.append(int(mask.sum()))
                classes.append(int(labels[k]))
                break
    found = []
    for number, label in enumerate(classes, 1):
        seen = (owner == number).astype(np.uint8)
        box = [int(v) for v in cv2.boundingRect(seen)]
        mask = coco_mask.encode(np.asfortranarray(seen))
        runs = {"size": mask["size"], "counts": mask["counts"].decode()}
        found.append({"category_id": label + 1, "bbox": box, "area": int(seen.sum()), "iscrowd": 0})
        found[-1]["segmentation"] = runs
    return picture, found


def write(out: Path, split: str, count: int, data: Any, size: int, seed: int) -> None:
    """The pictures of a split, and their JSON."""
    (out / split).mkdir(parents=True, exist_ok=True)
    photos = [photograph(name) for name in PHOTOGRAPHS[split]]
    images, annotations = [], []
    for number in range(count):
        rng = np.random.default_rng([seed, list(PHOTOGRAPHS).index(split), number])
        picture, found = scene(*data, photos, size, rng)
        name = f"{split}/{number:05}.jpg"
        bgr = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(out / name), bgr, [cv2.IMWRITE_JPEG_QUALITY, 92])
        images.append({"id": number + 1, "file_name": name, "width": size, "height": size})
        for one in found:
            annotations.append({"id": len(annotations) + 1, "image_id": number + 1, **one})
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (out / f"{split}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("fashion_mnist", help="folder of the four files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, nargs=3, default=(8000, 300, 1000))
    parser.add_argument("--size", type=int, default=192, help="pixels of a side")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train, rest = (FashionMnist(part, dir=given.fashion_mnist) for part in ("train", "test"))
    parts = [(train.images, train.labels)]
    parts += [(rest.images[i::2], rest.labels[i::2]) for i in (0, 1)]
    for split, count, data in zip(PHOTOGRAPHS, given.scenes, parts, strict=True):
        write(given.out, split, count, data, given.size, given.seed)
        print(f"{split}: {count} scenes")
