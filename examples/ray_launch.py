"""The same training by `towerpack launch` on this machine, or on a Ray cluster.

    towerpack launch --workers 2 -- examples/ray_launch.py RUN_DIR
    python examples/ray_launch.py RUN_DIR           # needs: pip install "towerpack[ray]"

Both describe the cluster in TF_CONFIG, which is all that the trainer asks for. The run directory
must be one that all machines see: a job that is started again continues there.
"""

import os
import sys
from pathlib import Path

import numpy as np


def train(run_dir: str) -> None:
    """Run in each worker. Only the workers import TensorFlow."""
    import keras
    import tensorflow as tf

    import towerpack as tp

    def build_graph(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((tp.FullyConnected("line", x, 1)[:, 0] - y) ** 2)

    x = np.random.default_rng(0).normal(size=(640, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    specs = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]
    config = tp.TrainConfig(
        dataflow=tp.BatchData(tp.DataFromArrays(x, y), 16),
        model=tp.PlainModel(specs, build_graph),
        optimizer=keras.optimizers.SGD(0.05),
        callbacks=[tp.ModelSaver()],
        max_epoch=3,
        seed=0,
        run_dir=run_dir,
    )
    tp.MultiWorkerTrainer(config).train()


if __name__ == "__main__":
    run_dir = str(Path(sys.argv[1]).absolute())
    if "TF_CONFIG" in os.environ:
        train(run_dir)
    else:
        from towerpack.cluster import ray

        sys.exit(ray.train([__file__, run_dir], workers=(1, 2), storage=f"{run_dir}-ray"))
