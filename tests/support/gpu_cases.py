"""Trainers whose steps `gpu_audit` looks at, by name. Each is made for a run directory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import keras
import numpy as np
import tensorflow as tf

from towerpack import AccumulateGradients, ModelDesc
from towerpack.apps.detection import DetectionConfig, DetectionModeler
from towerpack.apps.segmentation import SegmentationConfig, SegmentationModeler
from towerpack.callbacks import ProcessOutputs
from towerpack.dataflow import DataFromList
from towerpack.gan import GANTrainer
from towerpack.inputs import QueueInput, StagingInput, TFDatasetInput
from towerpack.nn import Dropout, FullyConnected, expose, summary
from towerpack.ops.cross_entropy import cross_entropy
from towerpack.rl import A2C, DQN, PPO
from towerpack.training import (
    SimpleTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    TrainConfig,
)
from towerpack.zoo import lenet, resnet32, rnn_basic

ADAM = {"name": "adam", "learning_rate": 1e-3}
TWO = ["CPU:1", "CPU:2"]
SPACE = gymnasium.spaces


def example(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flow(model: Any, length: int = 4) -> DataFromList:
    shapes = [([length if d is None else d for d in s.shape], s.dtype) for s in model.inputs()]
    return DataFromList([tuple(np.zeros(s, d.as_numpy_dtype) for s, d in shapes)] * 8)


class Net(ModelDesc):
    """A classifier of the zoo, or one of two layers, with its accuracy."""

    def __init__(self, net: Any = None, shape: Any = (8,), optimizer: Any = keras.optimizers.Adam):
        self._net, self._shape, self.optimizer = net, shape, optimizer

    def inputs(self) -> list[tf.TensorSpec]:
        image = tf.TensorSpec([None, *self._shape], tf.float32, "image")
        return [image, tf.TensorSpec([None], tf.int64, "label")]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        if self._net is None:
            logits = FullyConnected("fc", Dropout("drop", image, 0.5), 10)
        else:
            logits = self._net(image, 10)
        logits = tf.cast(logits, tf.float32)
        expose("right", tf.cast(tf.argmax(logits, 1) == label, tf.float32))
        summary.scalar("mean", tf.reduce_mean(logits))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))


class Text(ModelDesc):
    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, None], tf.int32, "text")]

    def build_graph(self, text: tf.Tensor) -> tf.Tensor:
        logits, _ = rnn_basic.net(text, 50, rnn_basic.zero_state(tf.shape(text)[0]), dropout=0.5)
        return tf.reduce_mean(cross_entropy(text, logits))

    def optimizer(self) -> Any:
        return keras.optimizers.Adam()


class Game(gymnasium.Env[Any, Any]):
    observation_space = SPACE.Box(0, 255, (4, 36, 36), np.uint8)
    action_space = SPACE.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((4, 36, 36), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((4, 36, 36), np.uint8), 0.0, False, False, {}


def pixels(x: tf.Tensor) -> tf.Tensor:
    return FullyConnected("fc", tf.reshape(tf.cast(x, tf.float32), [-1, 4 * 36 * 36]), 8)


def trains(
    make: Callable[[], Any],
    trainer: Any = SimpleTrainer,
    data: Callable[[Any], Any] | None = None,
    **config: Any,
) -> Callable[[str], Any]:
    def make_trainer(directory: str) -> Any:
        model = make()
        source = {"data": data(model)} if data else {"dataflow": flow(model)}
        fixed = {"monitors": [], "max_epoch": 1, "steps_per_epoch": 4, "seed": 0}
        return trainer(TrainConfig(model=model, run_dir=directory, **source, **fixed, **config))

    return make_trainer


def plays(make: Callable[[], Any]) -> Callable[[str], Any]:
    def train(directory: str) -> None:
        make().train(total_steps=2000, epoch_steps=1000, run_dir=directory, seed=0)

    return lambda directory: SimpleNamespace(train=lambda: train(directory))


def on_two(trainer: Any) -> Callable[[str], Any]:
    return trains(Net, lambda config: trainer(config, TWO))


def unet() -> Any:
    data = {"path": ".", "size": [64, 64], "class_names": ["a", "b", "c"]}
    classes = SimpleNamespace(names="abc", counted=np.array([True] * 3))
    return SegmentationModeler(
        SegmentationConfig(data=data, optimizer=ADAM),
        SimpleNamespace(classes=classes, augmenter=PLAIN),
    )


def ssd() -> Any:
    data, model = {"path": ".", "size": [192, 192]}, {"network": "ssd_lite"}
    inputs = SimpleNamespace(class_names=["a", "b", "c"], augmenter=PLAIN)
    return DetectionModeler(DetectionConfig(data=data, model=model, optimizer=ADAM), inputs)


def resnet20(optimizer: Any = keras.optimizers.Adam) -> Any:
    return Net(resnet32.resnet20, [32, 32, 3], optimizer)


def accumulating() -> Any:
    return AccumulateGradients(keras.optimizers.Adam(), 4)


def slices(_: Any) -> Any:
    arrays = np.zeros([8, 4, 8], np.float32), np.zeros([8, 4], np.int64)
    return TFDatasetInput(tf.data.Dataset.from_tensor_slices(arrays))


PLAIN = SimpleNamespace(normalize=lambda x: tf.cast(x, tf.float32) / 255)
CASES: dict[str, Callable[[str], Any]] = {
    "mlp": trains(Net),
    "float16": trains(Net, precision="float16"),
    "accumulated": trains(lambda: Net(optimizer=accumulating)),
    "fetches": trains(Net, callbacks=[ProcessOutputs(["right"], len)]),
    "staged": trains(Net, data=lambda m: StagingInput(QueueInput(flow(m)), device="CPU:1")),
    "dataset": trains(Net, data=slices),
    "replicas": on_two(SyncMultiGPUTrainer),
    "shared": on_two(SyncMultiGPUTrainerParameterServer),
    "lstm": trains(Text),
    "lenet": trains(lambda: Net(lenet.net, [28, 28, 1])),
    "resnet20": trains(resnet20),
    "resnet20-xla": trains(resnet20, xla=True),
    "momentum": trains(lambda: resnet20(lambda: keras.optimizers.SGD(0.1, momentum=0.9))),
    "ptb": trains(lambda: example("ptb_lstm").Model()),
    "dcgan": trains(lambda: example("gan/dcgan").Model(), GANTrainer),
    "unet": trains(unet),
    "ssd": trains(ssd),
    "dqn": plays(lambda: DQN("CartPole-v1", learning_starts=100)),
    "ppo": plays(lambda: PPO("CartPole-v1", num_envs=8, num_steps=32)),
    "a2c": plays(lambda: A2C("CartPole-v1")),
    "atari": plays(lambda: DQN(Game, network=pixels, learning_starts=100, frames=1)),
}
