"""Towerpack with data workers and a checkpoint every five steps.

Settings: `on_worker_death="restart"`, `stall_s=10`, `deterministic=True`.
"""

import os

import keras
import tensorflow as tf
from job import BATCH, Job, work

import towerpack as tp


class Model(tp.ModelDesc):
    def __init__(self, width):
        self.width = width

    def inputs(self):
        return [
            tf.TensorSpec([None, self.width], tf.float32, "x"),
            tf.TensorSpec([None, 1], tf.float32, "y"),
        ]

    def build_graph(self, x, y):
        hidden = tp.FullyConnected("fc0", x, 64, activation=tf.tanh)
        hidden = tp.Dropout("drop", hidden, 0.1)
        return tf.reduce_mean((tp.FullyConnected("fc1", hidden, 1) - y) ** 2)

    def optimizer(self):
        return keras.optimizers.Adam(0.01)


class Say(tp.Callback):
    def __init__(self, job):
        self._job = job

    def trigger(self):
        self._job.say(self.trainer.global_step)


def main(job):
    directory = job.directory

    def augment(row, rng):
        x, y = row
        return work(directory, x) + 0.1 * rng.normal(size=x.shape).astype("float32"), y

    flow = tp.MapData(tp.ShuffleData(tp.DataFromArrays(job.x, job.y)), augment, rng=True)
    flow = tp.PrefetchData(
        tp.BatchData(flow, BATCH), num_proc=job.workers, on_worker_death="restart", stall_s=10
    )
    validation = tp.BatchData(tp.DataFromArrays(job.x_val, job.y_val), len(job.x_val))
    config = tp.TrainConfig(
        model=Model(job.width),
        dataflow=flow,
        callbacks=[
            tp.InferenceRunner(validation, tp.ScalarStats("cost")),
            tp.PeriodicTrigger(tp.ModelSaver(), every_k_steps=5),
            tp.MinSaver("val/cost"),
            tp.PeriodicTrigger(Say(job), every_k_steps=5),
        ],
        max_epoch=job.epochs,
        seed=0,
        deterministic=True,
        run_dir=job.run_dir,
    )
    trainer = (
        tp.MultiWorkerTrainer(config) if "TF_CONFIG" in os.environ else tp.SimpleTrainer(config)
    )
    trainer.train()
    best = tp.Predictor(Model(job.width), job.run_dir, outputs="cost", tag="best-val/cost")
    job.finish(list(trainer.get_weights().values()), best(job.x_val, job.y_val).mean())


main(Job())
