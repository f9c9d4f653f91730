"""Training in several processes on one or several machines, in step."""

from __future__ import annotations

from towerpack.training.config import TrainConfig
from towerpack.training.distribution.multi_worker import join_cluster
from towerpack.training.loop.executor import Executor, StepParts
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import StepRunner
from towerpack.training.trainers.base import Trainer

# The workers agree between two calls, which takes some 5 ms and waits for the last of them.
_BUDGET_S = 0.5


class MultiWorkerTrainer(Trainer):
    """Train one replica on each device of several processes; gradients are averaged over all.

    Each process runs the same program. What they are is taken from `TF_CONFIG` or from SLURM
    (`towerpack launch --workers 2 -- train.py` starts some on this machine); without either, this
    process trains alone. `tf.distribute.MultiWorkerMirroredStrategy` does the communication.

    The first worker, the chief, writes the run directory and runs the callbacks, but for those
    with `chief_only = False`. A DataFlow is shared out over the workers by `ShardData`, unless it
    has been. The workers agree once per call on how many steps come next, so that data that end
    unevenly, a callback that stops training, SIGTERM to any of them and a failure end all.

    TensorFlow connects processes only before it is used. So what has been made by then is made
    anew: layers, optimizers and other variables keep their values; tensors and functions that were
    traced are lost. `join_cluster()` as the first thing that a program does avoids that.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
        peer_timeout: Seconds to wait for a worker that has not come, and then for all workers to
            register with TensorFlow. One that hangs later is found within some ten seconds.

    Raises:
        ConfigError: The environment describes a cluster that is none of workers alone.
        PeerError: A worker has not come.
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
