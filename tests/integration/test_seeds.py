"""The predecessors' programs run as they are printed: imports, data and the model class added."""

# ruff: noqa: F403, F405 - the blocks below stand as they were printed

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from towerpack import *

lr = 1e-3


class Model(ModelDesc):
    """The wrapper that the text leaves to the reader."""

    def inputs(self):
        return [
            tf.TensorSpec([None, 28, 28, 1], tf.float32, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image, label):
        with argscope(Conv2D, kernel_shape=3, nl=tf.nn.relu, out_channel=8):
            # fmt: off
            logits = (LinearWrap(image)  # the starting brace is only for line-breaking
                      .Conv2D('conv0')
                      .MaxPooling('pool0', 2)
                      .Conv2D('conv1', padding='SAME')
                      .Conv2D('conv2')
                      .MaxPooling('pool1', 2)
                      .Conv2D('conv3')
                      .FullyConnected('fc0', 512, nl=tf.nn.relu)
                      .Dropout('dropout', 0.5)
                      .FullyConnected('fc1', out_dim=10, nl=tf.identity)())
            # fmt: on
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        )


@pytest.fixture
def my_dataflow() -> DataFlow:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 10, 160)
    image = rng.normal(0, 0.3, (160, 28, 28, 1)) + label[:, None, None, None] / 5
    return BatchData(DataFromArrays(image.astype(np.float32), label.astype(np.int64)), 16)


def config_as_printed(my_dataflow: DataFlow) -> TrainConfig:
    # The text says `Callbacks([ModelSaver(), ...])`; the dots are left out. `max_epoch` and
    # `run_dir` are added so that the test ends and keeps its files together.
    # fmt: off
    config =  TrainConfig(
                dataflow=my_dataflow,
                optimizer=tf.train.AdamOptimizer(lr),
                callbacks=Callbacks([ModelSaver()]),
                model=Model(), max_epoch=4, seed=0)
    # fmt: on
    return config


def test_the_lenet_has_the_layers_that_are_printed() -> None:
    model = Model()
    tower = TowerFunction(model.build_graph, model.inputs())
    outputs = tower.trace(is_training=True).result.outputs
    names = ["conv0", "pool0", "conv1", "conv2", "pool1", "conv3", "fc0", "dropout", "fc1"]
    assert [name for name in outputs if name != "cost"] == [f"{name}/output" for name in names]
    assert outputs["conv3/output"].shape.as_list() == [None, 7, 7, 8]
    assert outputs["fc1/output"].shape.as_list() == [None, 10]
    shapes = {n: tuple(v.shape) for n, v in tower.store.named_variables().items()}
    assert shapes["fc0/kernel"] == (7 * 7 * 8, 512)
    assert shapes["conv0/kernel"] == (3, 3, 1, 8)


def test_simple_trainer(
    my_dataflow: DataFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_as_printed(my_dataflow)

    # start training
    trainer = SimpleTrainer(config)
    trainer.train()

    costs = [value for _, value in trainer.monitors.history("cost")]
    assert costs[-1] < 0.8 * costs[0]
    assert load_checkpoint(trainer.run_dir).step == 40


def test_sync_multi_gpu_trainer(
    my_dataflow: DataFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_as_printed(my_dataflow)

    # start multi-GPUtraining
    SyncMultiGPUTrainer(config).train()

    assert len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) == 4
