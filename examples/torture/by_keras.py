"""Keras `fit` on a `PyDataset` with worker processes.

Settings: `BackupAndRestore(double_checkpoint=True)` after each epoch, because it does not restore
the position within one; `TerminateOnNaN(raise_error=True)`; `ModelCheckpoint(save_best_only=True)`
with an `initial_value_threshold` from the saved file; `enable_op_determinism`.
"""

import contextlib
import os

import keras
import numpy as np
import tensorflow as tf
from job import BATCH, STEPS, Job, work


class Rows(keras.utils.PyDataset):
    def __init__(self, job, **kwargs):
        super().__init__(**kwargs)
        self.job = job

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(index * BATCH, (index + 1) * BATCH)
        x = np.stack([work(self.job.directory, row) for row in self.job.x[rows]])
        return x + np.random.normal(0, 0.1, x.shape).astype("float32"), self.job.y[rows]


class Say(keras.callbacks.Callback):
    def __init__(self, job):
        super().__init__()
        self.job = job

    def on_train_batch_end(self, batch, logs=None):
        self.job.say(int(self.model.optimizer.iterations))


def build(job):
    model = keras.Sequential(
        [
            keras.Input([job.width]),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def main(job):
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    validation = job.x_val, job.y_val
    best = str(job.directory / "best.weights.h5")
    threshold = None
    if os.path.exists(best):
        other = build(job)
        other.load_weights(best)
        threshold = other.evaluate(*validation, batch_size=len(job.x_val), verbose=0)
    scope = contextlib.nullcontext()
    if job.ranks > 1:
        scope = tf.distribute.MultiWorkerMirroredStrategy().scope()
    with scope:
        model = build(job)
    model.fit(
        Rows(job, workers=job.workers, use_multiprocessing=job.workers > 0),
        epochs=job.epochs,
        validation_data=validation,
        validation_batch_size=len(job.x_val),
        verbose=0,
        callbacks=[
            Say(job),
            keras.callbacks.TerminateOnNaN(raise_error=True),
            keras.callbacks.ModelCheckpoint(
                best, save_best_only=True, save_weights_only=True, initial_value_threshold=threshold
            ),
            keras.callbacks.BackupAndRestore(str(job.run_dir), double_checkpoint=True),
        ],
    )
    weights = model.get_weights()
    model.load_weights(best)
    job.finish(weights, model.evaluate(*validation, batch_size=len(job.x_val), verbose=0))


main(Job())
