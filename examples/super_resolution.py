"""Super-resolution by sub-pixel convolution (Shi et al. 2016), on two photographs of scikit-learn.

The network works on the small picture. Its last convolution gives 3 × 3 channels for each pixel,
which `depth_to_space` lays out as 3 × 3 pixels. As in the paper only the brightness is learned; the
two other channels are enlarged by bicubic interpolation. It is trained on the left and the right
third of both, and measured on the thirds between, of which the picture shows a part: bicubic,
network, original.

    python examples/super_resolution.py [--steps N] [--out DIR]

Reached (2,000 steps, 28 s of processor time on two cores): 20.71 dB and 27.19 dB, against 20.50 dB
and 26.85 dB of bicubic interpolation.
"""

import argparse
from pathlib import Path

import cv2
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

from towerpack import ModelDesc
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFromList, MapData, RepeatedData
from towerpack.dataflow.images import AugmentImageComponent, Flip, RandomCrop
from towerpack.inference import Predictor
from towerpack.nn import Conv2D, LinearWrap, argscope, expose
from towerpack.training import SimpleTrainer, TrainConfig

FACTOR = 3
PATCH_PX = 51


class Model(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, None, None, 1], tf.float32, n) for n in ("small", "large")]

    def build_graph(self, small, large):
        with argscope(Conv2D, activation=tf.nn.relu):
            detail = (
                LinearWrap(small - 0.5)
                .Conv2D("conv0", 48, 5)
                .Conv2D("conv1", 32, 3)
                .Conv2D("conv2", FACTOR**2, 3, activation=None, kernel_initializer="zeros")()
            )
        # The small pixel itself is added to each of its nine: only what differs has to be learned.
        enlarged = expose("enlarged", tf.nn.depth_to_space(small + detail, FACTOR))
        expose("psnr", tf.reduce_mean(tf.image.psnr(tf.clip_by_value(enlarged, 0, 1), large, 1)))
        return tf.reduce_mean((enlarged - large) ** 2)


def shrunk(image: np.ndarray) -> np.ndarray:
    """The mean of each 3 × 3 pixels."""
    height, width = image.shape[:2]
    size = width // FACTOR, height // FACTOR
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).reshape(*size[::-1], -1)


def bicubic(image: np.ndarray) -> np.ndarray:
    size = image.shape[1] * FACTOR, image.shape[0] * FACTOR
    return cv2.resize(image, size, interpolation=cv2.INTER_CUBIC).reshape(*size[::-1], -1)


def pair(datapoint: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The brightness of a picture: a third of the size, and as it is."""
    large = datapoint[0][:, :, :1]
    return shrunk(large), large


def photographs() -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Datapoints to train on, and pictures to measure: [h, w, 3], YCrCb from 0 to 1."""
    train, test = [], []
    for photo in load_sample_images().images:
        photo = cv2.cvtColor(photo[:426].astype(np.float32) / 255, cv2.COLOR_RGB2YCrCb)
        train += [[photo[:, :213]], [photo[:, 427:]]]
        test.append(photo[:, 215:425])
    return train, test


def main(arguments: list[str] | None = None) -> float:
    """Train, measure and draw; gives the gain over bicubic interpolation in dB."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("runs/super_resolution"))
    args = parser.parse_args(arguments)

    train, test = photographs()
    flow = RepeatedData(DataFromList(train))
    flow = AugmentImageComponent(flow, [RandomCrop(PATCH_PX), Flip(horiz=True)])
    flow = BatchData(MapData(flow, pair), 16)
    held_out = BatchData(MapData(DataFromList([[photo] for photo in test]), pair), 1)
    rate = keras.optimizers.schedules.CosineDecay(2e-3, args.steps)
    config = TrainConfig(
        model=Model(), optimizer=keras.optimizers.Adam(rate), dataflow=flow,
        callbacks=[InferenceRunner(held_out, ScalarStats("psnr")), ModelSaver(keep=1)],
        steps_per_epoch=-(-args.steps // 4), max_epoch=4, seed=0, run_dir=args.out)  # fmt: skip
    SimpleTrainer(config).train()

    enlarge = Predictor(Model(), args.out, outputs="enlarged")
    gains, rows = [], []
    for photo in test:
        small = shrunk(photo)
        plain = bicubic(small)
        by_network = np.dstack([enlarge(small[None, :, :, :1])[0], plain[:, :, 1:]])
        psnr = [cv2.PSNR(p[:, :, 0].clip(0, 1), photo[:, :, 0], 1.0) for p in (plain, by_network)]
        print(f"bicubic {psnr[0]:.2f} dB, network {psnr[1]:.2f} dB")
        gains.append(psnr[1] - psnr[0])
        rows.append(np.hstack([p[150:310] for p in (plain, by_network, photo)]))
    picture = cv2.cvtColor(np.vstack(rows), cv2.COLOR_YCrCb2BGR)
    cv2.imwrite(str(args.out / "picture.png"), (picture.clip(0, 1) * 255).astype(np.uint8))
    return float(np.mean(gains))


if __name__ == "__main__":
    main()
