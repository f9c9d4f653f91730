"""Optical flow with FlowNet2-S or -C: the networks of [flownet.py](flownet.py), trained.

Pieces of a photograph move by up to 4 pixels, behind an ellipse that moves otherwise. The test uses
the right part of the photograph. The networks have a quarter of the published ones' channels. The
picture shows both images, the true flow and the predicted one; hues are directions.

    python examples/optical_flow.py [--network c] [--steps N] [--out DIR]

Reached (2,400 steps, 150 s of processor time on two busy cores): an end-point error of 1.37 pixels;
3.29 if nothing moved. FlowNet2-C learns later: nothing yet after 1,000 steps.
"""

import argparse
from pathlib import Path

import cv2
import keras
import numpy as np
import tensorflow as tf
from flownet import flownet, in_pixels, loss
from sklearn.datasets import load_sample_image

from towerpack import ModelDesc
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, DataFromList, MapData, RepeatedData
from towerpack.inference import Predictor
from towerpack.nn import expose
from towerpack.training import SimpleTrainer, TrainConfig

SIDE_PX, REACH_PX, TEST_PX = 64, 4, 160


class Model(ModelDesc):
    def __init__(self, network, steps):
        self.network, self.steps = network, steps

    def inputs(self):
        sizes = {"first": 3, "second": 3, "flow": 2}
        shape = [None, SIDE_PX, SIDE_PX]
        return [tf.TensorSpec([*shape, size], tf.float32, name) for name, size in sizes.items()]

    def build_graph(self, first, second, flow):
        # 8 pixels are one pixel of the correlated features.
        flows = flownet(first, second, self.network, width=0.25, reach=3, step=1)
        prediction = in_pixels(flows[-1])
        expose("prediction", prediction)
        expose("error_px", tf.reduce_mean(tf.norm(prediction - flow, axis=-1)))
        return loss(flows, flow)

    def optimizer(self):
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1.5e-3, self.steps))


def example(dp, rng):
    """Two pieces of a photograph, before which another piece moves, and the flow (x, y)."""
    photo, margin = dp[0], REACH_PX
    moves = rng.integers(-REACH_PX, REACH_PX + 1, (2, 2))  # of the background and the ellipse
    center, axes = rng.integers(16, 48, 2), rng.integers(8, 24, 2)
    ends = np.array(photo.shape[:2]) - SIDE_PX - 2 * margin
    places = rng.integers(0, ends, (2, 2)) + margin
    images, flow = [], None
    for time in (0, 1):
        mask = np.zeros([SIDE_PX, SIDE_PX, 1], np.float32)
        cv2.ellipse(mask, (center + time * moves[1]).tolist(), axes.tolist(), 0, 0, 360, 1, -1)
        pieces = []
        for place, move in zip(places, moves, strict=True):
            row, column = place - time * move[::-1]
            pieces.append(photo[row : row + SIDE_PX, column : column + SIDE_PX])
        images.append(((1 - mask) * pieces[0] + mask * pieces[1]).astype(np.float32))
        flow = (1 - mask) * moves[0] + mask * moves[1] if flow is None else flow
    return [*images, flow.astype(np.float32)]


def colored(flow):
    """A picture of a flow: the hue is the direction, the brightness the speed."""
    speed, angle = cv2.cartToPolar(flow[..., 0], flow[..., 1], angleInDegrees=True)
    brightness = np.clip(speed / (1.5 * REACH_PX), 0, 1)
    hsv = np.stack([angle, np.ones_like(speed), brightness], -1)
    return 255 * cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)


def main(arguments=None):
    """Train; return the end-point error on the test in pixels."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=["s", "c"], default="s")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--out", type=Path, default=Path("runs/optical-flow"))
    args = parser.parse_args(arguments)
    photo = load_sample_image("china.jpg")[150:, :, ::-1]  # without the sky
    seen = DataFromList([[photo[:, :-TEST_PX]]], shuffle=False)
    unseen = DataFromList([[photo[:, -TEST_PX:]]] * 256, shuffle=False)
    flow = BatchData(MapData(RepeatedData(seen), example, rng=True), 8)
    test = BatchData(MapData(unseen, example, rng=True), 8)
    model = Model(args.network, args.steps)
    config = TrainConfig(
        model=model, dataflow=flow, steps_per_epoch=args.steps // 4, max_epoch=4, seed=0,
        callbacks=[ModelSaver(keep=1), InferenceRunner(test, ScalarStats(["error_px"]))],
        run_dir=args.out,
    )  # fmt: skip
    trainer = SimpleTrainer(config)
    trainer.train()
    first, second, truth = next(test.iterate(seed=0))
    predicted = Predictor(model, args.out, outputs="prediction")(first, second)
    flows = [[colored(one) for one in two] for two in (truth, predicted)]
    rows = [np.concatenate(list(column[:6]), 1) for column in (first, second, *flows)]
    cv2.imwrite(str(args.out / "picture.png"), np.concatenate(rows).astype(np.uint8))
    still = float(np.linalg.norm(truth, axis=-1).mean())
    error = trainer.monitors.latest("val/error_px")
    print(f"end-point error {error:.2f} pixels; {still:.2f} if nothing moved")
    return error


if __name__ == "__main__":
    main()
