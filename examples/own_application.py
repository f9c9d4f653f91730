"""An application of your own: segmentation of rendered shapes, with the commands of all others.

    cd examples
    towerpack train own_application.yaml --allow-code
    towerpack eval own_application.yaml --allow-code
    python own_application.py && towerpack infer runs/own_application shapes --allow-code

It reaches a mean intersection over union of 0.905 on 500 test pictures (2 minutes on 2 cores).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tensorflow as tf

from towerpack.apps import AppConfig, Application, Display, Inputter, Modeler
from towerpack.callbacks import Inferencer, ScalarStats
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData, ShuffleData
from towerpack.nn import BNReLU, Conv2D, Conv2DTranspose, argscope, expose

CLASSES = ("paper", "disc", "square", "triangle")
COLOURS = np.array([[0, 0, 0], [230, 80, 60], [60, 160, 230], [90, 200, 90]], np.uint8)
SIZE_PX = 64


def render(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A picture [64, 64, 3] of three shapes on noise, and its classes [64, 64]."""
    rng = np.random.default_rng(seed)
    image = rng.integers(150, 256, (SIZE_PX, SIZE_PX, 3)).astype(np.uint8)
    mask = np.zeros((SIZE_PX, SIZE_PX), np.uint8)
    for kind in rng.permutation([1, 2, 3]):
        x, y, r = (int(v) for v in (*rng.integers(12, 52, 2), rng.integers(6, 13)))
        shape = np.zeros_like(mask)
        if kind == 1:
            cv2.circle(shape, (x, y), r, 1, -1)
        else:
            corners = [[x - r, y + r], [x + r, y + r], [x + r, y - r], [x - r, y - r]]
            cv2.fillPoly(shape, [np.array(corners if kind == 2 else [*corners[:2], [x, y - r]])], 1)
        mask[shape == 1] = kind
        image[shape == 1] = rng.integers(0, 140, 3)
    return image, mask


class ShapesConfig(AppConfig):
    """A recipe."""

    batch_size: int = 32
    pictures: int = 2000
    "To train on; a quarter as many for validation and test each."


class ShapesInputter(Inputter):
    """Rendered shapes."""

    class_names = CLASSES
    suffixes = (".png", ".jpg")

    def __init__(self, config: ShapesConfig) -> None:
        self._count, self.batch_size = config.pictures, config.batch_size

    def flow(self, split: str) -> DataFlow:
        start, count = {"train": (0, 4), "val": (4, 1), "test": (5, 1)}[split]
        quarter = self._count // 4
        flow = DataFromList(range(start * quarter, (start + count) * quarter), shuffle=False)
        if split == "train":
            flow = ShuffleData(flow)
        return BatchData(MapData(flow, render), self.batch_size, remainder=split != "train")

    def read(self, source: str) -> np.ndarray:
        return cv2.cvtColor(cv2.imread(source), cv2.COLOR_BGR2RGB)

    def prepare(self, sample: np.ndarray) -> Sequence[Any]:
        return [cv2.resize(sample, (SIZE_PX, SIZE_PX), interpolation=cv2.INTER_AREA)]


class ShapesModeler(Modeler):
    """A small U-Net (Ronneberger et al. 2015)."""

    best = ("val/mean_iou", "max")
    infer_outputs = ("classes",)

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, SIZE_PX, SIZE_PX, 3], tf.uint8, "image"),
            tf.TensorSpec([None, SIZE_PX, SIZE_PX], tf.uint8, "mask"),
        ]

    def build_graph(self, image: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        n, x = 16, tf.cast(image, tf.float32) / 127.5 - 1
        with argscope([Conv2D, Conv2DTranspose], kernel_size=3, activation=BNReLU):
            a = Conv2D("a", x, n)
            b = Conv2D("b", a, 2 * n, strides=2)
            c = Conv2D("c1", Conv2D("c0", b, 4 * n, strides=2), 4 * n)
            b = tf.concat([b, Conv2DTranspose("up_b", c, 2 * n, strides=2)], -1)
            a = tf.concat([a, Conv2DTranspose("up_a", Conv2D("d", b, 2 * n), n, strides=2)], -1)
            logits = Conv2D("logits", Conv2D("e", a, n), len(CLASSES), 1, activation=None)
        expose("classes", tf.argmax(logits, -1, tf.int32))
        expose("truth", mask)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(mask, tf.int32), logits)
        return tf.reduce_mean(losses)

    def metrics(self) -> Sequence[Inferencer]:
        return [ScalarStats("cost"), MeanIoU()]

    def export_arguments(self) -> Mapping[str, Any]:
        def preprocess(file: tf.Tensor) -> tf.Tensor:  # the exported model takes picture files
            image = tf.io.decode_image(file, channels=3, expand_animations=False)
            return tf.cast(tf.image.resize(image, [SIZE_PX, SIZE_PX], "area"), tf.uint8)

        return {"preprocess": preprocess}


class MeanIoU(Inferencer):
    """Intersection over union, averaged over the classes."""

    def outputs(self) -> Sequence[str]:
        return ["classes", "truth"]

    def names(self) -> Sequence[str]:
        return ["mean_iou"]

    def begin(self) -> None:
        self.confusion = np.zeros([len(CLASSES)] * 2)

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        np.add.at(self.confusion, (outputs["truth"].ravel(), outputs["classes"].ravel()), 1)

    def finish(self) -> Mapping[str, float]:
        both = np.diag(self.confusion)
        either = self.confusion.sum(0) + self.confusion.sum(1) - both
        return {"mean_iou": float(np.mean(both / np.maximum(either, 1)))}


class ShapesDisplay(Display):
    """Colours over the picture."""

    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        shares = np.bincount(outputs["classes"].ravel(), minlength=4) / outputs["classes"].size
        return dict(zip(CLASSES, map(float, shares), strict=True))

    def draw(self, sample: np.ndarray, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        classes = outputs["classes"].astype(np.uint8)
        size = sample.shape[1::-1]
        colours = COLOURS[cv2.resize(classes, size, interpolation=cv2.INTER_NEAREST)]
        return np.hstack([sample, np.where(colours.any(-1, keepdims=True), colours, sample)])


APPLICATION = Application(ShapesConfig, ShapesInputter, ShapesModeler, ShapesDisplay)

if __name__ == "__main__":
    Path("shapes").mkdir(exist_ok=True)
    for i in range(6):
        cv2.imwrite(f"shapes/{i}.png", cv2.cvtColor(render(10**6 + i)[0], cv2.COLOR_RGB2BGR))
