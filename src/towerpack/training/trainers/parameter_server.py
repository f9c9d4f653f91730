"""Asynchronous training on several machines with parameter servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import tensorflow as tf

from towerpack._core.errors import CheckpointError, ConfigError, PeerError, StepError
from towerpack._core.logs import console
from towerpack.checkpoint import list_checkpoints
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
    leave_at_once_if_silent,
    missing_peers,
    silent_peers,
    wait_for_peers,
)
from towerpack.training.loop.executor import StepParts
from towerpack.training.loop.remote_executor import RemoteExecutor
from towerpack.training.run.restart_program import release_port, restart_program
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import StepRunner
from towerpack.training.trainers.base import Trainer

_to_the_exit: list[Trainer] = []


class ParameterServerTrainer(Trainer):
    """Trainer for several machines, each of which updates the shared variables without waiting.

    Every process runs the same program and learns its role from `TF_CONFIG`, which
    `towerpack launch` or a scheduler sets. Parameter servers (`ps`) hold the variables, workers
    compute steps. The chief reads the data, sends batches to the workers, runs callbacks and saves
    checkpoints. In other processes `train` serves the chief and does not return.

    A step is one batch, as with `AsyncMultiGPUTrainer`. If a worker dies, training continues
    without it until it is restarted. Other workers repeat its unfinished steps, so some batches may
    be applied twice; a warning reports this. If a server dies, the chief starts its program again,
    in the same process, and continues from the newest checkpoint.

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
        servers = {name: a for name, a in self._peers.items() if name.startswith("ps")}
        over = threading.Event()
        # The executor notices a hanging worker while it waits for its share, and the run is saved.
        # The threads are for the case that the chief hangs in TensorFlow before that.
        timeout = self._peer_timeout
        for watched in (
            (servers, timeout, over, self._restart),
            (self._peers, 2 * timeout, over, lambda error: None),
        ):
            threading.Thread(
                target=watch, args=watched, name="towerpack-watch", daemon=True
            ).start()
        release_port()
        self._coordinator = connect(self._cluster)
        # At exit, and when functions are collected, TensorFlow would wait for a lost worker.
        leave_at_once_if_silent(self._peers, PROBE_S)
        _to_the_exit.append(self)
        try:
            super().train()
        except SystemExit as ending:
            leave_at_once_at_exit(int(ending.code or 0))
            raise
        except Exception as error:
            leave_at_once_at_exit(1)
            if isinstance(error, tf.errors.OpError | StepError):
                self._raise_if_lost(servers, error)
            raise
        finally:
            over.set()

    def _make_runner(self, parts: StepParts) -> StepRunner:
        executor = RemoteExecutor(parts, self._coordinator, self._peers, self._peer_timeout)
        self._failed = lambda: executor.failed
        return executor

    def _raise_if_lost(self, servers: Mapping[str, str], error: Exception) -> None:
        """Restart the program or raise `PeerError` if a server's variables are lost."""
        if silent := silent_peers(servers, PROBE_S):
            lost = missing_peers(silent, "has died")
        elif "context_id" in str(error):
            lost = missing_peers(servers, "has lost its variables")
        else:
            return
        self._restart(lost)
        raise lost from None

    def _restart(self, lost: PeerError) -> None:
        """Start the program again if it continues from a checkpoint."""
        config, address = self.config, self._cluster.jobs["chief"][0]
        if config.resume != "auto" or config.on_existing not in (None, "resume"):
            return
        with suppress(CheckpointError, ConfigError):  # The run has no checkpoint.
            steps = [
                row.step for row in list_checkpoints(self.run_dir, checksums=False) if row.valid
            ]
            if steps and not self._interrupt.signal:
                restart_program(lost, max(steps), int(address.rpartition(":")[2]))

    def _watch(self) -> None:
        error = self._failed()
        if error is not None and self._state.settled:
            raise error
