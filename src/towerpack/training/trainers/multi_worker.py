"""Synchronous training in several processes on one or several machines."""

from __future__ import annotations

from towerpack.training.config import TrainConfig
from towerpack.training.distribution.multi_worker import join_cluster
from towerpack.training.loop.executor import Executor, StepParts
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import StepRunner
from towerpack.training.trainers.base import Trainer

# Between two calls the workers agree, which takes some 5 ms and waits for the slowest of them.
_BUDGET_S = 0.5


class MultiWorkerTrainer(Trainer):
    """Trainer of one replica on each device of several processes, with averaged gradients.

    Each process runs the same program and takes the cluster from `TF_CONFIG` or SLURM.
    `towerpack launch --workers 2 -- train.py` starts two workers on this machine. Without a
    cluster, the process trains alone. `tf.distribute.MultiWorkerMirroredStrategy` communicates.

    The first worker, the chief, writes the run directory and runs the callbacks. The other workers
    run only callbacks with `chief_only = False`. A DataFlow that is not sharded yet is divided
    among the workers by `ShardData`. Before each call of many steps the workers agree on the number
    of steps. The end of one worker's data, a callback that stops training, SIGTERM to any worker
    and a failure therefore end all workers.

    TensorFlow connects processes only before its first use, so objects created earlier are created
    again: layers, optimizers and other variables keep their values, but tensors and traced
    functions are lost. To avoid this, call `join_cluster()` at the start of the program.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.
        step: Definition of a step; None for one cost and one optimizer.
        peer_timeout: Seconds to wait until each worker has started, and then until all workers
            have registered with TensorFlow. A worker that hangs later is noticed within some ten
            seconds.

    Raises:
        ConfigError: The environment describes a cluster with other processes than workers.
        PeerError: A worker has not started.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        step: TrainStep | None = None,
        peer_timeout: float = 60.0,
    ) -> None:
        super().__init__(config, step=step, distribution=join_cluster(peer_timeout))

    def _make_runner(self, parts: StepParts) -> StepRunner:
        return Executor(parts, budget_s=_BUDGET_S)
