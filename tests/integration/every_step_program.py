"""A deterministic training of 40 steps: left alone, and killed at one step after the other.

    python every_step_program.py DIRECTORY TRAINER STEP…

Each life is a child of a process that has imported everything: a start then takes a second. It
resumes from the newest checkpoint, and kills itself where a call ends at its step. With `-skipping`
behind TRAINER some steps are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from processes import free_port
from small_training import Model, X, Y, config
from towerpack.callbacks import (
    Callback,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
    ScalarStats,
)
from towerpack.dataflow import BatchData, DataFromArrays, LocallyShuffleData, MapData, ShuffleData
from towerpack.training import (
    MultiWorkerTrainer,
    SimpleTrainer,
    SyncMultiGPUTrainer,
    TrainConfig,
    join_cluster,
)

EPOCHS, STEPS = 4, 10


def two_replicas(config: TrainConfig) -> SyncMultiGPUTrainer:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return SyncMultiGPUTrainer(config, devices=["CPU:0", "CPU:1"])


TRAINERS: dict[str, Callable[..., Any]] = {
    "SimpleTrainer": SimpleTrainer,
    "SyncMultiGPUTrainer": two_replicas,
    "MultiWorkerTrainer": MultiWorkerTrainer,
}
PROCESSES = {"MultiWorkerTrainer": 2}


class KillAt(Callback):
    """SIGKILL to its own process in the hooks of a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def next_stop(self, step: int) -> int | None:
        return self._step if step < self._step else None

    def trigger_epoch(self) -> None:
        self.trigger_step()  # which is not called for a skipped step

    def trigger_step(self) -> None:
        if self.trainer.global_step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def jitter(point: Any, rng: np.random.Generator) -> Any:
    return point[0] + rng.normal(0, 0.1, 3).astype(np.float32), point[1]


def train(run_dir: Path, trainer: str, kill_at: int = 0) -> None:
    flow = MapData(ShuffleData(DataFromArrays(X, Y)), jitter, rng=True)
    callbacks = [
        PeriodicTrigger(ModelSaver(keep=3), every_k_steps=3),
        InferenceRunner(BatchData(DataFromArrays(X, Y), 16), ScalarStats("cost")),
        MinSaver("val/cost"),
        *([KillAt(kill_at)] if kill_at else []),
    ]
    trainer, _, skipping = trainer.partition("-")
    trained = TRAINERS[trainer](
        config(
            run_dir,
            callbacks,
            dataflow=BatchData(LocallyShuffleData(flow, 20), 8),
            model=Model(),
            monitors=None,
            steps_per_epoch=STEPS,
            max_epoch=EPOCHS,
            deterministic=True,
            skip_steps=[(5, 7), (14, 23), (38, 40)] if skipping else [],
        )
    )
    trained.train()
    names = ("cost", "mean", "val/cost")
    if not set(names) <= set(trained.monitors.names()):
        return  # Not the chief.
    history = {name: np.array(trained.monitors.history(name)) for name in names}
    np.savez(run_dir / "out.npz", **trained.get_weights(), **history)


def live(run_dir: Path, trainer: str, kill_at: int = 0) -> int:
    """A life in children of its own; the first one's status, of `os.waitstatus_to_exitcode`."""
    sys.stdout.flush()
    addresses = [
        f"127.0.0.1:{free_port()}" for _ in range(PROCESSES.get(trainer.partition("-")[0], 1))
    ]
    children = [fork(addresses, i, run_dir, trainer, kill_at) for i in range(len(addresses))]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(status != (1 if kill_at else 0) for status in statuses[1:]):
        return 2
    return statuses[0]


def fork(addresses: list[str], index: int, *args: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if len(addresses) > 1:
            task = {"type": "worker", "index": index}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
            join_cluster()
        train(*args)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    where, name, *steps = sys.argv[1:]
    for kill_at in steps:
        status = live(Path(where) / "killed", name, int(kill_at))
        if status != -signal.SIGKILL:
            sys.exit(f"killed at step {kill_at}: status {status}")
    for run in ("killed", "undisturbed"):
        if live(Path(where) / run, name):
            sys.exit(f"{run}: failed")
