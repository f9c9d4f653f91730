"""Asynchronous training on several machines with parameter servers."""

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
from towerpack.training.trainers.base import Trainer


class ParameterServerTrainer(Trainer):
    """Trainer for several machines, each of which updates the shared variables without waiting.

    Every process runs the same program and learns its role from `TF_CONFIG`, which
    `towerpack launch` or a scheduler sets. Parameter servers (`ps`) hold the variables, workers
    compute steps. The chief reads the data, sends batches to the workers, runs callbacks and saves
    checkpoints. In other processes `train` serves the chief and does not return.

    A step is one batch, as with `AsyncMultiGPUTrainer`. If a worker dies, training continues
    without it until it is restarted. Other workers repeat its unfinished steps, so some batches may
    be applied twice; a warning reports this.

    Args:
        config: Configuration; None if `launch_train_with_config` passes it later.
        peer_timeout: Seconds after which a process that does not start or does not answer ends
            the run.
        step: Definition of a step; None for one cost and one optimizer.

    Raises:
        ConfigError: There is no cluster with parameter servers, or `deterministic`, `xla` or
            `eager` is set.
    """

    _asynchronous = True

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
        """Set the configuration; see `Trainer.configure`.

        Args:
            config: Configuration, without `deterministic`, `xla` and `eager`.

        Raises:
            ConfigError: One of these settings is True.
        """
        for name in ("xla", "eager"):
            if getattr(config, name):
                raise ConfigError(f"ParameterServerTrainer does not support {name}=True.")
        super().configure(config)

    def train(self) -> None:
        """Train on the chief. In other processes, serve until the chief has ended, and exit.

        Raises:
            PeerError: A process has not started, or does not answer.
        """
        console()
        if not self._cluster.is_chief:
            serve(self._cluster, self._peer_timeout)
        wait_for_peers(self._peers, None, self._peer_timeout)
        self._coordinator = connect(self._cluster)
        servers = {name: a for name, a in self._peers.items() if name.startswith("ps")}
        over = threading.Event()
        # The executor notices a hanging worker while it waits for its share, and the run is saved.
        # The threads are for the case that the chief hangs in TensorFlow before that.
        timeout = self._peer_timeout
        for watched in ((servers, timeout, over), (self._peers, 2 * timeout, over)):
            threading.Thread(
                target=watch, args=watched, name="towerpack-watch", daemon=True
            ).start()
        try:
            super().train()
            if silent_peers(self._peers, PROBE_S):
                # At exit TensorFlow would wait for a lost worker.
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
