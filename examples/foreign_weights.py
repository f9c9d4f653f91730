"""Weights of a PyTorch model, loaded by name into layers that store them otherwise.

A state dict keeps convolutions as [out, in, height, width] and full connections as [out, in], as
Caffe does; here they are [height, width, in, out] and [in, out]. Three things are easily missed.
PyTorch flattens channels first: inputs of the first full connection are in another order. It pads
both sides alike, while 'same' with strides of 2 pads only below and right. Its batch normalisation
has a count that is not used here. The outputs are compared with those of a few lines of NumPy.

    python examples/foreign_weights.py [--steps N] [--out DIR]

The weights are random, in a file such as `safetensors.torch.save_file` writes; a new last layer is
trained on digits, on top of frozen ones.
Reached: 4e-6 is the largest difference from NumPy; 5.3 % errors (400 steps, 9 s of processor time).
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.numpy import load_file, save_file

from towerpack import ModelDesc
from towerpack.callbacks import InferenceRunner, ModelSaver, ScalarStats
from towerpack.dataflow import BatchData, RepeatedData
from towerpack.dataflow.datasets import Digits
from towerpack.inference import Predictor
from towerpack.nn import BatchNorm, Conv2D, FullyConnected, expose
from towerpack.training import SimpleTrainer, SmartInit, TrainConfig

RENAME = {
    "features.0.weight": "conv0/kernel", "features.0.bias": "conv0/bias",
    "features.1.weight": "bn0/gamma", "features.1.bias": "bn0/beta",
    "features.1.running_mean": "bn0/moving_mean",
    "features.1.running_var": "bn0/moving_variance",
    "classifier.0.weight": "fc0/kernel", "classifier.0.bias": "fc0/bias",
}  # fmt: skip


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 8, 8], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image, label):
        x = tf.pad(image[..., None], [[0, 0], [1, 1], [1, 1], [0, 0]])
        x = Conv2D("conv0", x, 32, 3, strides=2, padding="valid")
        x = tf.nn.relu(BatchNorm("bn0", x, training=False))
        x = FullyConnected("fc0", x, 256, activation=tf.nn.relu)
        logits = FullyConnected("new", x, 10)
        expose("error", tf.reduce_mean(tf.cast(tf.argmax(logits, 1) != label, tf.float32)))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))


def write_state_dict(path: Path) -> None:
    """A file as PyTorch would write it, with random weights."""
    rng = np.random.default_rng(0)
    state = {"features.1.num_batches_tracked": np.array(7)}
    for name, shape in [("features.0.weight", (32, 1, 3, 3)), ("classifier.0.weight", (256, 512))]:
        deviation = (2 / np.prod(shape[1:])) ** 0.5
        state[name] = rng.normal(0, deviation, shape).astype(np.float32)
    for name in sorted(RENAME.keys() - state.keys()):
        size = 256 if name.startswith("classifier") else 32
        state[name] = rng.uniform(0.1, 1, size).astype(np.float32)
    save_file(state, path)


def in_our_layout(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """[out, in, h, w] as [h, w, in, out]; the full connection's inputs as [h, w, channel]."""
    kernel = state["features.0.weight"].transpose(2, 3, 1, 0)
    full = state["classifier.0.weight"].reshape(256, 32, 4, 4).transpose(2, 3, 1, 0)
    return {**state, "features.0.weight": kernel, "classifier.0.weight": full.reshape(-1, 256)}


def numpy_features(state: dict[str, np.ndarray], image: np.ndarray) -> np.ndarray:
    """What PyTorch would compute with the file's weights, channels first: [batch, 256]."""
    windows = sliding_window_view(np.pad(image, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    x = np.einsum("nyxij,oij->noyx", windows[:, ::2, ::2], state["features.0.weight"][:, 0])
    names = ["0.bias", "1.running_mean", "1.running_var", "1.weight", "1.bias"]
    bias, mean, variance, gamma, beta = (state[f"features.{n}"][:, None, None] for n in names)
    x = (x + bias - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    x = np.maximum(x, 0).reshape(len(image), -1)
    return np.maximum(x @ state["classifier.0.weight"].T + state["classifier.0.bias"], 0)


def main(arguments: list[str] | None = None) -> float:
    """Load, compare, train; gives the largest difference from NumPy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/foreign_weights"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    write_state_dict(args.out / "model.safetensors")
    state = load_file(args.out / "model.safetensors")

    train, test = BatchData(Digits("train"), 64), Digits("test", shuffle=False)
    config = TrainConfig(
        model=Model(), optimizer=keras.optimizers.Adam(1e-2), dataflow=RepeatedData(train),
        # A function in place of the dict: None for the count, which is left out.
        init=SmartInit(in_our_layout(state), rename=RENAME.get),
        frozen=["conv0/.*", "bn0/.*", "fc0/.*"],
        callbacks=[InferenceRunner(BatchData(test, 120), ScalarStats("error")), ModelSaver()],
        steps_per_epoch=args.steps, max_epoch=1, seed=0, run_dir=args.out / "run")  # fmt: skip
    trainer = SimpleTrainer(config)
    trainer.train()

    images = test.images.astype(np.float32) / 16
    ours = Predictor(Model(), args.out / "run", outputs="fc0/output")(images)
    difference = float(np.abs(ours - numpy_features(state, images)).max())
    error = trainer.monitors.latest("val/error")
    print(f"largest difference from NumPy {difference:.1e}; error on digits {error:.3f}")
    return difference


if __name__ == "__main__":
    main()
