"""Training on several machines that do not wait for one another, over shared variables."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from towerpack._core.errors import ConfigError, PeerError, StepError
from towerpack._core.logs import console
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.parameter_servers import (
    PROBE_S,
    OnServers,
    cluster_with_servers,
    connect,
    serve,
    watch,
)
from towerpack.training.distribution.peers import (
    leave_at_once_at_exit,
    missing_peers,
    silent_peers,
    wait_for_peers,
)
from towerpack.training.loop.executor import StepParts
from towerpack.training.loop.remote_executor import RemoteExecutor
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import StepRunner
from towerpack.training.trainers.async_multi_gpu import refuse_deterministic
from towerpack.training.trainers.base import Trainer


class ParameterServerTrainer(Trainer):
    """Train on several machines, each of which moves the shared variables as soon as it can.

    The same program runs in every process; `towerpack launch` or a scheduler says by `TF_CONFIG`
    which one it is. Variables lie on the parameter servers (`ps`), workers compute steps, and the
    chief does everything else: it reads the data and sends each worker its batches, runs callbacks,
    saves. In processes that are not the chief `train` serves and does not return.

    A step is one batch, as with `AsyncMultiGPUTrainer`. A worker that is killed is done without,
    and taken back when it is started again; what it had not finished is given to others, so that
    some batches may be applied twice, which a warning tells.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        peer_timeout: Seconds after which a process that does not come or does not answer ends the
            run.
        step: What one step is; None for one cost and one optimizer.

    Raises:
        ConfigError: There is no cluster; or the run is to be deterministic, or compiled by XLA.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        peer_timeout: float = 60.0,
        step: TrainStep | None = None,
    ) -> None:
        self._cluster = cluster_with_servers()
        self._peers = self._cluster.peers
        self._peer_timeout = peer_timeout
        self._failed: Callable[[], PeerError | None] = lambda: None
        super().__init__(config, step=step, distribution=OnServers(len(self._cluster.jobs["ps"])))

    def configure(self, config: TrainConfig) -> None:
        """As `Trainer.configure`; refuses what workers on their own cannot do."""
        refuse_deterministic(config, type(self).__name__)
        for name in ("xla", "eager"):
            if getattr(config, name):
                raise ConfigError(f"ParameterServerTrainer cannot train with {name}=True.")
        super().configure(config)

    def train(self) -> None:
        """On the chief, as `Trainer.train`; elsewhere serve until the chief has ended, and exit.

        Raises:
            PeerError: A process has not come, or does not answer.
        """
        console()
        if not self._cluster.is_chief:
            serve(self._cluster, self._peer_timeout)
        wait_for_peers(self._peers, None, self._peer_timeout)
        self._coordinator = connect(self._cluster)
        servers = {name: a for name, a in self._peers.items() if name.startswith("ps")}
        over = threading.Event()
        # A worker that hangs is noticed where its share is waited for, and the run saved; here only
        # if the chief has got stuck in TensorFlow before.
        for peers, seconds in (
            (servers, self._peer_timeout),
            (self._peers, 2 * self._peer_timeout),
        ):
            threading.Thread(
                target=watch, args=(peers, seconds, over), name="towerpack-watch", daemon=True
            ).start()
        try:
            super().train()
            if silent_peers(self._peers, PROBE_S):
                # At its end TensorFlow waits for a worker that was lost.
                leave_at_once_at_exit(0)
        except SystemExit as ending:
            leave_at_once_at_exit(int(ending.code or 0))
            raise
        except Exception as error:
            leave_at_once_at_exit(1)
            failed_inside = isinstance(error, tf.errors.OpError | StepError)
            silent = silent_peers(servers, PROBE_S) if failed_inside else {}
            if silent:
                raise missing_peers(silent, "has died") from None
            raise
        finally:
            over.set()

    def _make_runner(self, parts: StepParts) -> StepRunner:
        executor = RemoteExecutor(parts, self._coordinator, self._peers, self._peer_timeout)
        self._failed = lambda: executor.failed
        return executor

    def _watch(self) -> None:
        error = self._failed()
        if error is not None and self._state.settled:
            raise error
